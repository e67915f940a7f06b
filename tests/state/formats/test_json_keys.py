"""Keys and values of state are converted to JSON text and back."""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.json_keys import Misfit, array_of_json, json_of_array, parse_json, parse_key
from tests.kit.state.drawn_tables import KEY_TYPES, LEAVES, keys, nested

TEXT = pa.schema([("user", pa.string())])
PAIR = pa.schema([("id", pa.int64()), ("name", pa.string())])
BYTES = pa.schema([("id", pa.binary())])


def parsed(text: str, key: pa.Schema) -> list[object]:
    """Return the values of a key by column."""
    return list(parse_key(text, key, "totals").to_pylist()[0].values())


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("ann", TEXT, ["ann"]),
        ("", TEXT, [""]),
        ("null", TEXT, ["null"]),
        ("7", TEXT, ["7"]),
        ('"ann"', TEXT, ['"ann"']),
        ("[null]", TEXT, [None]),
        ('["[null]"]', TEXT, ["[null]"]),
        ('{"user": null}', TEXT, [None]),
        ('["[1]"]', TEXT, ["[1]"]),
        ('[7, "a"]', PAIR, [7, "a"]),
        ('{"name": null, "id": 7}', PAIR, [7, None]),
        ('{"base64": "AP8="}', BYTES, [b"\x00\xff"]),
        ('[{"base64": ""}]', BYTES, [b""]),
        ("null", BYTES, [None]),
        ('{"id": null}', BYTES, [None]),
        ("7", pa.schema([("n", pa.int32())]), [7]),
        ("[7]", pa.schema([("n", pa.int32())]), [7]),
        ("2026-01-31", pa.schema([("d", pa.date32())]), [date(2026, 1, 31)]),
        ("1.50", pa.schema([("d", pa.decimal128(9, 2))]), [Decimal("1.50")]),
    ],
)
def test_a_single_text_key_is_plain_text_and_other_keys_are_json(
    text: str, key: pa.Schema, expected: list[object]
) -> None:
    """The text of a single text column is the key itself; other keys are JSON by position or by column."""
    assert parsed(text, key) == expected


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("[1]", TEXT, "user must be string"),
        ('{"usr": "a"}', TEXT, "no column 'usr'"),
        ("[7]", PAIR, "2 columns, and 1 values"),
        ('{"id": 7}', PAIR, "column 'name' is missing"),
        ('{"id": 7, "name": "a", "x": 1}', PAIR, "no column 'x'"),
        ("7, a", PAIR, "not JSON"),
        ('["7", "a"]', PAIR, "id must be int64"),
        ("[7.5, null]", PAIR, "id must be int64"),
        ("[true, null]", PAIR, "id must be int64"),
        ("[9223372036854775808, null]", PAIR, "id must be int64"),
        ("[7, 8]", PAIR, "name must be string"),
        ('"a"', BYTES, "id must be binary"),
        ('{"base64": "%"}', BYTES, "id must be binary"),
        ("[" * 100_000, PAIR, "not JSON"),
        ('[7, "\\ud800"]', PAIR, "name must be string"),
    ],
)
def test_a_key_that_does_not_fit_names_the_column_and_its_type(text: str, key: pa.Schema, problem: str) -> None:
    """The error names the column and its type, and how to write a key."""
    with pytest.raises(ConfigError, match="does not fit store 'totals'") as error:
        parsed(text, key)
    assert problem in error.value.problem
    assert key.names[0] in error.value.remedy
    assert error.value.id == "RIFFLE-1590"


@given(keys())
def test_the_text_of_a_key_parses_to_the_same_key(columns: list[pa.Array]) -> None:
    """The text that is shown for a key parses to the same key."""
    schema = pa.schema([(f"k{index}", column.type) for index, column in enumerate(columns)])
    table = pa.table(columns, schema=schema)
    shown = [json_of_array(column) for column in columns]
    for row in range(table.num_rows):
        text = json.dumps([values[row] for values in shown])
        read = parse_key(text, schema, "totals")
        assert repr(read.to_pylist()) == repr(table.slice(row, 1).to_pylist()), text


@given(st.data())
def test_values_of_every_type_are_equal_after_a_json_round_trip(data: st.DataObject) -> None:
    """Values of every type that state may hold, nested or not, are equal after a round trip through JSON."""
    kind, values = data.draw(nested({**LEAVES, **KEY_TYPES}))
    array = pa.array(data.draw(st.lists(st.one_of(st.none(), values), max_size=4)), kind)
    start = data.draw(st.integers(0, len(array)))
    sliced = array.slice(start)
    read = array_of_json(parse_json(json.dumps(json_of_array(sliced))), pa.field("x", kind))  # type: ignore[arg-type]
    read.validate(full=True)
    assert read.type == kind
    assert repr(json_of_array(read)) == repr(json_of_array(sliced))
    assert read.equals(sliced) or "nan" in repr(sliced.to_pylist())


def test_text_that_is_not_utf8_is_shown_as_base64() -> None:
    """Text that is not UTF-8 is shown as base64, which is converted back to the same bytes."""
    array = pa.array([b"\xff", b"a", None]).view(pa.string())
    shown = json_of_array(array)
    assert shown == [{"base64": "/w=="}, "a", None]
    assert array_of_json(shown, pa.field("x", pa.string())).view(pa.binary()).to_pylist() == [b"\xff", b"a", None]


def test_the_error_for_a_wrong_value_names_the_nested_field() -> None:
    """The error for a value that does not fit has the path of the nested field and does not repeat the value."""
    kind = pa.struct([("rows", pa.list_(pa.struct([("n", pa.int32())])))])
    with pytest.raises(Misfit, match=r"^x\.rows\.\w+\.n must be int32$") as error:
        array_of_json([{"rows": [{"n": "secret"}]}], pa.field("x", kind))
    assert "secret" not in str(error.value)
    with pytest.raises(Misfit, match="no field 'm'"):
        array_of_json([{"m": 1}], pa.field("x", kind))
    with pytest.raises(Misfit, match="not null"):
        array_of_json([None], pa.field("x", kind, nullable=False))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), True),
        (pa.float64(), "many"),
        (pa.decimal128(9, 2), True),
        (pa.decimal128(9, 2), "x"),
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.null(), 0),
        (pa.month_day_nano_interval(), "1 day"),
        (pa.list_(pa.int64()), 7),
        (pa.list_(pa.int64(), 2), [1]),
        (pa.map_(pa.string(), pa.int64()), [["a"]]),
        (pa.map_(pa.int64(), pa.int64()), {"1": 1}),
        (pa.struct([("n", pa.int64())]), [1]),
        (pa.dictionary(pa.int32(), pa.string()), "a"),
    ],
    ids=str,
)
def test_a_json_value_of_another_type_is_refused_with_the_type(kind: pa.DataType, value: object) -> None:
    """A JSON value of another type is refused, also if Python would convert it, and the error has the type."""
    with pytest.raises(Misfit, match=rf"^x must be {re.escape(str(kind))}"):
        array_of_json([None, value], pa.field("x", kind))


def test_numbers_that_json_lacks_are_text() -> None:
    """NaN and infinities are text in JSON, also of half floats, and are read back."""
    shown = json_of_array(pa.array([float("nan"), float("inf"), float("-inf"), 1.5, None]))
    assert shown == ["NaN", "Infinity", "-Infinity", 1.5, None]
    read = array_of_json(parse_json(json.dumps(shown)), pa.field("x", pa.float64()))  # type: ignore[arg-type]
    assert repr(read.to_pylist()) == "[nan, inf, -inf, 1.5, None]"
    assert json_of_array(pa.array(np.array([1.5, np.nan], np.float16))) == [1.5, "NaN"]


def test_maps_with_text_keys_may_be_objects_and_dictionaries_are_plain_values() -> None:
    """A map with text keys may be a JSON object, and a dictionary column is shown as its values."""
    kind = pa.map_(pa.string(), pa.int64())
    read = array_of_json([{"a": 1, "b": None}, [["c", 2]], None], pa.field("x", kind))
    assert read.to_pylist() == [[("a", 1), ("b", None)], [("c", 2)], None]
    assert json_of_array(pa.array(["a", None, "a"]).dictionary_encode()) == ["a", None, "a"]


def test_the_columns_that_route_a_key_are_enough() -> None:
    """A key may be given by the columns that route it alone, or by all its columns."""
    key = pa.schema([("user", pa.string()), ("item", pa.int64())])
    assert parse_key("ann", key, "totals", ["user"]).to_pylist() == [{"user": "ann"}]
    assert parse_key('["ann", 7]', key, "totals", ["user"]).to_pylist() == [{"user": "ann", "item": 7}]
    assert parse_key('["ann", 7]', key, "totals", ["user", "item"]).to_pylist() == [{"user": "ann", "item": 7}]
