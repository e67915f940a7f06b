"""Delete keys of a stopped query's state, or set the value of a key (`riffle state delete`, `riffle state set`).

The change is one delta and one record under a higher epoch, as for the other commands that change a root. So it fences
a driver that still runs, and a rollback to the record before it undoes it. The record has the operator and the reason,
and no key.
"""

import getpass
import json
import re
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from riffle_spark.errors import ConfigError, ConflictError, command
from riffle_spark.offline.command_errors import machine_clocks, translated_errors
from riffle_spark.offline.recovery import Plan
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.json_keys import parse_json, parse_key
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.edits import (
    EditedState,
    EditOfState,
    StoredState,
    check_edit,
    edit_state,
    touched_key_groups,
)
from riffle_spark.state.schemas.store_schema import (
    StoreSchema,
    read_encryption_key,
    schema_of_text,
    with_encryption_key,
)
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import keys_in

_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The keys that a command names: ``text`` of one key as JSON, or the Parquet ``file`` with a row per key."""

    text: str | None = None
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Editor:
    """The operator who changes state, and the reason. The record of the change has both."""

    reason: str
    user: str = ""
    host: str = ""

    @classmethod
    def of_process(cls, reason: str, key: str | None = None) -> "Editor":
        """Return the user and host of this process with a reason.

        Raises ``ConfigError`` for an unusable reason, or one that has ``key`` as a word.
        """
        if not reason.strip() or len(reason) > _REASON_MAX or not reason.isprintable():
            raise ConfigError(
                "The reason is empty, longer than 200 characters, or has unprintable characters.",
                remedy="Give a short reason, such as the number of a ticket. Do not write keys into it.",
                where="--reason",
                id="RIFFLE-1595",
            )
        word = (key or "").strip('"')  # a text may be given as JSON
        if word and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reason):
            raise ConfigError(
                "The reason names the key, and the log keeps the reason.",
                remedy="Give a reason without the key. If it is the number of a ticket, attach it to a word: ticket_7.",
                where="--reason",
                id="RIFFLE-1609",
            )
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):
            user = ""
        return cls(reason, user, socket.gethostname())

    def to_record(self, action: str, store: str, keys: int) -> dict[str, object]:
        """Return the ``edit`` of a record: the action, the store, the number of keys, the operator and the reason."""
        return {
            "action": action,
            "store": store,
            "keys": keys,
            "user": self.user,
            "host": self.host,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class OpenRoot:
    """A root that a command changes: its objects, its log with the newest record ``tail``, and its keys."""

    root: str
    objects: ObjectStore
    log: Log
    tail: Record
    keys: Keys | None

    @property
    def stored(self) -> StoredState:
        """The state as of the newest record."""
        return StoredState(self.objects, self.keys, self.log.manifest)

    def schema(self, store: str) -> StoreSchema:
        """Return the recorded schema of a store. Raises ``ConfigError`` for an unknown store."""
        check_known("store", [store], self.tail.schemas, source="--store", where=self.root)
        return schema_of_text(store, self.tail.schemas[store])

    def new_head(self) -> Head:
        """Return a new head after the newest record, of the epoch that the command claims."""
        return Head(self.tail.version, f"{self.tail.epoch + 1}-{uuid.uuid4().hex}")

    def draft(self, edit: Mapping[str, object], row_counts: Mapping[str, int]) -> Record:
        """Return the record of a change, which claims the next epoch."""
        schemas = self.tail.schemas
        if self.keys is not None:
            key = self.keys.write_key
            schemas = {name: with_encryption_key(text, key) for name, text in schemas.items()}
        return replace(
            self.tail,
            kind="state",
            commit_id=uuid.uuid4().hex,
            written_ms=time.time_ns() // 1_000_000,
            epoch=self.tail.epoch + 1,
            target=None,
            schemas=schemas,
            row_counts=row_counts,
            edit=edit,
        )


def open_root(root: str, options: StoreOptions, encryption_keys: str | None) -> OpenRoot:
    """Open the root of a stopped query. ``encryption_keys`` is the setting.

    Raises ``ConfigError`` if it has no state, or is encrypted and no keys are set.
    """
    root = only_root(root, options)
    objects = open_store(root, options)
    keys = keys_in(encryption_keys, options.s3.region)
    log = Log(objects, root, machine_clocks)
    tail = log.open()
    if tail is None:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(f"{root} holds no state.", remedy="Correct the root.", where=root, id="RIFFLE-1596")
    encrypted_store = next((store for store, text in tail.schemas.items() if read_encryption_key(text)), None)
    if keys is None and encrypted_store is not None:
        raise ConfigError(
            f"The state of store {encrypted_store!r} is encrypted, but encryption_keys is not set.",
            remedy="Set encryption_keys in the settings file.",
            where="encryption_keys",
            id="RIFFLE-1597",
        )
    return OpenRoot(root, objects, log, tail, keys)


def delete_keys(
    root: str,
    store: str,
    keys: KeyChoice,
    editor: Editor,
    *,
    variable: str = "",
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
    execute: bool = False,
) -> Plan:
    """Delete keys from a store of a stopped query. A rollback to the record before returns them.

    Args:
        root: where the state is stored.
        store: the store of the keys.
        keys: the keys. A file may omit key columns by which rows are not routed; then it names all keys with its
            values.
        editor: the operator who deletes, and the reason.
        variable: delete only this variable of a processor. Otherwise all variables and timers of the keys.
        options: how to reach the object store.
        encryption_keys: the setting of the same name.
        execute: change the root. Without it everything is read and checked, and nothing is written.

    Returns:
        The steps. Without a key that has state nothing is written.

    Raises:
        ConfigError: the root has no state, or keys, store or variable do not fit.
        ConflictError: the query continued during the call.

    Example:
        >>> delete_keys("s3://bucket/visits", "visits", KeyChoice("ann"), Editor("ticket 7"))  # doctest: +SKIP
    """
    opened_root = open_root(root, options or StoreOptions(), encryption_keys)
    edit = EditOfState(store, read_keys(keys, opened_root.schema(store)), variable)
    return _change(opened_root, edit, editor, execute=execute)


def set_value(  # noqa: PLR0913 - the options of a command
    root: str,
    store: str,
    key: str,
    value: str,
    editor: Editor,
    *,
    variable: str = "",
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
    execute: bool = False,
) -> Plan:
    """Set the value of a key in a store of a stopped query. A rollback to the record before undoes it.

    ``key`` and ``value`` are JSON (docs/repair.md). The value is an object by state column. Columns that it omits stay.
    For a processor ``variable`` names the variable. A value with a TTL counts as written in the newest batch. Other
    arguments, the result and the errors are those of ``delete_keys``.
    """
    opened_root = open_root(root, options or StoreOptions(), encryption_keys)
    keys = read_keys(KeyChoice(key), opened_root.schema(store))
    edit = EditOfState(store, keys, variable, (parse_value(value),), opened_root.tail.edited_ms)
    return _change(opened_root, edit, editor, execute=execute)


def parse_value(text: str, *, exact: bool = True) -> object:
    """Return the JSON value of a text, with exact decimals or with floats. Raises ``ConfigError`` for other text."""
    try:
        return parse_json(text) if exact else json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"The value is not JSON: {error}.",
            remedy="Give a JSON object by state column, or the value of a variable.",
            where="--value",
            id="RIFFLE-1598",
        ) from error


def _change(opened_root: OpenRoot, edit: EditOfState, editor: Editor, *, execute: bool) -> Plan:
    tail = opened_root.tail
    action = "set" if edit.sets else "delete"
    schema, kind = check_edit(edit, tail.schemas[edit.store])
    manifest = opened_root.log.manifest
    key_groups = touched_key_groups(schema, edit.keys, tail.total, tail.dispatch, manifest)
    by_key = tail.dispatch == "key_group"
    with translated_errors(opened_root.log, f"{action} keys of store {edit.store!r}", ConflictError):
        edit_result = edit_state(
            opened_root.stored,
            opened_root.new_head(),
            schema,
            kind,
            edit,
            key_groups,
            only_present=not by_key,
            is_plan=not execute,
        )
        if not edit_result.keys:
            return Plan((_nothing_to_do(edit, by_key=by_key),), execute, tail.version, tail.offsets)
        if execute:
            record = editor.to_record(action, edit.store, edit_result.keys)
            if edit.variable:
                record["variable"] = edit.variable
            draft = opened_root.draft(record, _row_counts(tail, edit.store, edit_result))
            opened_root.log.append(draft, manifest.with_entries(edit_result.entries))
    subject = f"variable {edit.variable!r} of " if edit.variable else ""
    undo = command(
        "rollback", "--execute", root=opened_root.root, to=f"record:{tail.sequence}", checkpoint="CHECKPOINT"
    )
    steps = (
        f"{action} {subject}{edit_result.keys} of {edit.keys.num_rows} given keys in store {edit.store!r}, in "
        f"{len(edit_result.entries)} key-groups, as of batch {tail.version}",
        f"append a record with the reason {editor.reason!r}; while record {tail.sequence} is retained, this undoes it: "
        f"{undo}",
    )
    return Plan(steps, execute, tail.version, tail.offsets, "Start the query.")


def _nothing_to_do(edit: EditOfState, *, by_key: bool) -> str:
    """Return the step of a change that found no key."""
    if edit.sets and not by_key:
        return "change nothing: the key has no state, and its partition is unknown, so it cannot be added"
    return f"change nothing: none of the {edit.keys.num_rows} given keys has state in store {edit.store!r}"


def _row_counts(tail: Record, store: str, edited: EditedState) -> dict[str, int]:
    """Return the row counts after a change."""
    counts = dict(tail.row_counts)
    if store in counts:
        counts[store] += edited.rows_added
    return counts


def read_keys(keys: KeyChoice, schema: StoreSchema) -> pa.Table:
    """Return the named keys as a table of key columns. Raises ``ConfigError`` if they do not fit the store."""
    if keys.text is not None:
        return parse_key(keys.text, schema.key, schema.store, schema.routing)
    assert keys.file is not None, "a choice has a text or a file"
    try:
        table = pq.read_table(keys.file)
        check_known("column", table.column_names, schema.key.names, source="the file", where=str(keys.file))
        key_schema = pa.schema([field for field in schema.key if field.name in table.column_names])
        return cast_table(table.select(key_schema.names), key_schema).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"The file of keys cannot be read: {error}",
            remedy=f"Write a Parquet file with the columns {', '.join(f'{f.name} ({f.type})' for f in schema.key)}.",
            where=str(keys.file),
            id="RIFFLE-1599",
        ) from error
