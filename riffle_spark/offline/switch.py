"""Another dispatch, or other encryption, of state that exists: `riffle dispatch`, `riffle keys`. Knows the log, and
where keys go in each mode. Does not know Spark, or how rows reach a batch.

The query is stopped. Between ``partition`` and ``hashed`` the shards stay what they are, and one record says the rest.
Between keys and partitions, or to another number of key-groups, every store's state is read from the objects and
written as new snapshots, which no record lists until the last step: one record that lists them all, under a higher
epoch, which fences a driver that still runs. A crash before it leaves objects that the next driver's scan finds and
deletes. They are named after that higher epoch: a scan of the query that was stopped may still be under way, and leaves
what is of a newer one alone. What the switch replaced stays as long as the records before it are retained, and so does
the way back: a rollback.
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
from riffle_spark.offline.fenced import clocks, stopped
from riffle_spark.offline.recovery import Plan
from riffle_spark.offline.reshard import ShardsOf, SharedKey, resharded, scratch, state_of
from riffle_spark.protocol.batch.stored_requests import without_key_groups
from riffle_spark.protocol.shards import Partition, Shards, partitions_in
from riffle_spark.settings import DISPATCHES
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.encryption import HEADER_BYTES_MAX, Keys, frame_of, key_of
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader, in_parallel, missing
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text, with_key
from riffle_spark.worker.member_folders import keys_in

__all__ = ["PartitionOf", "switch_dispatch", "switch_keys"]

PartitionOf: TypeAlias = Callable[[pa.Table], pa.Table]
"""From a table of key columns to a table of ``topic`` and ``partition``, row for row, always the same for a key."""
_SAMPLE = 256
_TOLD = pa.schema([("topic", pa.string()), ("partition", pa.int32())])


def switch_dispatch(
    root: str, to: str, *, options: StoreOptions | None = None, partition_of: PartitionOf | None = None,
    key_groups: int | None = None, execute: bool = False, encryption_keys: str | None = None,
) -> Plan:  # fmt: skip
    """Make the state below ``root`` that of dispatch ``to``, with ``key_groups`` key-groups, or shards at most.

    The query must be stopped. Without ``execute`` everything is read and checked and nothing is written.
    ``partition_of`` tells from which partition a key comes; a switch from ``key_group`` needs it, as state alone cannot
    say. ``encryption_keys`` is the setting. Raises ``ConfigError`` for what cannot be done, and ``ConflictError`` for a
    key with state in two partitions that would become one, or if the query went on in the meantime.
    """
    options = options or StoreOptions()
    objects, keys = open_store(root, options), keys_in(encryption_keys, options.s3_region)
    log = Log(objects, root, clocks)
    tail = log.open()
    if tail is None:
        raise ConfigError(
            f"{root} holds no state", remedy="set dispatch before the first batch", where=root, id="RIFFLE-0154"
        )
    total = tail.total if key_groups is None else key_groups
    _check_wanted(tail, to, total)
    switch = _Switch(objects, tail, to, total, execute, keys)
    with stopped(log, f"switch the state to dispatch {to}, {total} key-groups", ConflictError):
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
    return Plan(tuple(steps), execute, tail.version, tail.offsets)


def switch_keys(
    root: str, *, options: StoreOptions | None = None, encryption_keys: str | None = None, rewrite: bool = False,
    execute: bool = False,
) -> Plan:  # fmt: skip
    """Count the parts of the state below ``root`` by the key that they are encrypted with.

    With ``rewrite`` all state is written anew with the newest of ``encryption_keys`` (the setting); the query must be
    stopped. Without ``execute`` everything is read and checked and nothing is written. Raises ``ConfigError`` for a key
    that is missing, ``ConflictError`` if the query went on in the meantime.
    """
    options = options or StoreOptions()
    objects = open_store(root, options)
    log = Log(objects, root, clocks)
    tail = log.open()
    if tail is None:
        raise ConfigError(f"{root} holds no state", remedy="correct `root`", where=root, id="RIFFLE-0155")
    with stopped(log, "count the parts of the state by key", ConflictError):
        steps = _counted(objects, tail, log.manifest)
    if not rewrite:
        return Plan(tuple(steps), True, tail.version, tail.offsets)
    keys = keys_in(encryption_keys, options.s3_region)
    if keys is None:
        raise ConfigError(
            "no keys are named",
            remedy="set `encryption_keys` in the settings' file",
            where="--rewrite",
            id="RIFFLE-0156",
        )
    switch = _Switch(objects, tail, tail.dispatch, tail.total, execute, keys)
    with stopped(log, f"write the state anew with {keys.writes!r}", ConflictError), scratch() as folder:
        found = {address: switch.rewritten(address, entry, folder) for address, entry in log.manifest.entries.items()}
        manifest = Manifest(found)
        if execute:
            draft, texts = switch.draft(), _schemas_with(keys, tail)
            placed = {"owners": tail.owners, "standbys": tail.standbys, "orders": tail.orders, "weights": tail.weights}
            log.append(replace(draft, schemas=texts, **placed), manifest)  # type: ignore[arg-type]
    steps.append(f"write {len(manifest.entries)} key-groups anew with {keys.writes!r}, and append a record")
    return Plan(tuple(steps), execute, tail.version, tail.offsets)


def _schemas_with(keys: Keys, tail: Record) -> dict[str, Mapping[str, str]]:
    """Return the schemas of a state that was written anew: they say which key its newest parts have."""
    return {name: with_key(text, keys.told) for name, text in tail.schemas.items()}


def _counted(objects: ObjectStore, tail: Record, manifest: Manifest) -> list[str]:
    """Return how many parts, and bytes, there are by key: of all state, and of output rows of the last batch."""
    links = [link for entry in manifest.entries.values() for link in entry.chain] + [link for _, link in tail.outputs]
    parts = [(link.object, link.start, link.length) for link in links] + [
        (paths.snapshot(*address, entry.snapshot.id), 0, entry.snapshot.length)
        for address, entry in manifest.entries.items() if entry.snapshot is not None
    ]  # fmt: skip
    found = in_parallel(lambda part: objects.get(part[0], part[1], min(part[2], HEADER_BYTES_MAX)), parts)
    sizes: dict[str, list[int]] = {}
    for (name, _, length), data in zip(parts, found, strict=True):
        if data is None:
            raise missing(name)
        frame = " (old frame RFE1)" if frame_of(data) == 1 else ""
        sizes.setdefault(key_of(data) + frame, []).append(length)
    return [f"{key}: {len(lengths)} parts, {sum(lengths)} bytes" for key, lengths in sorted(sizes.items())]


def _check_wanted(tail: Record, to: str, total: int) -> None:
    if to not in DISPATCHES:
        raise ConfigError(
            f"there is no dispatch {to!r}", remedy=f"use one of {', '.join(DISPATCHES)}", where="--to", id="RIFFLE-0157"
        )
    keygroups.check_total(total)
    if (tail.dispatch, tail.total) == (to, total):
        raise ConfigError(
            f"the state is that of dispatch {to} with {total} key-groups already",
            remedy="start the query",
            where="--to",
            id="RIFFLE-0158",
        )


@dataclass(frozen=True, slots=True)
class _Switch:
    """One switch of the state that record ``tail`` says."""

    objects: ObjectStore
    tail: Record
    to: str
    total: int
    execute: bool
    keys: Keys | None = None

    def run(self, before: Manifest, partition_of: PartitionOf | None) -> tuple[Manifest, Shards, list[str]]:
        """Return the state as it will be listed, its registry, and what was done or would be."""
        shards = Shards(self.tail.shards)
        by_key = self.to == "key_group"
        if not by_key and (self.tail.dispatch != "key_group" or not before.entries):
            return before, shards.extended((), self.total), ["leave every shard as it is"]
        target: _ByKey | _ByPartition
        target = (
            _ByKey(self.total) if by_key else _ByPartition(self._given(partition_of), self.total, self.tail.offsets)
        )
        entries: dict[Address, Entry] = {}
        steps = []
        for store in sorted({store for store, _ in before.entries}):
            mine = {shard: entry for (name, shard), entry in before.entries.items() if name == store}
            schema = schema_of_text(store, self.tail.schemas[store])
            new = self._moved(schema, mine, target)
            entries |= {(store, shard): entry for shard, entry in new.items()}
            what = "keys" if schema.one_row_a_key else "entries"
            taken = [entry.snapshot for entry in new.values() if entry.snapshot]
            steps.append(
                f"write the state of store {store!r} anew: {sum(s.rows for s in taken)} {what}, "
                f"{sum(s.length for s in taken)} bytes, from {len(mine)} shards to {len(new)}"
            )
        return Manifest(entries), target.shards, steps

    def draft(self) -> Record:
        """Return the record of the switch, but for its registry."""
        return replace(
            self.tail, kind="dispatch", commit_id=uuid.uuid4().hex, written_ms=time.time_ns() // 1_000_000,
            epoch=self.tail.epoch + 1, total=self.total, dispatch=self.to, owners={}, standbys={}, target=None,
            orders=without_key_groups(self.tail.orders), weights={},
        )  # fmt: skip

    def _given(self, partition_of: PartitionOf | None) -> PartitionOf:
        if partition_of is None:
            raise ConfigError(
                f"state of dispatch {self.tail.dispatch} does not say from which partition a key came",
                remedy="give a function from keys to their topic and partition (--partition-of module:function), or "
                "begin with an empty root and replay the input",
                where="--partition-of",
                id="RIFFLE-0159",
            )
        return partition_of

    def _moved(self, schema: StoreSchema, entries: Mapping[int, Entry], shards_of: ShardsOf) -> dict[int, Entry]:
        reader = Reader(self.objects, None, self.keys)
        with scratch() as folder:
            try:
                moved = resharded(schema, entries, reader, shards_of, folder)
                return {
                    shard: Entry(self._put(schema, shard, rows), timer_ms=schema.earliest_ms(rows))
                    for shard, rows in moved
                }
            except SharedKey as found:
                raise self._unmergeable(found) from found

    def rewritten(self, address: Address, entry: Entry, folder: Path) -> Entry:
        """Return a key-group's entry with its state as a new snapshot."""
        store, key_group = address
        schema = schema_of_text(store, self.tail.schemas[store])
        if entry.head == EMPTY_HEAD:
            return entry
        rows = state_of(schema, key_group, entry, Reader(self.objects, None, self.keys), folder)
        return Entry(self._put(schema, key_group, schema.sealed(rows)), timer_ms=entry.timer_ms)

    def _put(self, schema: StoreSchema, shard: int, rows: pa.Table) -> Snapshot:
        attempt = f"{self.tail.epoch + 1}-{uuid.uuid4().hex}"
        head, data = Head(self.tail.version, attempt), part_codec.encode(rows, schema.due)
        snapshot_id = paths.snapshot_id(head.version, attempt)
        if self.keys is not None:
            data = self.keys.sealing()(data, paths.snapshot_place(schema.store, shard, snapshot_id))
        taken = Snapshot(snapshot_id, head, len(data), part_codec.checksum(data), rows.num_rows)
        if self.execute:
            self.objects.put_if_absent(paths.snapshot(schema.store, shard, taken.id), data)
        return taken

    def _unmergeable(self, found: SharedKey) -> ConflictError:
        one, other = (f"{topic}/{partition}" for topic, partition in (self.tail.shards[n] for n in found.shards))
        return ConflictError(
            f"key {found.key} of store {found.where!r} has state of two partitions, {one} and {other}, and nobody can "
            "tell how to make one of them",
            remedy="let your function forget the key in one of them, or begin with an empty root and replay the input",
            where=found.where,
            id="RIFFLE-0160",
        )


class _ByKey:
    """Sends keys to their key-groups. ``shards`` stays empty."""

    def __init__(self, total: int) -> None:
        self.shards = Shards()
        self._total = total

    def __call__(self, source: int, keys: pa.Table) -> npt.NDArray[np.int32]:  # noqa: ARG002 - the key says all
        return keygroups.key_groups(keys.columns, self._total)


class _ByPartition:
    """Sends keys to the shards of the partitions that a user's function names. ``shards`` is their registry."""

    def __init__(self, partition_of: PartitionOf, total: int, offsets: str | None) -> None:
        self._known = partitions_in(offsets)
        self.shards = Shards().extended(self._known or (), total)
        self._partition_of = partition_of
        self._total = total

    def __call__(self, source: int, keys: pa.Table) -> npt.NDArray[np.int32]:  # noqa: ARG002 - the key says all
        told = _asked(self._partition_of, keys)
        if not _asked(self._partition_of, keys.slice(0, _SAMPLE)).equals(told.slice(0, _SAMPLE)):
            raise _refused("names another partition when it is asked again, or asked for fewer keys")
        named = _distinct(told)
        strange = sorted(named - self._known) if self._known else []
        if strange:
            raise _refused(f"names {strange[0][0]}/{strange[0][1]}, of which the query has read nothing")
        self.shards = self.shards.extended(named, self._total)
        return self.shards.of(told.column("topic"), told.column("partition"))


def _asked(partition_of: PartitionOf, keys: pa.Table) -> pa.Table:
    """Return what the function says of each key, checked."""
    try:
        answer = partition_of(keys)
    except Exception as error:
        raise _refused(f"failed: {error!r}") from error
    if isinstance(answer, pa.StructArray):
        answer = pa.Table.from_struct_array(answer)
    if not isinstance(answer, pa.Table) or not set(_TOLD.names) <= set(answer.column_names):
        raise _refused("must return a pyarrow table with the columns topic and partition")
    if answer.num_rows != keys.num_rows:
        raise _refused(f"returned {answer.num_rows} rows for {keys.num_rows} keys")
    try:
        told = cast_table(answer.select(_TOLD.names), _TOLD).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _refused(f"returned what is no topic (text) and partition (whole number): {error}") from error
    if any(column.null_count for column in told.columns):
        raise _refused("returned a null")
    return told


def _distinct(told: pa.Table) -> set[Partition]:
    groups = told.group_by(_TOLD.names).aggregate([])
    return set(zip(groups["topic"].to_pylist(), groups["partition"].to_pylist(), strict=True))


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"the function from keys to partitions {what}",
        remedy="correct the function: it gets a table of key columns, and must name for each key the topic and "
        "partition that its rows come from",
        where="--partition-of",
        id="RIFFLE-0161",
    )
