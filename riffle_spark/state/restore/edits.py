"""Edits of state by an operator: delete keys, or set the value of a key, as rows of a delta.

Theory of operation.

1. The state of each key-group that may hold an edited key is read from the object store.
2. The edit becomes rows of a delta, as a slot would have written them. All parts are put as one object.
3. The entries that list these parts are returned. The caller appends the record that lists them.

So every copy follows an edit as it follows a batch. The head of the edit has the version of the newest batch and an
attempt of its own.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.columns import one_array
from riffle_spark.errors import ConfigError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.json_keys import Misfit, array_of_json
from riffle_spark.state.formats.key_codec import encode_keys, normalise_zeros
from riffle_spark.state.formats.part_codec import DELETED, VARIABLE
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Link, Manifest
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_kinds import StoreKind, kind_of_store, why_not_set
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, TIMER, Variable, encoded_keys
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.unknown_names import check_known


@dataclass(frozen=True, slots=True)
class EditOfState:
    """An edit of keys of a store.

    ``keys`` has a row per key. Its columns are the whole key. For a deletion they may be any of the key's columns that
    include those by which rows are routed: all keys with these values are deleted.

    ``variable`` names one variable of a processor, or is empty for all of them. ``value`` is the value to set as JSON,
    in a list of one element, and empty for a deletion. ``now_ms`` is when a value with a TTL counts as written.
    """

    store: str
    keys: pa.Table
    variable: str = ""
    value: tuple[object, ...] = ()
    now_ms: int = 0

    @property
    def sets(self) -> bool:
        """Whether a value is set. Otherwise keys are deleted."""
        return bool(self.value)


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a root: its objects, the keys that decrypt and encrypt them, and the manifest that lists them."""

    objects: ObjectStore
    keys: Keys | None
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class EditedState:
    """The result of an edit: the changed entries, the number of existing keys, and the number of added rows of state.

    ``rows_added`` counts as ``Record.row_counts`` does, and is negative if rows were removed. ``object`` is the name of
    the delta, empty if nothing changed.
    """

    entries: Mapping[Address, Entry] = field(default_factory=dict)
    keys: int = 0
    rows_added: int = 0
    object: str = ""


@dataclass(frozen=True, slots=True)
class _EditedRows:
    """The rows of a delta for one key-group, and the state after it. Counts are as in ``EditedState``."""

    delta: pa.Table
    state: pa.Table
    keys: int
    rows_added: int


def check_edit(edit: EditOfState, text: Mapping[str, str]) -> tuple[StoreSchema, StoreKind]:
    """Return the schema and the kind of the edited store.

    ``text`` is its recorded schema. Raises ``ConfigError`` if the edit does not fit the kind of store or its columns.
    """
    schema = schema_of_text(edit.store, text)
    kind = kind_of_store(schema, text)
    reason = why_not_set(kind) if edit.sets else None
    if reason is not None:
        raise ConfigError(
            f"Cannot set a value in store {edit.store!r}: {reason}.",
            remedy="Delete the key instead (riffle state delete).",
            where=edit.store,
            id="RIFFLE-1591",
        )
    _check_variable(edit, schema, kind)
    missing = [name for name in schema.routing if name not in edit.keys.column_names]
    if missing or (edit.sets and edit.keys.column_names != schema.key.names):
        needed = ", ".join(schema.key.names if edit.sets else schema.routing)
        # Cause: Without the columns by which rows are routed, the key-group of a key is unknown.
        raise ConfigError(
            f"The keys of store {edit.store!r} lack a column.",
            remedy=f"Give the columns {needed}.",
            where=edit.store,
            id="RIFFLE-1592",
        )
    if edit.sets:
        with _misfits(edit):
            schema.either(lambda plain: _columns_of_value(edit, plain), lambda v: _elements_of_value(edit, v))
    return schema, kind


def _check_variable(edit: EditOfState, schema: StoreSchema, kind: StoreKind) -> None:
    """Raise ``ConfigError`` if ``edit.variable`` does not fit the store."""
    names = () if kind != "processor" else schema.either(lambda _: (), lambda variables: tuple(variables.by_name))
    if edit.variable:
        check_known("variable", [edit.variable], names, source="--variable", where=edit.store)
    elif edit.sets and kind == "processor":
        raise ConfigError(
            f"Store {edit.store!r} has several state variables.",
            remedy=f"Name the variable to set: --variable {' | '.join(names)}.",
            where=edit.store,
            id="RIFFLE-1593",
        )


def edit_state(
    stored: StoredState,
    head: Head,
    schema: StoreSchema,
    kind: StoreKind,
    edit: EditOfState,
    key_groups: Sequence[int],
    *,
    only_present: bool = False,
    is_plan: bool = False,
) -> EditedState:
    """Read the state, put the delta of an edit, and return the entries that list it.

    ``key_groups`` are those that may hold the keys, and ``head`` names the delta. A value is set for a key without
    state too, unless ``only_present`` is set. With ``is_plan`` nothing is put. Raises ``ConfigError`` for a value that
    does not fit a new key, ``CorruptStateError`` if objects of the state are damaged, and the errors of the store.
    """
    links: dict[int, Link] = {}
    timers: dict[int, int | None] = {}
    chunks: list[bytes] = []
    start = key_count = rows_added = 0
    encrypt = stored.keys.new_encryption() if stored.keys is not None else None
    for key_group, state in _read_states(stored, schema, edit, key_groups):
        if only_present and not mask_of_keys(state, edit.keys).any():
            continue
        with _misfits(edit):
            edited = _edit_key_group(schema, kind, edit, state)
        if not edited.delta.num_rows:
            continue
        data = part_codec.encode(schema.sealed(edited.delta), schema.due, packed=True)
        if encrypt is not None:
            data = encrypt(data, paths.delta_place(schema.store, key_group, *head))
        links[key_group] = Link(head, start, len(data), part_codec.checksum(data), edited.delta.num_rows)
        timers[key_group] = schema.earliest_ms(schema.sealed(edited.state)) if edited.state.num_rows else None
        chunks.append(data)
        start += len(data)
        key_count += edited.keys
        rows_added += edited.rows_added
    if not links:
        return EditedState()
    if not is_plan:
        stored.objects.put_if_absent(paths.delta_name(*head), b"".join(chunks))
    entries = {
        (schema.store, key_group): stored.manifest.entry(schema.store, key_group).add_link(link, timers[key_group])
        for key_group, link in links.items()
    }
    return EditedState(entries, key_count, rows_added, paths.delta_name(*head))


def _edit_key_group(schema: StoreSchema, kind: StoreKind, edit: EditOfState, state: pa.Table) -> _EditedRows:
    """Return the delta of an edit in a key-group with this state."""
    return schema.either(
        lambda plain: _edit_rows(edit, plain, kind, state), lambda variables: _edit_elements(edit, variables, state)
    )


def _read_states(
    stored: StoredState, schema: StoreSchema, edit: EditOfState, key_groups: Sequence[int]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the state of each key-group, read one at a time into a temporary folder."""
    for key_group in key_groups:
        entry = stored.manifest.entry(schema.store, key_group)
        if entry.head != EMPTY_HEAD:
            yield key_group, read_key_group(schema, key_group, entry, Reader(stored.objects, stored.keys))
        elif edit.sets:
            yield key_group, schema.part_schema().empty_table()


def read_key_group(schema: StoreSchema, key_group: int, entry: Entry, reader: Reader) -> pa.Table:
    """Return the state of a key-group, with a snapshot's columns. Uses a temporary folder, which is removed."""
    with tempfile.TemporaryDirectory(prefix="riffle-state-") as folder:
        tables = restore_tables(schema, {key_group: entry}, reader, Path(folder))
    return tables.get(key_group, schema.part_schema().empty_table())


def touched_key_groups(schema: StoreSchema, keys: pa.Table, total: int, dispatch: str, manifest: Manifest) -> list[int]:
    """Return the key-groups that may hold the keys, ascending. If the key does not decide, they are all that exist."""
    if dispatch == "key_group":
        numbers = np.unique(keygroups.key_groups([keys.column(name) for name in schema.routing], total))
        return [int(number) for number in numbers]
    return sorted(key_group for store, key_group in manifest.entries if store == schema.store)


def mask_of_keys(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose values in the columns of ``keys`` are those of one of ``keys``.

    Nulls are equal, NaN are equal, and 0.0 equals -0.0.
    """
    names = keys.column_names
    encoded_keys = encode_keys([one_array(keys.column(name)) for name in names])
    stored = encode_keys([one_array(rows.column(name)) for name in names])
    mask: npt.NDArray[np.bool_] = pc.is_in(stored, value_set=encoded_keys).to_numpy(zero_copy_only=False)
    return mask


def mask_of_deleted(schema: StoreSchema, rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of a key-group that are deleted with ``keys``. Groups are deleted with their values.

    A group of an aggregate with DISTINCT and each value that it counted are keys of their own. Without the group, the
    values would not count again.
    """
    mask = mask_of_keys(rows, keys)
    element_columns = schema.key.names[len(schema.routing) :]
    if element_columns:
        is_group = rows.column(element_columns[0]).is_null().to_numpy()
        groups = rows.filter(pa.array(mask & is_group)).select(schema.routing)
        mask |= mask_of_keys(rows, groups)
    return mask


def _edit_rows(edit: EditOfState, schema: PlainColumns, kind: StoreKind, state: pa.Table) -> _EditedRows:
    """Return the delta of an edit in a store with one row per key."""
    is_hit = mask_of_deleted(schema, state, edit.keys)
    hits = state.filter(pa.array(is_hit))
    rest = state.filter(pa.array(~is_hit))
    if edit.sets:
        rows = _row_to_set(edit, schema, hits)
        delta = rows.append_column(pa.field(DELETED, pa.bool_()), pa.array([False]))
        delta = delta.cast(schema.part_schema(delta=True))
        return _EditedRows(delta, pa.concat_tables([rest, rows]), 1, 1 - hits.num_rows)
    nulls = [pa.nulls(hits.num_rows, column.type) for column in schema.state]
    columns = [*hits.select(schema.key.names).columns, *nulls, pa.array(np.ones(hits.num_rows, np.bool_))]
    return _EditedRows(
        pa.table(columns, schema=schema.part_schema(delta=True)), rest, hits.num_rows, -_count_rows(schema, kind, hits)
    )


def count_state_rows(schema: StoreSchema, kind: StoreKind, rows: pa.Table) -> int:
    """Return how many state rows the rows of a snapshot are, as ``Record.row_counts`` counts them.

    Sessions are lists in one row per key. Elements of variables count without timers.
    """
    return schema.either(lambda plain: _count_rows(plain, kind, rows), lambda _: _count_elements(rows))


def _count_rows(schema: PlainColumns, kind: StoreKind, rows: pa.Table) -> int:
    """Return ``count_state_rows`` of a store with one row per key."""
    if kind != "session":
        return int(rows.num_rows)
    lists = next(name for name in schema.state.names if name != schema.due)
    return int(pc.sum(pc.list_value_length(rows.column(lists))).as_py() or 0)


@contextmanager
def _misfits(edit: EditOfState) -> Iterator[None]:
    """Convert a ``Misfit`` of the block to a ``ConfigError`` with the column and the expected type."""
    try:
        yield
    except Misfit as error:
        raise ConfigError(
            f"The value does not fit store {edit.store!r}: {error}.",
            remedy="Give the value as JSON of this type. Bytes are an object with base64, dates and times are texts.",
            where=edit.store,
            id="RIFFLE-1594",
        ) from error


def _columns_of_value(edit: EditOfState, schema: PlainColumns) -> dict[str, pa.Array]:
    """Return the state columns that a value has, with one row. Raises ``Misfit`` and ``ConfigError``."""
    (value,) = edit.value
    if not isinstance(value, dict):
        raise Misfit("the value", f"a JSON object with the columns {', '.join(schema.state.names)}")
    check_known("column", value, schema.state.names, source="--value", where=edit.store)
    return {name: array_of_json([item], schema.state.field(name)) for name, item in value.items()}


def _row_to_set(edit: EditOfState, schema: PlainColumns, before: pa.Table) -> pa.Table:
    """Return the row of a key with a value, with a snapshot's columns.

    ``before`` is the key's present row, if any. Columns that the value omits stay, and are null in a new key.
    """
    values = _columns_of_value(edit, schema)
    for column in schema.state:
        if column.name not in values:
            new = before.column(column.name) if before.num_rows else array_of_json([None], column)
            values[column.name] = one_array(new)
    key = normalise_zeros(edit.keys.select(schema.key.names), schema.key.names)
    return pa.table([*key.columns, *(values[name] for name in schema.state.names)], schema=schema.part_schema())


def _elements_of_value(edit: EditOfState, schema: VariableColumns) -> pa.Table:
    """Return the elements of a variable's value. Raises ``Misfit``."""
    variable = schema.by_name[edit.variable]
    structs, indexes = _structs_of_value(variable, edit.value[0])
    count = len(structs)
    dues = pa.nulls(count, pa.int64())
    if variable.ttl_ms is not None:
        dues = pa.array([edit.now_ms + variable.ttl_ms] * count, pa.int64())
    key = normalise_zeros(edit.keys.select(schema.key.names), schema.key.names)
    return _wide_rows(
        schema, key.take(pa.array(np.zeros(count, np.int64))), [variable.name] * count, indexes, dues, variable, structs
    )


def _structs_of_value(variable: Variable, value: object) -> tuple[pa.StructArray, pa.Array]:
    """Return the elements of a JSON value as structs, and their indexes in a list. Raises ``Misfit``."""
    items: list[object] = [value]
    if variable.kind == "list":
        if not isinstance(value, list):
            raise Misfit(variable.name, "a JSON list of its elements")
        items = value
    elif variable.kind == "map":
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list) or any(not isinstance(p, list | tuple) or len(p) != 2 for p in pairs):
            raise Misfit(variable.name, "a JSON object, or a list of [key, value] pairs")
        assert variable.key is not None, "a map has a key"
        items = [{"key": _by_field(key, variable.key), "value": _by_field(item, variable.value)} for key, item in pairs]
    if variable.kind != "map":
        items = [_by_field(item, variable.value) for item in items]
    structs = array_of_json(items, pa.field(variable.name, variable.type, nullable=False))
    if variable.kind == "map" and len(pc.unique(encoded_keys(structs))) < len(structs):
        raise Misfit(variable.name, "a map with different keys")
    indexes = pa.array(range(len(items)), pa.int64()) if variable.kind == "list" else pa.nulls(len(items), pa.int64())
    return structs, indexes


def _by_field(value: object, fields: pa.Schema) -> object:
    """Return a JSON value as an object by field. The value of a single field need not be one."""
    if len(fields) == 1 and not (isinstance(value, dict) and value.keys() == set(fields.names)):
        return {fields.names[0]: value}
    return value


def _edit_elements(edit: EditOfState, schema: VariableColumns, state: pa.Table) -> _EditedRows:
    """Return the delta of an edit in a store of variables.

    A deleted or replaced variable is cleared by one row per key. Timers are deleted one by one.
    """
    is_hit = mask_of_keys(state, edit.keys)
    key_count = len(pc.unique(schema.encoded(state.filter(pa.array(is_hit)))))
    if edit.variable:
        names = state.column(VARIABLE).cast(pa.string())
        is_hit &= pc.equal(names, edit.variable).to_numpy()
    hits = state.filter(pa.array(is_hit))
    rest = state.filter(pa.array(~is_hit))
    # The row of a value replaces the row before. Lists and maps have an element per row, so they are cleared first.
    is_value = edit.sets and schema.by_name[edit.variable].kind == "value"
    delta = _clearing_rows(schema, hits.slice(0, 0) if is_value else hits)
    rows = schema.part_schema().empty_table()
    if edit.sets:
        rows = _elements_of_value(edit, schema)
        key_count = 1
        written = rows.append_column(pa.field(DELETED, pa.bool_()), pa.array(np.zeros(rows.num_rows, np.bool_)))
        delta = pa.concat_tables([delta, written])
    elif edit.variable:
        key_count = len(pc.unique(schema.encoded(hits)))
    return _EditedRows(delta, pa.concat_tables([rest, rows]), key_count, _count_elements(rows) - _count_elements(hits))


def _count_elements(rows: pa.Table) -> int:
    """Return the number of wide rows that are not timers."""
    return int(pc.sum(pc.not_equal(rows.column(VARIABLE).cast(pa.string()), TIMER)).as_py() or 0)


def _clearing_rows(schema: VariableColumns, hits: pa.Table) -> pa.Table:
    """Return the rows of a delta that delete the elements ``hits``: one per key and variable, and one per timer."""
    names = hits.column(VARIABLE).cast(pa.string())
    is_timer = pc.equal(names, TIMER).to_numpy()
    separator = pa.scalar(b"", pa.large_binary())
    texts = one_array(names).cast(pa.large_binary())
    # No stored key is a prefix of another, so key and variable need no separator.
    codes = pc.dictionary_encode(pc.binary_join_element_wise(schema.encoded(hits), texts, separator)).indices.to_numpy()
    _, firsts = np.unique(codes, return_index=True)
    is_first = np.zeros(hits.num_rows, np.bool_)
    is_first[firsts] = True
    rows = hits.filter(pa.array(is_timer | is_first))
    is_timer = is_timer[is_timer | is_first]
    dues = pa.array(rows.column(DUE).fill_null(0).to_numpy(), mask=~is_timer)
    variables = rows.column(VARIABLE).cast(pa.string()).to_pylist()
    indexes = pa.nulls(rows.num_rows, pa.int64())
    cleared = _wide_rows(schema, rows.select(schema.key.names), variables, indexes, dues, None, None)
    return cleared.append_column(pa.field(DELETED, pa.bool_()), pa.array(np.ones(rows.num_rows, np.bool_)))


def _wide_rows(
    schema: VariableColumns,
    keys: pa.Table,
    names: Sequence[str],
    indexes: pa.Array,
    dues: pa.Array,
    variable: Variable | None,
    structs: pa.StructArray | None,
) -> pa.Table:
    """Return wide rows of these keys and variables. Only the column of ``variable`` has values: ``structs``."""
    numbers = np.array([schema.names.index(name) for name in names], np.int64)
    columns = {VARIABLE: schema.name_variables(numbers), INDEX: indexes, DUE: dues}
    if variable is not None and structs is not None:
        columns[variable.column] = structs
    part = schema.part_schema()
    return pa.table(
        [
            keys.column(field.name)
            if field.name in schema.key.names
            else columns.get(field.name, pa.nulls(len(names), field.type))
            for field in part
        ],
        schema=part,
    )
