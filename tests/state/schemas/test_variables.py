"""Rows of variables are converted to parts and back, in order, also from earlier formats and declarations."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.copies.elements import element_runs, merge_elements
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.nested_keys import encode_nested_keys
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.schemas import variables
from riffle_spark.state.schemas.history import History
from riffle_spark.state.schemas.variable_kinds import (
    DUE,
    INDEX,
    TIMER,
    VARIABLE,
    Kind,
    Variable,
    encoded_keys,
    id_of_key,
    ids_of_keys,
)
from riffle_spark.state.schemas.variables import VariableColumns
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
"""A schema and its rows."""


def canonical(schema: VariableColumns, table: pa.Table) -> list[object]:
    """Return comparable rows: keys as they are encoded, with one zero and one NaN, and all other values unchanged."""
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


def distinct(schema: VariableColumns, table: pa.Table) -> pa.Table:
    """Return the first row of each element, sorted by key, variable and element."""
    ranks = [
        (key, [*(v.name for v in schema.variables), TIMER].index(row[VARIABLE]), rank(schema, row))
        for key, row in zip(schema.encoded(table).to_pylist(), table.to_pylist(), strict=True)
    ]
    first = {place: at for at, place in reversed(list(enumerate(ranks)))}
    return table.take(pa.array([first[place] for place in sorted(first)], pa.int64()))


def rank(schema: VariableColumns, row: dict[str, Any]) -> tuple[object, ...]:
    """Return a value that compares like the element of a row."""
    name = row[VARIABLE]
    if name == TIMER:
        return (row[DUE],)
    variable = schema.by_name[str(name)]
    if variable.key is None:
        return (row[INDEX],) if variable.kind == "list" else ()
    key = row[variable.column]["key"]
    columns = [pa.array([key[field.name]], field.type) for field in variable.key]
    return (encode_nested_keys(columns)[0].as_py(),)


@given(wide_tables())
def test_rows_of_a_part_are_equal_after_a_round_trip(drawn: Drawn) -> None:
    """Rows that are encoded as a part and read back are equal, also from merged parts."""
    schema, table = drawn
    table = distinct(schema, table)
    data = part_codec.encode(schema.sealed(table))
    assert pa.ipc.open_stream(data).schema.metadata[b"riffle.format"] == b"3"
    half = table.num_rows // 2
    pieces = [schema.sealed(table.slice(0, half)), schema.sealed(table.slice(half))]
    runs = (
        [*element_runs(part_codec.open_part(data, ""), schema)],
        [run for piece in pieces for run in element_runs(piece, schema)],
    )
    for part_runs in runs:
        back = schema.to_wide_rows(merge_elements(schema, part_runs, bottom=True))
        back.validate(full=True)
        assert back.schema.equals(schema.part_schema())
        assert repr(canonical(schema, back)) == repr(canonical(schema, table))


@given(wide_tables())
def test_parts_of_the_first_format_are_read(drawn: Drawn) -> None:
    """A part of the first format is sorted when it is opened, and has equal rows."""
    schema, table = drawn
    table = distinct(schema, table)
    data = part_codec.encode(table)
    assert pa.ipc.open_stream(data).schema.metadata == {b"riffle.format": b"1"}
    back = schema.to_wide_rows(
        merge_elements(schema, element_runs(part_codec.open_part(data, ""), schema), bottom=True)
    )
    assert repr(canonical(schema, back)) == repr(canonical(schema, table))


@given(wide_tables())
def test_the_id_of_one_map_key_equals_the_id_in_its_row(drawn: Drawn) -> None:
    """The id of one map key equals the id in its row."""
    schema, table = drawn
    for row in table.to_pylist():
        variable = schema.by_name.get(row[VARIABLE])
        if variable is not None and variable.key is not None:
            structs = pa.array([row[variable.column]], variable.type)
            name = variable.encode_key(tuple(row[variable.column]["key"].values()))
            assert encoded_keys(structs).to_pylist() == [name]
            assert ids_of_keys(structs).tolist() == [id_of_key(name)]


def test_a_part_has_the_documented_layout() -> None:
    """A part is sorted by variable, hash and element, with ids, due orders, and without empty columns."""
    rows: list[dict[str, object]] = [
        {"k": "a", VARIABLE: "many", INDEX: 1, DUE: 4, "__state_many": {"n": 8}},
        {"k": "a", VARIABLE: "many", INDEX: 0, DUE: 5, "__state_many": {"n": 7}},
        {"k": "b", VARIABLE: "many", DELETED: True},
        {"k": "b", VARIABLE: "many", INDEX: 0, "__state_many": {"n": 9}},
        {"k": "a", VARIABLE: TIMER, DUE: 6},
        {"k": "a", VARIABLE: "of", "__state_of": {"key": {"m": "b"}, "value": {"n": 3}}},
    ]
    part = SCHEMA.sealed(table_of(SCHEMA, [{DELETED: False, **row} for row in rows], delta=True))
    a, b = (xxhash.xxh64_intdigest(key, seed=42) for key in (b"a", b"b"))
    assert part.column_names == [
        "__hash", VARIABLE, "k", "__state_many", "__state_of", DELETED, "__element", DUE, "__due_order",
    ]  # fmt: skip
    shown = part.select(["k", VARIABLE, DELETED, "__element", DUE, "__due_order"])
    assert [tuple(row.values()) for row in shown.to_pylist()] == [
        ("a", "many", False, 0, 5, 1),
        ("a", "many", False, 1, 4, 0),
        ("b", "many", True, -(2**63), None, 2),
        ("b", "many", False, 0, None, 3),
        ("a", "of", False, id_of_key(b"\x01b\x00\x00"), None, 0),
        ("a", TIMER, False, 6, None, 0),
    ]
    assert part.column("__hash").to_pylist() == [a, a, b, b, a, a]


def test_a_pickled_schema_equals_the_original() -> None:
    """A pickled schema equals the original without its compiled parts."""
    assert SCHEMA.names[-1] == TIMER
    schema = replace(SCHEMA, history=History((3,), ((("one",), 3),)))
    back = pickle.loads(pickle.dumps(schema))
    assert back == schema
    assert back.names == SCHEMA.names


@pytest.mark.parametrize(
    ("key", "variables", "says"),
    [
        ([("k", pa.string())], [Variable("a", "value", VALUE), Variable("a", "list", VALUE)], "__state_a"),
        ([("__due", pa.int64())], [], "__due"),
        ([("k", pa.string())], [Variable(str(n), "value", VALUE) for n in range(127)], "127"),
        ([("k", pa.string())], [Variable("a", "map", VALUE, pa.schema([("m", pa.time64("us"))]))], "time64"),
        ([("k", pa.string())], [Variable("a", "value", pa.schema([("m", NAMES)]))], "RIFFLE-0392"),
        ([("k", pa.string())], [Variable("a", "value", pa.schema([("m", pa.list_(NAMES))]))], "RIFFLE-0392"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_stored_are_refused(key: list[pa.Field], variables: list[Variable], says: str) -> None:
    """Duplicate names, too many variables, and types that state or keys cannot have are refused."""
    with pytest.raises(ConfigError, match=says):
        VariableColumns("s", pa.schema(key), tuple(variables))


@pytest.mark.parametrize("key", [None, VALUE], ids=["value", "map"])
def test_rows_without_a_struct_have_none_after_fields_changed(key: pa.Schema | None) -> None:
    """Rows without a struct, such as deletions, have none after fields of the variable changed or were hidden."""
    kind: Kind = "value" if key is None else "map"
    before = Variable("v", kind, pa.schema([("n", pa.int32()), ("m", pa.int32())]), key)
    value: dict[str, object] = {"n": 1, "m": 2}
    written = pa.array([value if key is None else {"key": {"n": 5}, "value": value}, None], before.type)
    now = Variable("v", kind, pa.schema([("m", pa.int64()), ("n", pa.int64())]), key)
    for structs, m in ((written, 2), (before.hide_fields(written, {"m"}), None)):
        fitted, nothing = now.fit_to_fields(structs).to_pylist()
        assert nothing is None
        assert (fitted if key is None else fitted["value"]) == {"m": m, "n": 1}


def test_a_map_stored_as_another_kind_is_refused() -> None:
    """A map that was stored as another kind is refused, which parts of old roots may need."""
    before = Variable("v", "value", VALUE)
    with pytest.raises(CorruptStateError, match="RIFFLE-0471"):
        Variable("v", "map", VALUE, VALUE).fit_to_fields(pa.array([{"n": 1}], before.type))


def test_large_parts_are_sorted_by_key_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more bytes than Arrow sorts at once are sorted by key-group, and the parts are equal."""
    rows: list[dict[str, object]] = [
        {"k": f"{kg}{n}", VARIABLE: name, "__state_one": {"n": n} if name == "one" else None, DUE: n if n % 2 else None}
        for kg in range(5) for n in range(kg * 3) for name in ("one", TIMER)
    ]  # fmt: skip
    key_groups = np.array([int(str(row["k"])[0]) for row in rows], np.int32)
    at_once = SCHEMA.sort_by_group(table_of(SCHEMA, rows), key_groups)
    monkeypatch.setattr(variables, "_SORTED_BYTES", 500)  # else the test would take gigabytes
    by_group = SCHEMA.sort_by_group(table_of(SCHEMA, rows), key_groups)
    assert by_group.column(0).num_chunks > 1
    assert by_group.equals(at_once)


def test_rows_of_removed_variables_and_fields_are_left_out() -> None:
    """Rows of removed variables and fields are left out, in parts of every format."""
    before = Variable("many", "list", pa.schema([("gone", pa.string()), ("n", pa.int32())]))
    other = VariableColumns("s", SCHEMA.key, (Variable("two", "value", VALUE), before))
    rows: list[dict[str, object]] = [
        {"k": "a", VARIABLE: "two", "__state_two": {"n": 1}},
        {"k": "a", VARIABLE: "many", INDEX: 3, "__state_many": {"gone": "x", "n": 1}},
    ]
    for table in (table_of(other, rows), other.sealed(table_of(other, rows))):
        back = SCHEMA.to_wide_rows(merge_elements(SCHEMA, element_runs(table, SCHEMA), bottom=True))
        assert [(row[VARIABLE], row[INDEX], row["__state_many"]) for row in back.to_pylist()] == [("many", 3, {"n": 1})]
