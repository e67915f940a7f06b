"""Purge keys: remove them from the state of a stopped query, from all its objects and from local files.

Theory of operation.

1. State is read from the object store. Each key-group with a chain of deltas, and each whose snapshot has a key, is
   written as a new snapshot without the keys. No record lists the new snapshots yet.
2. One record lists the new state under a higher epoch. It promises only itself and lists no savepoint, so the
   retention of all earlier versions ends. It also has a new number in the names of local folders, so no
   copy from before is used again.
3. All deltas and snapshots that this record does not list are deleted, and requests with keys. A delta has parts of
   many key-groups, output rows and dead letters, and only some of them are listed. So no delta is kept.
4. Local folders on this machine are removed. The next start of the query removes those of other hosts.

After a crash the command is run again: it deletes what is left. A new record ends the retention of everything before.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.command_errors import translated_errors
from riffle_spark.offline.recovery import Plan
from riffle_spark.offline.state_edits import Editor, KeyChoice, OpenRoot, open_root, read_keys
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import normalised, root_id
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.edits import (
    EditOfState,
    check_edit,
    count_state_rows,
    mask_of_deleted,
    read_key_group,
    touched_key_groups,
)
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_kinds import StoreKind
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.worker.member_folders import remove_copies

_DELETES_PER_REQUEST = 1_000


@dataclass(frozen=True, slots=True)
class _NewState:
    """The state without the purged keys: its entries, the number of removed state rows, and of written key-groups."""

    entries: Mapping[Address, Entry]
    removed_rows: int
    removed_keys: int
    written: int


def purge_keys(  # noqa: PLR0913 - the options of a command
    root: str,
    store: str,
    keys: KeyChoice,
    editor: Editor,
    *,
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
    local_dir: str | None = None,
    delivered: bool | str = False,
    execute: bool = False,
) -> Plan:
    """Remove keys from the state of a stopped query, from all objects below its root and from local files.

    This cannot be undone. All earlier versions end, because they may hold the keys. The old objects are deleted even if
    a key has no state, because they may still hold a key whose state has ended.

    Args:
        root: where the state is stored.
        store: the store of the keys.
        keys: the keys, as for ``delete_keys``.
        editor: the operator who purges, and the reason.
        options: how to reach the object store.
        encryption_keys: the setting of the same name.
        local_dir: the folder with local copies on this machine; ``None`` leaves them to the next start of the query.
        delivered: with ``deliver_after_commit``, whether the newest batch's output was delivered, as ``True`` or as the
            query's checkpoint.
        execute: change the root. Without it everything is read and checked, and nothing is written.

    Returns:
        The steps, and what could not be removed.

    Raises:
        ConfigError: the root has no state, keys or store do not fit, or output may be undelivered.
        ConflictError: the query continued during the call.
    """
    opened_root = open_root(root, options or StoreOptions(), encryption_keys)
    tail = opened_root.tail
    edit = EditOfState(store, read_keys(keys, opened_root.schema(store)))
    _, kind = check_edit(edit, tail.schemas[store])
    _check_delivered(tail, delivered, options or StoreOptions())
    steps: list[str] = []
    with translated_errors(opened_root.log, f"purge keys of store {store!r}", ConflictError):
        new_state = _write_state(opened_root, edit, kind, execute=execute)
        manifest = Manifest(new_state.entries)
        listed_names = manifest.object_names()
        if execute:
            opened_root.log.append(_draft(opened_root, editor, edit, new_state), manifest)
    steps.append(
        f"remove {new_state.removed_keys} of {edit.keys.num_rows} given keys from store {store!r}, and write "
        f"{new_state.written} key-groups as new snapshots"
    )
    steps.append(
        f"append a record with the reason {editor.reason!r}; all versions before it end, and nothing undoes it"
    )
    if tail.savepoints:
        steps.append(f"end the savepoints {', '.join(savepoint.name for savepoint in tail.savepoints)}")
    unlisted = [name for name in opened_root.objects.list("") if _may_hold_keys(name, listed_names)]
    steps.append(f"delete {len(unlisted)} objects: deltas with their output rows and dead letters, snapshots, requests")
    if execute:
        steps += _delete(opened_root.objects, unlisted, listed_names)
        _delete_unfinished(opened_root.root)
    steps += _purge_local(opened_root.root, local_dir, execute=execute)
    steps += _outside(opened_root.root)
    return Plan(tuple(steps), execute, tail.version, tail.offsets, "Start the query.")


def _check_delivered(tail: Record, delivered: bool | str, options: StoreOptions) -> None:
    """Raise ``ConfigError`` if sealed output rows of the newest batch may be undelivered, because they are deleted."""
    if delivered is True or not any(link.rows for _, link in tail.outputs):
        return
    if isinstance(delivered, str):
        spark = Checkpoint(delivered, options)
        if spark.query_id() == tail.query_id and spark.next_batch() > tail.version:
            return
    # Cause: With `deliver_after_commit` the sink gets a batch after its commit, from the sealed rows.
    raise ConfigError(
        f"The output of batch {tail.version} may be undelivered, and a purge deletes its rows.",
        remedy="Start the query once more and stop it, then pass its checkpoint with --checkpoint. Or check the sink, "
        "and pass --delivered.",
        where="deliver_after_commit",
        id="RIFFLE-1600",
    )


def _write_state(opened_root: OpenRoot, edit: EditOfState, kind: StoreKind, *, execute: bool) -> _NewState:
    """Write the state without the keys as snapshots, with ``execute``, and return its entries."""
    tail = opened_root.tail
    manifest = opened_root.log.manifest
    schemas = {name: schema_of_text(name, text) for name, text in tail.schemas.items()}
    touched_numbers = set(touched_key_groups(schemas[edit.store], edit.keys, tail.total, tail.dispatch, manifest))
    reader = Reader(opened_root.objects, opened_root.keys)
    entries: dict[Address, Entry] = {}
    removed_rows = 0
    removed_keys = 0
    written_count = 0
    for (store, key_group), entry in sorted(manifest.entries.items()):
        has_keys = store == edit.store and key_group in touched_numbers
        if entry.head == EMPTY_HEAD or not (entry.chain or has_keys):
            entries[store, key_group] = entry
            continue
        schema = schemas[store]
        rows = read_key_group(schema, key_group, entry, reader)
        if has_keys:
            is_hit = mask_of_deleted(schema, rows, edit.keys)
            if not (is_hit.any() or entry.chain):
                entries[store, key_group] = entry
                continue
            hits = rows.filter(pa.array(is_hit))
            removed_rows += count_state_rows(schema, kind, hits)
            removed_keys += len(schema.encoded(hits).unique())
            rows = rows.filter(pa.array(~is_hit))
        sealed_rows = schema.sealed(rows)
        snapshot = _put(opened_root, schema, key_group, sealed_rows, execute=execute)
        entries[store, key_group] = Entry(snapshot, timer_ms=schema.earliest_ms(sealed_rows) if rows.num_rows else None)
        written_count += 1
    return _NewState(entries, removed_rows, removed_keys, written_count)


def _put(opened_root: OpenRoot, schema: StoreSchema, key_group: int, rows: pa.Table, *, execute: bool) -> Snapshot:
    """Return the snapshot of a key-group's rows. With ``execute``, put its object."""
    head = opened_root.new_head()
    snapshot_id = paths.snapshot_id(head.version, head.attempt)
    data = part_codec.encode(rows, schema.due)
    if opened_root.keys is not None:
        data = opened_root.keys.new_encryption()(data, paths.snapshot_place(schema.store, key_group, snapshot_id))
    if execute:
        opened_root.objects.put_if_absent(paths.snapshot_name(schema.store, key_group, snapshot_id), data)
    return Snapshot(snapshot_id, head, len(data), part_codec.checksum(data), rows.num_rows)


def _draft(opened_root: OpenRoot, editor: Editor, edit: EditOfState, new_state: _NewState) -> Record:
    """Return the record of the purge, which promises only itself."""
    tail = opened_root.tail
    counts = dict(tail.row_counts)
    if edit.store in counts:
        counts[edit.store] -= new_state.removed_rows
    draft = opened_root.draft(editor.to_record("purge", edit.store, edit.keys.num_rows), counts)
    sequence = tail.sequence + 1
    return replace(draft, outputs=(), promised=sequence, purged=sequence, savepoints=(), previous_offsets=None)


def _may_hold_keys(name: str, listed_names: set[str]) -> bool:
    """Return whether an object may hold keys: a delta or snapshot that the new record does not list, or requests."""
    if name == paths.MAILBOX:
        return True
    return paths.parse_object_name(name) is not None and name not in listed_names


def _delete(objects: ObjectStore, names: list[str], listed_names: set[str]) -> list[str]:
    """Delete the objects, and return a step for those that are still there."""
    for start in range(0, len(names), _DELETES_PER_REQUEST):
        objects.delete(names[start : start + _DELETES_PER_REQUEST])
    remaining = [name for name in objects.list("") if _may_hold_keys(name, listed_names)]
    return (
        [f"NOT REMOVED: {len(remaining)} objects, such as {remaining[0]}. Run the command again"] if remaining else []
    )


def _delete_unfinished(root: str) -> None:
    """Delete what crashed puts left below a root on files. A LIST does not show it."""
    scheme, _, folder = normalised(root).partition("://")
    if scheme == "file":
        shutil.rmtree(Path(folder) / ".unfinished", ignore_errors=True)


def _purge_local(root: str, local_dir: str | None, *, execute: bool) -> list[str]:
    """Remove the local copies on this machine; return the steps."""
    pattern = f"{root_id(root)}-*"
    steps = [f"other hosts remove their local copies ({pattern} in local_dir) when the query starts there again"]
    if local_dir is None:
        return steps
    steps.insert(0, f"remove the local copies on this machine: {Path(local_dir) / pattern}")
    remaining = remove_copies(Path(local_dir), root) if execute else []
    return steps + [
        f"NOT REMOVED: {folder}, because a process uses it. Stop it and delete the folder" for folder in remaining
    ]


def _outside(root: str) -> list[str]:
    """Return a step for each place that may hold keys and that the command cannot reach."""
    places = ["copies of the root and backups", "rows in the source and in the sinks, dead-letter tables included"]
    if not root.startswith(("file:", "memory:")):
        places.insert(0, "noncurrent versions of objects, if the bucket keeps versions, and soft-deleted objects")
    places.append("local folders of hosts on which the query never starts again")
    return [f"NOT REMOVED, out of reach: {place}" for place in places]
