"""Columns are cast to declared types at every depth, also with NULL structs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.state.formats.arrow_casts import cast_column, cast_table

STRICT = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string(), nullable=False)])
WIDE = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.large_string(), nullable=False)])
LOOSE = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())
STRICT_MAP = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
ROW = {"a": 1, "b": "x"}

FORMS = {
    "struct": (lambda kind: kind, [ROW, None]),
    "list": (pa.list_, [[ROW, None], None, [], [None]]),
    "large list": (pa.large_list, [[ROW, None], None, [], [None]]),
    "map": (lambda kind: pa.map_(pa.string(), kind), [[("k", ROW), ("l", None)], None, []]),
    "struct of lists": (lambda kind: pa.struct([("l", pa.list_(kind))]), [{"l": [None, ROW]}, {"l": None}, None]),
}


@pytest.mark.parametrize("target", [STRICT, WIDE, LOOSE], ids=["same", "wider", "nullable"])
@pytest.mark.parametrize("form", FORMS)
def test_null_structs_with_not_null_fields_are_cast(form: str, target: pa.DataType) -> None:
    """NULL structs with NOT NULL fields are cast, which pyarrow refuses even to the same type."""
    around, values = FORMS[form]
    array = pa.array(values, around(STRICT))
    for column in (array, array.slice(1), pa.chunked_array([array, array.slice(1)])):
        cast = cast_column(column, around(target))
        cast.validate(full=True)
        assert (cast.type, cast.to_pylist()) == (around(target), column.to_pylist())


@pytest.mark.parametrize("form", FORMS)
def test_nullable_fields_without_nulls_become_not_null(form: str) -> None:
    """A nullable field becomes NOT NULL if its values have no NULL, and a NULL struct has no values."""
    around, values = FORMS[form]
    assert cast_column(pa.array(values, around(LOOSE)), around(STRICT)).to_pylist() == values


def test_the_error_for_a_null_in_a_not_null_field_names_the_field() -> None:
    """The error names the NOT NULL field of a struct, list, map or table that has a NULL."""
    for array, kind, name in (
        (pa.array([{"a": None, "b": "x"}], LOOSE), STRICT, "a"),
        (pa.array([[{"a": 1, "b": None}]], pa.list_(LOOSE)), pa.list_(STRICT), "b"),
        (pa.array([[1, None]]), pa.list_(pa.field("element", pa.int64(), nullable=False)), "element"),
        (pa.array([[("k", 1), ("l", None)]], MAP), STRICT_MAP, "value"),
    ):
        with pytest.raises(pa.ArrowInvalid, match=f"Field '{name}' is declared NOT NULL"):
            cast_column(array, kind)
    with pytest.raises(pa.ArrowInvalid, match=r"Expected the columns \['w'\], got \['v'\]"):
        cast_table(pa.table({"v": [1]}), pa.schema([("w", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid, match="Field 'v' is declared NOT NULL"):
        cast_table(pa.table({"v": [1, None]}), pa.schema([pa.field("v", pa.int64(), nullable=False)]))


def test_a_cast_ignores_values_outside_a_slice_or_below_a_null_map() -> None:
    """A cast checks only the values that a map has, not those outside a slice or below a NULL map."""
    maps = pa.array([[("k", None)], [("l", 1)], None, []], MAP)
    assert cast_column(maps.slice(1), STRICT_MAP).to_pylist() == [[("l", 1)], None, []]
    hidden = pa.Array.from_buffers(MAP, 4, [pa.py_buffer(b"\x0a"), maps.buffers()[1]], children=[maps.values])
    assert cast_column(hidden, STRICT_MAP).to_pylist() == [None, [("l", 1)], None, []]


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([[{"a": None, "b": "x"}], [ROW]], pa.list_(LOOSE)), pa.list_(STRICT)),
        (pa.array([[[None]], [[1], None]]), pa.list_(pa.list_(pa.field("item", pa.int64(), nullable=False)))),
        (pa.array([[1 << 40], [1]]), pa.list_(pa.int32())),
        (
            pa.array([[("k", {"a": None, "b": "x"})], [("l", ROW)]], pa.map_(pa.string(), LOOSE)),
            pa.map_(pa.string(), STRICT),
        ),
    ],
    ids=["struct", "list", "number", "map"],
)
def test_elements_outside_a_slice_need_not_fit_the_target_type(array: pa.Array, kind: pa.DataType) -> None:
    """Elements of lists and maps outside a slice may not fit the target type; without the slice the cast fails."""
    with pytest.raises(pa.ArrowInvalid):
        cast_column(array, kind)
    cast = cast_column(array.slice(1), kind)
    cast.validate(full=True)
    assert (cast.type, cast.to_pylist()) == (kind, array.to_pylist()[1:])


def test_lists_are_cast_between_32_bit_and_64_bit_offsets() -> None:
    """A cast between list types with 32-bit and 64-bit offsets keeps NULL lists, also in a slice."""
    array = pa.array([["a"], None, [], ["b", None]], pa.list_(pa.string()))
    wide = cast_column(array.slice(1), pa.large_list(pa.large_string()))
    assert wide.to_pylist() == [None, [], ["b", None]]
    assert cast_column(wide, pa.list_(pa.string())).to_pylist() == [None, [], ["b", None]]
    assert cast_column(wide.slice(1), pa.list_(pa.string())).to_pylist() == [[], ["b", None]]
    without_null = cast_column(pa.array([["a"], []]), pa.large_list(pa.string()))
    assert (without_null.to_pylist(), without_null.null_count) == ([["a"], []], 0)


def test_a_cast_keeps_text_that_is_not_utf8() -> None:
    """A cast keeps text that is not UTF-8, also in a dictionary and between widths of offsets."""
    text = pa.array([b"caf\xe9", None], pa.binary()).view(pa.string())
    for column in (text, text.dictionary_encode(), text.cast(pa.large_string())):
        assert cast_column(column, pa.string()).cast(pa.binary()).to_pylist() == [b"caf\xe9", None]
