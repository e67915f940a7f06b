"""Wide rows: both ways, in order, with long keys, and what a session asks of them one by one."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.nested_keys import encode_nested_keys
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.schemas.variable_keys import NO_DUE, due_key, due_of, index_of
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, TIMER, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.state.drawn_tables import damaged, some
from tests.kit.state.drawn_variables import table_of, wide_tables

NAMES = pa.dictionary(pa.int8(), pa.string())
VALUE = pa.schema([("n", pa.int64())])
SCHEMA = VariableColumns(
    "s",
    pa.schema([("k", pa.string())]),
    (
        Variable("one", "value", VALUE),
        Variable("many", "list", VALUE),
        Variable("of", "map", VALUE, pa.schema([("m", pa.string())])),
    ),
    indexed=True,
)


Drawn = tuple[VariableColumns, pa.Table]
"""A schema, and rows of it."""


def present(values: Sequence[bytes | None]) -> list[bytes]:
    """Return the values of rows of which none is deleted."""
    return [value for value in values if value is not None]


def pairs_of(schema: VariableColumns, table: pa.Table) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes]]:
    """Return what a copy would hold after these rows."""
    rows = schema.encode(table)
    held = {key: value for key, value in zip(rows.keys, rows.values, strict=True) if value is not None}
    longs = {key: whole for key, whole in zip(rows.keys, rows.longs or [], strict=False) if whole is not None}
    return sorted(held.items()), longs


def canonical(schema: VariableColumns, table: pa.Table) -> list[object]:
    """Return rows to be compared: keys as they are encoded, so with one zero and one NaN, the rest as it is."""
    keys = schema.encoded(table).to_pylist()
    rows = table.select(table.column_names[len(schema.key) :]).to_pylist()
    for variable in schema.variables:
        if variable.key is not None:
            entries = table.column(variable.column).combine_chunks()
            of_map = encode_nested_keys(entries.flatten()[0].flatten()).to_pylist()
            for row, key in zip(rows, of_map, strict=True):
                if row[variable.column] is not None:
                    row[variable.column]["key"] = key
    return list(zip(keys, rows, strict=True))


@some
@given(wide_tables())
def test_rows_come_back_from_what_is_stored(drawn: Drawn) -> None:
    """Table to rows to table is the identity, and one row takes nothing from another."""
    schema, table = drawn
    rows = schema.encode(table)
    longs = {key: whole for key, whole in zip(rows.keys, rows.longs or [], strict=False) if whole is not None}
    back = schema.table(list(zip(rows.keys, present(rows.values), strict=True)), longs)
    back.validate(full=True)
    assert back.schema.equals(schema.part_schema())
    assert repr(canonical(schema, back)) == repr(canonical(schema, table))
    assert all(len(key) <= 481 for key in rows.keys)
    again = schema.encode(back)
    assert (again.keys, again.values) == (rows.keys, rows.values)


@some
@given(wide_tables())
def test_rows_come_back_from_the_bytes_of_a_part(drawn: Drawn) -> None:
    """What a part's bytes hold is stored as the table itself is, in one piece or in several with names of their own."""
    schema, table = drawn
    data = part_codec.encode(table)
    back = part_codec.decode(data, part_codec.checksum(data), "a part")
    assert back.schema.equals(table.schema)
    halves = [schema.table(*pairs_of(schema, table.slice(*span))) for span in ((0, 3), (3, 9))]
    both = pa.concat_tables(halves)
    assert schema.encode(back).keys == schema.encode(table).keys
    assert schema.encode(back).values == schema.encode(table).values
    assert sorted(set(schema.encode(both).keys)) == sorted(set(schema.encode(table).keys))


@some
@given(wide_tables())
def test_stored_keys_compare_as_key_variable_and_element_do(drawn: Drawn) -> None:
    """Rows whose keys are not cut sort by key, then variable, then element: numbers by value, texts by their bytes."""
    schema, table = drawn
    encoded, stored = schema.encoded(table), schema.encode(table)
    elements = [
        (
            key,
            [v.name for v in schema.variables].index(row[VARIABLE]) if row[VARIABLE] != TIMER else 255,
            rank(schema, row),
        )
        for key, row in zip(encoded.to_pylist(), table.to_pylist(), strict=True)
    ]
    whole = [at for at in range(table.num_rows) if stored.longs is None or stored.longs[at] is None]
    by_bytes = sorted(whole, key=lambda at: stored.keys[at])
    assert [elements[at] for at in by_bytes] == sorted(elements[at] for at in whole)


def rank(schema: VariableColumns, row: dict[str, Any]) -> tuple[object, ...]:
    """Return what the element of a row compares as."""
    name = row[VARIABLE]
    if name == TIMER:
        return (row[DUE],)
    variable = schema.variable(str(name))
    if variable.key is None:
        return (row[INDEX],) if variable.kind == "list" else ()
    key = row[variable.column]["key"]
    columns = [pa.array([key[field.name]], field.type) for field in variable.key]
    return (encode_nested_keys(columns)[0].as_py(),)


@some
@given(wide_tables())
def test_one_by_one_is_as_all_at_once(drawn: Drawn) -> None:
    """Keys, prefixes, elements and values that are asked for alone are those of the rows."""
    schema, table = drawn
    rows = schema.encode(table)
    longs = {key: whole for key, whole in zip(rows.keys, rows.longs or [], strict=False) if whole is not None}
    groups = schema.group_keys(schema.encoded(table))
    places = schema.places(rows.keys, longs)
    assert places.groups == groups
    assert places.variables == table.column(VARIABLE).to_pylist()
    assert places.keys.schema.equals(schema.key)
    assert schema.group_keys(schema.encoded(places.keys)) == groups
    keys = list(zip(*(table.column(name).to_pylist() for name in schema.key.names), strict=True))
    stored = present(rows.values)
    back = schema.table(list(zip(rows.keys, stored, strict=True)), longs).to_pylist()
    for at, row in enumerate(table.to_pylist()):
        element = element_of(schema, row)
        assert schema.group_key(keys[at]) == groups[at]
        assert places.elements[at] == element
        assert schema.prefix(groups[at], row[VARIABLE]) + element == rows.keys[at]
        if row[VARIABLE] == TIMER:
            continue
        due, value = schema.value(row[VARIABLE], stored[at])
        dues, values = schema.values(row[VARIABLE], [stored[at]])
        assert due == dues[0] == (NO_DUE if row[DUE] is None else row[DUE])
        wanted = back[at][schema.variable(row[VARIABLE]).column]
        wanted = wanted["value"] if schema.variable(row[VARIABLE]).kind == "map" else wanted
        assert repr(value) == repr(tuple(values.to_pylist()[0].values())) == repr(tuple(wanted.values()))
        if schema.variable(row[VARIABLE]).kind == "map":
            found = schema.map_keys(row[VARIABLE], [rows.keys[at]], longs)
            assert schema.map_key(row[VARIABLE], tuple(found.to_pylist()[0].values())) == element


def element_of(schema: VariableColumns, row: dict[str, Any]) -> bytes:
    """Return what follows the prefix in a row's stored key."""
    if row[VARIABLE] == TIMER:
        return due_key(row[DUE])
    variable = schema.variable(row[VARIABLE])
    if variable.kind == "map":
        return schema.map_key(variable.name, tuple(row[variable.column]["key"].values()))
    return int(row[INDEX]).to_bytes(8, "big") if variable.kind == "list" else b""


@some
@given(wide_tables(), st.data())
def test_damaged_pairs_raise_or_are_other_rows(drawn: Drawn, data: st.DataObject) -> None:
    """Bytes changed, cut off or added raise, or read as rows of the schema."""
    schema, table = drawn
    pairs, longs = pairs_of(schema, table)
    pairs = [(damaged(data, key), damaged(data, value)) for key, value in pairs]
    try:
        schema.table(pairs, longs).validate()
    except CorruptStateError:
        return


def test_stored_rows_are_the_documented_bytes() -> None:
    """The bytes of the document are the bytes written."""
    rows: list[dict[str, object]] = [
        {"k": "a", VARIABLE: "one", "__state_one": {"n": 1}},
        {"k": "a", VARIABLE: "many", INDEX: 2, DUE: 5, "__state_many": {"n": None}},
        {"k": "a", VARIABLE: "of", "__state_of": {"key": {"m": "b"}, "value": {"n": 3}}},
        {"k": "a", VARIABLE: TIMER, DUE: 5},
    ]
    stored = SCHEMA.encode(table_of(SCHEMA, rows))
    assert [key.hex(" ") for key in stored.keys] == [
        "01 61 00 00 01",
        "01 61 00 00 02 00 00 00 00 00 00 00 02",
        "01 61 00 00 03 01 62 00 00",
        "01 61 00 00 ff 80 00 00 00 00 00 00 05",
    ]
    assert [value and value.hex(" ") for value in stored.values] == [
        "00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00",
        "80 00 00 00 00 00 00 05 01 00 00 00 00 00 00 00 00",
        "00 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00",
        "80 00 00 00 00 00 00 05",
    ]
    assert (due_of(stored.values[1] or b""), index_of(stored.keys[1])) == (5, 2)


def test_large_tables_go_both_ways_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table holds more than Arrow's 32-bit offsets it is cut, and nothing of it is lost or moved."""
    rows = [
        {"k": f"{n:02}" if n % 5 else "k" * 300 + f"{n:02}", VARIABLE: "many", INDEX: n, "__state_many": {"n": n}}
        for n in range(20)
    ]
    rows[7] = {"k": "07", VARIABLE: "many", DELETED: True}
    batches = [
        table_of(SCHEMA, [{DELETED: False, **row} for row in rows[n : n + 4]], delta=True) for n in (0, 4, 8, 12, 16)
    ]
    table = pa.concat_tables(batches)
    pairs, longs = pairs_of(SCHEMA, table)
    whole, back = SCHEMA.encode(table), SCHEMA.table(pairs, longs)
    monkeypatch.setattr("riffle_spark.state.schemas.variables.PIECE_BYTES_MAX", 100)
    assert SCHEMA.encode(table) == whole
    assert whole.cleared == (7,)
    assert SCHEMA.table(pairs, longs).column("k").num_chunks > 2
    assert SCHEMA.table(pairs, longs).equals(back)


def test_deleted_rows_of_no_element_clear_their_variable() -> None:
    """A list, a map or all timers are cleared by a prefix; a value, or one element, is deleted alone."""
    rows = [
        {"k": "a", VARIABLE: "one", DELETED: True},
        {"k": "a", VARIABLE: "many", DELETED: True},
        {"k": "a", VARIABLE: "many", INDEX: 0, "__state_many": {"n": 1}},
        {"k": "a", VARIABLE: "many", INDEX: 1, DELETED: True},
        {"k": "a", VARIABLE: "of", DELETED: True},
        {"k": "a", VARIABLE: "of", "__state_of": {"key": {"m": None}}, DELETED: True},
        {"k": "a", VARIABLE: TIMER, DELETED: True},
        {"k": "a", VARIABLE: TIMER, DUE: 5, DELETED: True},
    ]
    table = table_of(SCHEMA, [{DELETED: False, **row} for row in rows], delta=True)
    stored = SCHEMA.encode(table)
    assert stored.cleared == (1, 4, 6)
    assert [value is None for value in stored.values] == [True, True, False, True, True, True, True, True]
    group = SCHEMA.group_key(("a",))
    assert [stored.keys[at] for at in stored.cleared] == [SCHEMA.prefix(group, name) for name in ("many", "of", TIMER)]
    assert stored.slice(2, 7).cleared == (2, 4)
    assert stored.slice(2, 4).cleared == ()
    assert stored.slice(2, 4).indexed


def test_a_schema_is_sent_to_other_processes() -> None:
    """It comes back equal, and with what it compiled left behind."""
    SCHEMA.group_key(("a",))
    back = pickle.loads(pickle.dumps(SCHEMA))
    assert back == SCHEMA
    assert back.group_key(("a",)) == SCHEMA.group_key(("a",))


@pytest.mark.parametrize(
    ("key", "variables", "says"),
    [
        ([("k", pa.string())], [Variable("a", "value", VALUE), Variable("a", "list", VALUE)], "__state_a"),
        ([("__due", pa.int64())], [], "__due"),
        ([("k", pa.string())], [Variable(str(n), "value", VALUE) for n in range(127)], "127"),
        ([("k", pa.string())], [Variable("a", "value", pa.schema([]))], "field"),
        ([("k", pa.string())], [Variable("a", "map", VALUE, pa.schema([]))], "field"),
        ([("k", pa.string())], [Variable("a", "map", VALUE, pa.schema([("m", pa.time64("us"))]))], "time64"),
        ([("k", pa.string())], [Variable("a", "value", pa.schema([("m", NAMES)]))], "hold"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_stored_are_refused(key: list[pa.Field], variables: list[Variable], says: str) -> None:
    """Names that are there twice, too many variables, no fields, and types that state or a key cannot be of."""
    with pytest.raises(ConfigError, match=says):
        VariableColumns("s", pa.schema(key), tuple(variables))


def test_rows_of_variables_that_are_gone_are_left_out() -> None:
    """A part may be older than the variables of today; a copy never is."""
    other = VariableColumns("s", SCHEMA.key, (Variable("two", "value", VALUE),))
    table = table_of(other, [{"k": "a", VARIABLE: "two", "__state_two": {"n": 1}}])
    assert SCHEMA.encode(table).keys == []
    with pytest.raises(CorruptStateError):
        other.table([(SCHEMA.prefix(SCHEMA.group_key(("a",)), "of"), b"")], {})
