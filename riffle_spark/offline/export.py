"""Export a store to Parquet files, and load such files into a root (`riffle export`, `riffle state load`).

An export is a folder: files ``part-<key-group>-<number>.parquet``, and at last ``_riffle.json`` with the recorded
schema of the store. The rows are those of a snapshot. A column whose type Parquet lacks is JSON text in the file.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from riffle_spark import keygroups
from riffle_spark.errors import UNREADABLE, ConfigError, ConflictError, CorruptStateError
from riffle_spark.offline.command_errors import machine_clocks, translated_errors
from riffle_spark.offline.recovery import Plan
from riffle_spark.offline.reshard import SharedKey, scratch_folder, shard_rows
from riffle_spark.offline.state_edits import Editor, OpenRoot, open_root
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.state.formats.arrow_schemas import inner_types
from riffle_spark.state.formats.json_keys import array_of_json, json_of_array
from riffle_spark.state.formats.part_codec import checksum, encode
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Entry, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.edits import read_key_group
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text, with_encryption_key
from riffle_spark.worker.member_folders import keys_in

EXPORT_FILE: Final = "_riffle.json"
_FORMAT = 1
_FILE_BYTES = 256 << 20
"""Rows of a key-group that take more memory are split into several files."""
_NOT_MOVED = ("history", "encryption_key")
"""Entries of a recorded schema that belong to the root that was exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: files, rows and bytes, as of batch ``version``, the newest one of the store."""

    files: int
    rows: int
    bytes: int
    version: int


@dataclass(frozen=True, slots=True)
class Export:
    """The description of an export: the store, its recorded schema, and its other entries in the log.

    ``row_count`` is the number of state rows, ``None`` if it is unknown.
    """

    store: str
    text: Mapping[str, str]
    version: int
    row_count: int | None
    event_time: int | None
    initial_states: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def schema(self) -> StoreSchema:
        """The columns of the store."""
        return schema_of_text(self.store, self.text)


def url_of(path: str) -> str:
    """Return the URL of a local path. Return a URL unchanged."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


def export_state(
    root: str, store: str, to: str, *, options: StoreOptions | None = None, encryption_keys: str | None = None
) -> Exported:
    """Write the newest state of a store as Parquet files, which are not encrypted. The query may run during this.

    Args:
        root: where the state is stored.
        store: the name of the store.
        to: an empty folder, as a local path or a URL of an object store.
        options: how to reach both.
        encryption_keys: the setting of the same name.

    Returns:
        How much was written. Memory holds one key-group.

    Raises:
        ConfigError: the root has no such store, or ``to`` is not empty.
        CorruptStateError: objects are damaged, or the query's retention deleted them during the call.
    """
    options = options or StoreOptions()
    opened_root = open_root(root, options, encryption_keys)
    schema = opened_root.schema(store)
    target = open_store(url_of(to), options)
    if target.list(""):
        raise ConfigError(f"{to} is not empty.", remedy="Name an empty folder.", where="--to", id="RIFFLE-1601")
    tail = opened_root.tail
    version = tail.stale_stores.get(store, tail.version)
    text = {name: value for name, value in tail.schemas[store].items() if name not in _NOT_MOVED}
    reader = Reader(opened_root.objects, opened_root.keys)
    files: list[str] = []
    row_count = 0
    byte_count = 0
    for (name, key_group), entry in sorted(opened_root.log.manifest.entries.items()):
        rows = read_key_group(schema, key_group, entry, reader) if name == store else None
        if rows is None or not rows.num_rows:
            continue
        for number, piece in enumerate(_pieces(rows)):
            data = _parquet(piece, {"riffle.store": store, "riffle.schema": json.dumps(text)})
            files.append(f"part-{key_group:05d}-{number}.parquet")
            target.put_if_absent(files[-1], data)
            row_count += piece.num_rows
            byte_count += len(data)
    body = {
        "format": _FORMAT,
        "store": store,
        "schema": text,
        "version": version,
        "row_count": tail.row_counts.get(store),
        "event_time": tail.event_times.get(store),
        "initial_states": list(tail.initial_states.get(store, ())),
        "files": files,
    }
    target.put_if_absent(EXPORT_FILE, json.dumps(body, indent=1).encode())
    return Exported(len(files), row_count, byte_count, version)


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in pieces of a bounded size."""
    count = max(1, -(-rows.nbytes // _FILE_BYTES))
    size = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _parquet(rows: pa.Table, metadata: Mapping[str, str]) -> bytes:
    for index, field in enumerate(rows.schema):
        if not _fits_parquet(field.type):
            values = [json.dumps(value) for column in rows.column(index).chunks for value in json_of_array(column)]
            rows = rows.set_column(index, field.name, pa.array(values, pa.string()))
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink, compression="zstd", store_decimal_as_integer=False)
    return bytes(sink.getvalue())


def _fits_parquet(kind: pa.DataType) -> bool:
    """Return whether Parquet stores values of a type so that they return as they were."""
    if kind == pa.month_day_nano_interval() or (pa.types.is_struct(kind) and not kind.num_fields):
        return False
    return all(map(_fits_parquet, inner_types(kind)))


def read_export(source: ObjectStore, where: str) -> Export:
    """Return the description of the export in ``source``. Raises ``ConfigError`` if there is none that can be read."""
    try:
        data = source.get(EXPORT_FILE)
        if data is None:
            raise ValueError(f"it has no {EXPORT_FILE}")
        body = json.loads(data)
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']!r}")
        text = {str(name): str(value) for name, value in body["schema"].items()}
        count = body["row_count"]
        event_time = body["event_time"]
        for number in (count, event_time, body["version"]):
            if number is not None and type(number) is not int:
                raise TypeError(f"number {number!r}")
        names = tuple(map(str, body["initial_states"]))
        store = paths.check_store_name(body["store"])
        export = Export(store, text, body["version"], count, event_time, names, tuple(map(str, body["files"])))
        schema_of_text(store, text)
    except (CorruptStateError, ConfigError, *UNREADABLE) as error:
        # Cause: The export was not finished, or another program or version wrote it.
        raise ConfigError(
            f"{where} holds no export that can be read: {error}.",
            remedy="Export the store again (riffle export).",
            where=where,
            id="RIFFLE-1602",
        ) from error
    return export


def load_state(
    root: str,
    source: str,
    editor: Editor,
    *,
    key_groups: int,
    store: str | None = None,
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
    execute: bool = False,
) -> Plan:
    """Load an export into a root: a new one, or that of a stopped query without this store.

    Args:
        root: where the state is to be stored.
        source: the folder of the export.
        editor: the operator who loads, and the reason.
        key_groups: the number of key-groups of a new root.
        store: the name that the store gets; ``None`` for that of the export.
        options: how to reach both.
        encryption_keys: the setting of the same name.
        execute: change the root. Without it everything is read and checked, and nothing is written.

    Returns:
        The steps. The query of a new root is bound to it by ``riffle adopt``.

    Raises:
        ConfigError: there is no export, the root has the store, or keys are not dispatched by key-group.
        ConflictError: the query continued during the call.
    """
    options = options or StoreOptions()
    objects = open_store(url_of(source), options)
    export = read_export(objects, source)
    if store is not None:
        export = replace(export, store=paths.check_store_name(store))
    opened_root = _open_or_begin(root, key_groups, options, encryption_keys)
    _check_target(opened_root, export)
    schema = export.schema
    total = opened_root.tail.total
    entries: dict[int, Entry] = {}
    row_count = 0
    is_new = opened_root.log.tail is None
    with translated_errors(opened_root.log, f"load store {export.store!r}", ConflictError), scratch_folder() as folder:
        rows = _rows_of_files(objects, export, schema)
        by_key = lambda _, keys: keygroups.key_groups(keys.columns, total)  # noqa: E731
        try:
            for key_group, state in shard_rows(schema, rows, by_key, folder):
                entries[key_group] = Entry(
                    _put(opened_root, schema, key_group, state, execute), timer_ms=schema.earliest_ms(state)
                )
                row_count += state.num_rows
        except SharedKey as error:
            raise _shared_key_error(export.store, error) from error
        manifest = opened_root.log.manifest.with_entries({(export.store, kg): entry for kg, entry in entries.items()})
        if execute:
            opened_root.log.append(_draft(opened_root, export, editor, row_count), Manifest(manifest.entries))
    steps = [
        f"write {row_count} rows of store {export.store!r}, as of batch {export.version} of the exported query, as "
        f"{len(entries)} snapshots",
        f"append a record with the reason {editor.reason!r}",
    ]
    if is_new:
        steps.append("bind the root to a query: start the query once, stop it when it is refused, and run riffle adopt")
    next_step = "Bind the root to a query (riffle adopt)." if is_new else "Start the query."
    return Plan(tuple(steps), execute, opened_root.tail.version, opened_root.tail.offsets, next_step)


def _shared_key_error(store: str, error: SharedKey) -> ConflictError:
    """Return the error for a key that has state in two key-groups of an export."""
    # Cause: The exported query had dispatch = partition or hashed, and the key had rows in two partitions.
    return ConflictError(
        f"Key {error.key} of store {store!r} has state in two key-groups of the export, {error.shards[0]} and "
        f"{error.shards[1]}, which cannot be merged.",
        remedy="Delete the key in the exported query (riffle state delete), export the store again, and load it into "
        "an empty root.",
        where=store,
        id="RIFFLE-1792",
    )


def _open_or_begin(root: str, key_groups: int, options: StoreOptions, encryption_keys: str | None) -> OpenRoot:
    """Open a root with state, or an empty root with a first record that is not written yet.

    Snapshots of an interrupted load do not count.
    """
    objects = open_store(root, options)
    log = Log(objects, root, machine_clocks)
    if not all(map(paths.is_of_first_version, objects.list(""))) or log.is_started():
        return open_root(root, options, encryption_keys)
    keygroups.check_total(key_groups)
    stamp = Stamp(uuid.uuid4().hex, time.time_ns() // 1_000_000)
    first = first_record("", key_groups, "key_group", stamp)
    return OpenRoot(root, objects, log, first, keys_in(encryption_keys, options.s3.region))


def _check_target(opened_root: OpenRoot, export: Export) -> None:
    """Raise ``ConfigError`` if the root cannot take the store of an export."""
    if export.store in opened_root.tail.schemas:
        raise ConfigError(
            f"{opened_root.root} has state of store {export.store!r}.",
            remedy="Load it into a new root.",
            where=opened_root.root,
            id="RIFFLE-1603",
        )
    if opened_root.tail.dispatch != "key_group":
        # Cause: An export does not have the partitions of its keys.
        raise ConfigError(
            f"The state in {opened_root.root} has dispatch = {opened_root.tail.dispatch}, "
            "and an export has no partitions.",
            remedy="Load it into a new root, and switch that root (riffle dispatch).",
            where=opened_root.root,
            id="RIFFLE-1604",
        )


def _rows_of_files(source: ObjectStore, export: Export, schema: StoreSchema) -> Iterator[tuple[int, pa.Table]]:
    """Yield the exported key-group and the rows of each file."""
    part_schema = schema.part_schema()
    for name in export.files:
        data = source.get(name)
        try:
            if data is None:
                raise ValueError("it is missing")
            table = pq.read_table(pa.BufferReader(data))
            columns = [_stored_column(table, field) for field in part_schema]
            yield int(name.split("-")[1]), pa.table(columns, schema=part_schema)
        except (*UNREADABLE, OSError, pa.ArrowException) as error:
            # Cause: The file was changed or truncated, or is not of this export.
            raise ConfigError(
                f"A file of the export cannot be read: {error}",
                remedy="Export the store again (riffle export).",
                where=name,
                id="RIFFLE-1605",
            ) from error


def _stored_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """Return a column of a file with its stored type."""
    column = table.column(field.name)
    if not _fits_parquet(field.type):
        return array_of_json([json.loads(text) for text in column.to_pylist()], field.with_nullable(True))
    return column if column.type == field.type else column.cast(field.type)


def _put(opened_root: OpenRoot, schema: StoreSchema, key_group: int, rows: pa.Table, execute: bool) -> Snapshot:
    """Return the snapshot of sealed rows. With ``execute``, put its object."""
    head = opened_root.new_head()
    snapshot_id = paths.snapshot_id(head.version, head.attempt)
    data = encode(rows, schema.due)
    if opened_root.keys is not None:
        data = opened_root.keys.new_encryption()(data, paths.snapshot_place(schema.store, key_group, snapshot_id))
    if execute:
        opened_root.objects.put_if_absent(paths.snapshot_name(schema.store, key_group, snapshot_id), data)
    return Snapshot(snapshot_id, head, len(data), checksum(data), rows.num_rows)


def _draft(opened_root: OpenRoot, export: Export, editor: Editor, row_count: int) -> Record:
    """Return the record that lists a loaded store."""
    tail = opened_root.tail
    draft = opened_root.draft(editor.to_record("load", export.store, row_count), tail.row_counts)
    text = export.text if opened_root.keys is None else with_encryption_key(export.text, opened_root.keys.write_key)
    counts = {} if export.row_count is None else {export.store: export.row_count}
    times = {} if export.event_time is None else {export.store: export.event_time}
    states = {export.store: export.initial_states} if export.initial_states else {}
    return replace(
        draft,
        schemas={**draft.schemas, export.store: text},
        row_counts={**tail.row_counts, **counts},
        event_times={**tail.event_times, **times},
        initial_states={**tail.initial_states, **states},
    )
