"""Keys with nested structs, arrays and maps have ordered, prefix-free bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.nested_keys import (
    KeyEncoder,
    check_map_key_type,
    encode_nested_keys,
    sort_map_entries,
)  # fmt: skip
from tests.kit.state.drawn_tables import KEY_TYPES, Values, nullable_lists, structs


def ranks(columns: list[pa.Array]) -> list[tuple[tuple[object, ...], ...]]:
    """Return a value for each key that compares like the key."""
    return list(zip(*([rank(value) for value in column.to_pylist()] for column in columns), strict=True))


def rank(value: object) -> tuple[object, ...]:
    """Return a value that compares like the given one: NULLs first, texts by their bytes, numbers by value with NaN
    last, structs by their fields, the shorter of two arrays first, maps as arrays of their entries sorted by key.
    """
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple(map(rank, value.values())))
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return (1, tuple(sorted((rank(key), rank(item)) for key, item in value)))
    if isinstance(value, list):
        return (1, tuple(map(rank, value)))
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


def maps(values: Values) -> Values:
    """Draw maps in Arrow's form, with entries in any order."""
    entries = st.tuples(st.sampled_from(["", "a", "a\x00", "b"]), st.one_of(st.none(), values))
    return st.lists(entries, max_size=3, unique_by=lambda entry: entry[0])


NESTED = st.recursive(
    st.sampled_from(list(KEY_TYPES.items())),
    lambda inner: st.one_of(
        inner.map(lambda t: (pa.list_(t[0]), nullable_lists(t[1]))),
        inner.map(lambda t: (pa.large_list(t[0]), nullable_lists(t[1]))),
        st.lists(inner, max_size=3).map(structs),
        inner.map(lambda t: (pa.map_(pa.string(), t[0]), maps(t[1]))),
    ),
    max_leaves=4,
)


@st.composite
def nested_keys(draw: st.DrawFn) -> list[pa.Array]:
    """Draw the columns of some keys from few values, so that keys often share a prefix."""
    count = draw(st.integers(0, 6))
    columns = []
    for kind, values in draw(st.lists(NESTED, min_size=1, max_size=3)):
        pool = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=4))
        columns.append(pa.array(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)), kind))
    return columns


def as_tuples(value: object) -> object:
    """Return a value with its structs as tuples, which is the form of a user's key."""
    if isinstance(value, dict):
        return tuple(map(as_tuples, value.values()))
    if isinstance(value, tuple):
        return value[0], as_tuples(value[1])
    return list(map(as_tuples, value)) if isinstance(value, list) else value


@given(nested_keys())
def test_encoded_nested_keys_compare_like_their_values(columns: list[pa.Array]) -> None:
    """Encoded keys compare exactly like their values, so different keys never have equal bytes."""
    stored, expected = encode_nested_keys(columns).to_pylist(), ranks(columns)
    for left in range(len(stored)):
        for right in range(left):
            assert (stored[left] < stored[right]) == (expected[left] < expected[right])
            assert (stored[left] == stored[right]) == (expected[left] == expected[right])


@given(nested_keys())
def test_no_nested_key_is_a_prefix_of_another(columns: list[pa.Array]) -> None:
    """The bytes of no key are a prefix of those of another key."""
    stored = sorted(set(encode_nested_keys(columns).to_pylist()))
    assert not any(longer.startswith(key) for key, longer in itertools.pairwise(stored))


@given(nested_keys())
def test_a_single_nested_key_is_encoded_like_its_column(columns: list[pa.Array]) -> None:
    """A single key has the same bytes as in its columns, with structs as tuples or as dictionaries."""
    encode = KeyEncoder([column.type for column in columns])
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    stored = encode_nested_keys(columns).to_pylist()
    assert [encode(row) for row in rows] == stored
    assert [encode(tuple(map(as_tuples, row))) for row in rows] == stored


def test_maps_are_sorted_by_key_at_every_depth() -> None:
    """Entries of maps are sorted by key at every depth, and NULLs and other values stay unchanged."""
    of_maps = pa.map_(pa.string(), pa.int64())
    kind = pa.struct([("m", of_maps), ("l", pa.list_(of_maps)), ("n", pa.int64())])
    drawn = [
        {"m": [("b", 1), ("a", None)], "l": [[("d", 1), ("c", 2)], None, []], "n": 1},
        None,
        {"m": None, "l": None, "n": None},
        {"m": [], "l": [], "n": 2},
    ]
    array = pa.array([drawn[0], *drawn], kind)[1:]
    ordered = sort_map_entries(array)
    ordered.validate(full=True)
    first = {"m": [("a", None), ("b", 1)], "l": [[("c", 2), ("d", 1)], None, []], "n": 1}
    assert ordered.to_pylist() == [first, *drawn[1:]]
    assert encode_nested_keys([ordered]).equals(encode_nested_keys([array]))
    numbers = pa.array([1, None])
    assert sort_map_entries(numbers) is numbers


def test_encoded_nested_keys_have_the_documented_bytes() -> None:
    """A struct is a tag and its fields, an array a tag, 01 before each element and 00, and a map its sorted entries."""
    kind = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    keys = pa.array([(1, ["x", None]), (None, []), (2, None), None], kind)
    assert [key.hex(" ") for key in encode_nested_keys([keys]).to_pylist()] == [
        "01 01 81 01 01 01 78 00 00 01 00 00 00 00",
        "01 00 00 01 00",
        "01 01 82 00",
        "00",
    ]
    entries = pa.array([[("b", 1), ("a", None)]], pa.map_(pa.string(), pa.int8()))
    assert encode_nested_keys([entries])[0].as_py().hex(" ") == "01 01 01 01 61 00 00 00 00 01 01 01 62 00 00 01 81 00"


AROUND = {
    "alone": lambda kind: kind,
    "list": pa.list_,
    "struct": lambda kind: pa.struct([("f", kind)]),
    "map": lambda kind: pa.map_(pa.string(), kind),
}


@pytest.mark.parametrize("kind", [pa.list_(pa.int8(), 2), pa.time64("us"), pa.null()])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_types_that_keys_cannot_have_are_refused_at_every_depth(
    kind: pa.DataType, around: Callable[[pa.DataType], pa.DataType]
) -> None:
    """Types that no key can have are refused at every depth."""
    with pytest.raises(ConfigError, match="RIFFLE-0119"):
        check_map_key_type("m", around(kind))
