"""Change the dispatch, the number of key-groups or the encryption of existing state (`riffle dispatch`, `riffle keys`).

Theory of operation. The query is stopped.

1. Between ``partition`` and ``hashed`` the shards stay the same, so only a record is appended.
2. Otherwise each store's state is read from the object store and written as new snapshots. No record lists them yet.
3. One record lists all new snapshots, under a higher epoch. It fences a driver that still runs.

The new snapshots have the higher epoch in their names. So a scan of the stopped query that is still under way does not
delete them. After a crash the scan of the next driver does. The replaced objects stay while records before the switch
are retained, and so does the way back by a rollback.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.offline.command_errors import machine_clocks, translated_errors
from riffle_spark.offline.recovery import Plan
from riffle_spark.offline.reshard import NewShards, SharedKey, read_state, reshard_state, scratch_folder
from riffle_spark.protocol.batch.stored_requests import without_key_groups
from riffle_spark.protocol.shards import Partition, Shards, partitions_in
from riffle_spark.settings import DISPATCHES
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Manifest, Snapshot
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.savepoints import read_savepoint
from riffle_spark.state.objects.encryption import HEADER_BYTES_MAX, Keys, frame_version, key_id_of
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader, in_parallel, missing_object_error
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text, with_encryption_key
from riffle_spark.worker.member_folders import keys_in

PartitionOf: TypeAlias = Callable[[pa.Table], pa.Table]
"""A function from a table of key columns to a table of ``topic`` and ``partition``, one row per key."""
_SAMPLE_KEYS = 256
_PARTITION_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32())])


def switch_dispatch(
    root: str,
    to: str,
    *,
    options: StoreOptions | None = None,
    partition_of: PartitionOf | None = None,
    key_groups: int | None = None,
    execute: bool = False,
    encryption_keys: str | None = None,
) -> Plan:
    """Convert the state below a root to another dispatch or number of key-groups. The query must be stopped.

    Args:
        root: where the state is stored.
        to: the new dispatch: ``key_group``, ``partition`` or ``hashed``.
        options: how to reach the object store.
        partition_of: a function from a table of key columns to a table of ``topic`` (string) and ``partition``
            (integer), one row per key. A switch from ``key_group`` needs it, because state does not store from which
            partition a key arrived. It must always return the same partition for a key.
        key_groups: the new number of key-groups, or the maximum number of shards. By default it stays.
        execute: write the new state. Without it everything is read and checked, and nothing is written.
        encryption_keys: the setting of the same name.

    Returns:
        The steps.

    Raises:
        ConfigError: the root has no state, or the switch is impossible.
        ConflictError: a key has state in two partitions that would be merged, or the query continued during the call.

    Example:
        >>> switch_dispatch("s3://bucket/state/visits", "key_group", key_groups=512)  # doctest: +SKIP
    """
    options = options or StoreOptions()
    root = only_root(root, options)
    objects = open_store(root, options)
    keys = keys_in(encryption_keys, options.s3.region)
    log = Log(objects, root, machine_clocks)
    tail = log.open()
    if tail is None:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(
            f"{root} holds no state.",
            remedy="Correct the root. A new query needs no switch: set dispatch before its first batch.",
            where=root,
            id="RIFFLE-0154",
        )
    total = tail.total if key_groups is None else key_groups
    _check_change(tail, to, total)
    switch = _Switch(objects, tail, to, total, execute, keys)
    with translated_errors(log, f"switch the state to dispatch {to}, {total} key-groups", ConflictError):
        manifest, shards, steps = switch.run(log.manifest, partition_of)
        if execute:
            draft = replace(switch.draft(), shards=shards.partitions)
            if keys is not None and manifest is not log.manifest:
                draft = replace(draft, schemas=_schemas_with(keys, tail))
            log.append(draft, manifest)
    steps.append(
        f"append a record: dispatch {tail.dispatch} -> {to}, key_groups {tail.total} -> {total}; "
        f"then start the query with dispatch = {to}, key_groups = {total}"
    )
    next_step = f"Start the query with dispatch = {to}, key_groups = {total}."
    return Plan(tuple(steps), execute, tail.version, tail.offsets, next_step)


def switch_keys(
    root: str,
    *,
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
    rewrite: bool = False,
    execute: bool = False,
) -> Plan:
    """Count the parts of the state below ``root``, and of each savepoint, by encryption key.

    With ``rewrite`` and ``execute`` all state is written again with the newest of ``encryption_keys`` (the setting).
    Then the query must be stopped. Savepoints keep their parts, and need the old keys until they are deleted.

    Without ``execute`` everything is read and checked, and nothing is written. Raises
    ``ConfigError`` if a key is missing, ``ConflictError`` if the query continued during the call.
    """
    options = options or StoreOptions()
    root = only_root(root, options)
    objects = open_store(root, options)
    log = Log(objects, root, machine_clocks)
    tail = log.open()
    if tail is None:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(f"{root} holds no state.", remedy="Correct the root.", where=root, id="RIFFLE-0155")
    with translated_errors(log, "count the parts of the state by key", ConflictError):
        steps = _count_by_key(objects, tail, log.manifest)
        steps += _count_of_savepoints(objects, tail)
    if not rewrite:
        return Plan(tuple(steps), True, tail.version, tail.offsets)
    keys = keys_in(encryption_keys, options.s3.region)
    if keys is None:
        raise ConfigError(
            "--rewrite needs encryption keys, but encryption_keys is not set.",
            remedy="Set encryption_keys in the settings file.",
            where="--rewrite",
            id="RIFFLE-0156",
        )
    switch = _Switch(objects, tail, tail.dispatch, tail.total, execute, keys)
    with (
        translated_errors(log, f"write the state again with {keys.writes!r}", ConflictError),
        scratch_folder() as folder,
    ):
        manifest = Manifest(
            {address: switch.rewrite_entry(address, entry, folder) for address, entry in log.manifest.entries.items()}
        )
        if execute:
            draft = replace(
                switch.draft(),
                schemas=_schemas_with(keys, tail),
                owners=tail.owners,
                standbys=tail.standbys,
                orders=tail.orders,
                weights=tail.weights,
            )
            log.append(draft, manifest)
    steps.append(f"write {len(manifest.entries)} key-groups again with {keys.writes!r}, and append a record")
    return Plan(tuple(steps), execute, tail.version, tail.offsets, "Start the query.")


def _schemas_with(keys: Keys, tail: Record) -> dict[str, Mapping[str, str]]:
    """Return the schemas with the key that the new parts are encrypted with."""
    return {name: with_encryption_key(text, keys.write_key) for name, text in tail.schemas.items()}


def _count_by_key(objects: ObjectStore, record: Record, manifest: Manifest) -> list[str]:
    """Return a line per encryption key with its parts and bytes, of a record's state and its sealed output.

    ``manifest`` is that of ``record``.
    """
    links = [link for entry in manifest.entries.values() for link in entry.chain] + [link for _, link in record.outputs]
    parts = [(link.object, link.byte_range[0], link.length) for link in links]
    for address, entry in manifest.entries.items():
        if entry.snapshot is not None:
            parts.append((paths.snapshot_name(*address, entry.snapshot.id), 0, entry.snapshot.length))
    headers = in_parallel(lambda part: objects.get(part[0], part[1], HEADER_BYTES_MAX), parts)
    lengths_by_key: dict[str, list[int]] = {}
    for (name, _, length), header in zip(parts, headers, strict=True):
        if header is None:
            raise missing_object_error(name)
        frame = " (old frame RFE1)" if frame_version(header) == 1 else ""
        lengths_by_key.setdefault(key_id_of(header) + frame, []).append(length)
    return [f"{key}: {len(lengths)} parts, {sum(lengths)} bytes" for key, lengths in sorted(lengths_by_key.items())]


def _count_of_savepoints(objects: ObjectStore, tail: Record) -> list[str]:
    """Return a line per savepoint and encryption key with the parts and bytes of the savepoint."""
    lines = []
    for savepoint in tail.savepoints:
        record = read_savepoint(objects, savepoint)
        counts = _count_by_key(objects, record, Manifest(record.entries))
        lines += [f"savepoint {savepoint.name}: {count}" for count in counts]
    return lines


def _check_change(tail: Record, dispatch: str, total: int) -> None:
    """Raise ``ConfigError`` for an unknown dispatch, an invalid number, or a change without effect."""
    if dispatch not in DISPATCHES:
        raise ConfigError(
            f"Unknown dispatch {dispatch!r}.",
            remedy=f"Use one of {', '.join(DISPATCHES)}.",
            where="--to",
            id="RIFFLE-0157",
        )
    keygroups.check_total(total)
    if (tail.dispatch, tail.total) == (dispatch, total):
        raise ConfigError(
            f"The state already has dispatch {dispatch} with {total} key-groups.",
            remedy="Start the query, because nothing needs to be switched.",
            where="--to",
            id="RIFFLE-0158",
        )


@dataclass(frozen=True, slots=True)
class _Switch:
    """A change of dispatch, key-groups or encryption. Without ``execute`` nothing is written."""

    objects: ObjectStore
    tail: Record
    dispatch: str
    total: int
    execute: bool
    keys: Keys | None

    def run(self, manifest: Manifest, partition_of: PartitionOf | None) -> tuple[Manifest, Shards, list[str]]:
        """Return the new manifest, its shards, and the steps.

        Raises ``ConfigError`` if the change needs ``partition_of`` and it is ``None``.
        """
        if self.dispatch != "key_group" and (self.tail.dispatch != "key_group" or not manifest.entries):
            return manifest, Shards(self.tail.shards).extended((), self.total), ["leave every shard as it is"]
        new_shards: _ByKey | _ByPartition
        if self.dispatch == "key_group":
            new_shards = _ByKey(self.total)
        elif partition_of is None:
            raise ConfigError(
                f"Cannot switch the state to dispatch {self.dispatch}, because it does not store the partition of its "
                "keys.",
                remedy="Pass a function from keys to their topic and partition (--partition-of module:function), or "
                "start with an empty root and replay the input.",
                where="--partition-of",
                id="RIFFLE-0159",
            )
        else:
            new_shards = _ByPartition(partition_of, self.total, self.tail.offsets)
        entries: dict[Address, Entry] = {}
        steps = []
        for store in sorted({store for store, _ in manifest.entries}):
            old_entries = {shard: entry for (name, shard), entry in manifest.entries.items() if name == store}
            schema = schema_of_text(store, self.tail.schemas[store])
            new_entries = self._move_state(schema, old_entries, new_shards)
            entries |= {(store, shard): entry for shard, entry in new_entries.items()}
            unit = "keys" if schema.one_row_a_key else "entries"
            snapshots = [entry.snapshot for entry in new_entries.values() if entry.snapshot]
            steps.append(
                f"write the state of store {store!r}: {sum(s.rows for s in snapshots)} {unit}, "
                f"{sum(s.length for s in snapshots)} bytes, from {len(old_entries)} shards to {len(new_entries)}"
            )
        return Manifest(entries), new_shards.shards, steps

    def draft(self) -> Record:
        """Return the record of the switch, without its shards."""
        return replace(
            self.tail,
            kind="dispatch",
            commit_id=uuid.uuid4().hex,
            written_ms=time.time_ns() // 1_000_000,
            epoch=self.tail.epoch + 1,
            total=self.total,
            dispatch=self.dispatch,
            owners={},
            standbys={},
            target=None,
            orders=without_key_groups(self.tail.orders),
            weights={},
        )

    def _move_state(self, schema: StoreSchema, entries: Mapping[int, Entry], new_shards: NewShards) -> dict[int, Entry]:
        """Return the entries of a store in its new shards, each with a new snapshot."""
        reader = Reader(self.objects, self.keys)
        with scratch_folder() as folder:
            try:
                states = reshard_state(schema, entries, reader, new_shards, folder)
                return {
                    shard: Entry(self._put(schema, shard, rows), timer_ms=schema.earliest_ms(rows))
                    for shard, rows in states
                }
            except SharedKey as error:
                raise self._two_partitions_error(schema.store, error) from error

    def rewrite_entry(self, address: Address, entry: Entry, folder: Path) -> Entry:
        """Return a key-group's entry with its state as a new snapshot. Without state return the entry itself.

        ``folder`` is used for temporary files.
        """
        store, key_group = address
        schema = schema_of_text(store, self.tail.schemas[store])
        if entry.head == EMPTY_HEAD:
            return entry
        rows = read_state(schema, key_group, entry, Reader(self.objects, self.keys), folder)
        return Entry(self._put(schema, key_group, schema.sealed(rows)), timer_ms=entry.timer_ms)

    def _put(self, schema: StoreSchema, shard: int, rows: pa.Table) -> Snapshot:
        """Return the snapshot of a shard's rows. With ``execute``, put its object."""
        attempt = f"{self.tail.epoch + 1}-{uuid.uuid4().hex}"
        head = Head(self.tail.version, attempt)
        data = part_codec.encode(rows, schema.due)
        snapshot_id = paths.snapshot_id(head.version, attempt)
        if self.keys is not None:
            data = self.keys.new_encryption()(data, paths.snapshot_place(schema.store, shard, snapshot_id))
        snapshot = Snapshot(snapshot_id, head, len(data), part_codec.checksum(data), rows.num_rows)
        if self.execute:
            self.objects.put_if_absent(paths.snapshot_name(schema.store, shard, snapshot.id), data)
        return snapshot

    def _two_partitions_error(self, store: str, error: SharedKey) -> ConflictError:
        """Return the error for a key with state in two partitions that would be merged."""
        first, second = (f"{topic}/{partition}" for topic, partition in (self.tail.shards[n] for n in error.shards))
        return ConflictError(
            f"Key {error.key} of store {store!r} has state in two partitions, {first} and {second}, which cannot "
            "be merged.",
            remedy="Let your function forget the key in one of them, or start with an empty root and replay the input.",
            where=store,
            id="RIFFLE-0160",
        )


class _ByKey:
    """Maps keys to key-groups. ``shards`` stays empty."""

    def __init__(self, total: int) -> None:
        """Create a mapping to ``total`` key-groups."""
        self.shards = Shards()
        self._total = total

    def __call__(self, source: int, keys: pa.Table) -> npt.NDArray[np.int32]:  # noqa: ARG002 - a NewShards
        """Return the key-group of each key."""
        return keygroups.key_groups(keys.columns, self._total)


class _ByPartition:
    """Maps keys to shards by the user's ``partition_of``. ``shards`` grows with the partitions that it returns."""

    def __init__(self, partition_of: PartitionOf, total: int, offsets: str | None) -> None:
        """Create a mapping to at most ``total`` shards.

        ``offsets`` is Spark's offset-log entry, which names partitions.
        """
        self._known_partitions = partitions_in(offsets)
        self.shards = Shards().extended(self._known_partitions or (), total)
        self._partition_of = partition_of
        self._total = total

    def __call__(self, source: int, keys: pa.Table) -> npt.NDArray[np.int32]:  # noqa: ARG002 - a NewShards
        """Return the shard of each key. Raises ``ConfigError`` for an invalid answer of the user's function."""
        answer = _call_checked(self._partition_of, keys)
        if not _call_checked(self._partition_of, keys.slice(0, _SAMPLE_KEYS)).equals(answer.slice(0, _SAMPLE_KEYS)):
            raise _invalid_answer_error("returned another partition when it was called again with fewer keys")
        partitions = _distinct_partitions(answer)
        unknown = sorted(partitions - self._known_partitions) if self._known_partitions else []
        if unknown:
            raise _invalid_answer_error(f"returned {unknown[0][0]}/{unknown[0][1]}, which the query has never read")
        self.shards = self.shards.extended(partitions, self._total)
        return self.shards.of(answer.column("topic"), answer.column("partition"))


def _call_checked(partition_of: PartitionOf, keys: pa.Table) -> pa.Table:
    """Return the answer of the user's function for ``keys``, checked and cast.

    Raises ``ConfigError`` if it is invalid.
    """
    try:
        answer = partition_of(keys)
    except Exception as error:
        raise _invalid_answer_error(f"failed: {error!r}") from error
    if isinstance(answer, pa.StructArray):
        answer = pa.Table.from_struct_array(answer)
    if not isinstance(answer, pa.Table) or not set(_PARTITION_SCHEMA.names) <= set(answer.column_names):
        raise _invalid_answer_error("must return a pyarrow table with the columns topic and partition")
    if answer.num_rows != keys.num_rows:
        raise _invalid_answer_error(f"returned {answer.num_rows} rows for {keys.num_rows} keys")
    try:
        answer = cast_table(answer.select(_PARTITION_SCHEMA.names), _PARTITION_SCHEMA).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _invalid_answer_error(
            f"returned a topic that is not text or a partition that is not an integer: {error}"
        ) from error
    if any(column.null_count for column in answer.columns):
        raise _invalid_answer_error("returned a null")
    return answer


def _distinct_partitions(answer: pa.Table) -> set[Partition]:
    """Return the distinct (topic, partition) pairs of an answer."""
    groups = answer.group_by(_PARTITION_SCHEMA.names).aggregate([])
    return set(zip(groups["topic"].to_pylist(), groups["partition"].to_pylist(), strict=True))


def _invalid_answer_error(problem: str) -> ConfigError:
    """Return the error for the user's function, whose text continues with ``problem``."""
    return ConfigError(
        f"The function from keys to partitions {problem}.",
        remedy="Correct the function: for each row of a table of key columns it must return the topic and partition of "
        "that key's rows.",
        where="--partition-of",
        id="RIFFLE-0161",
    )
