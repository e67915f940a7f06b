"""Keys, tables and types that Hypothesis draws, for the tests of both codecs."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Values = st.SearchStrategy[object]


def integers(bits: int) -> Values:
    """Draw signed integers of this number of bits."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> Values:
    """Draw decimals of up to ``precision`` digits."""
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return unscaled.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def durations() -> Values:
    """Draw durations that Python can hold."""
    return st.integers(-(2**52), 2**52).map(lambda us: timedelta(microseconds=us))


KEY_TYPES: dict[pa.DataType, Values] = {
    pa.bool_(): st.booleans(),
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(9, 2): decimals(9, 2),
    pa.decimal128(38, 5): decimals(38, 5),
    pa.string(): st.text("a\x00b\xffü😀", max_size=6),
    pa.large_string(): st.text(max_size=6),
    pa.binary(): st.lists(st.sampled_from([0, 1, 254, 255]), max_size=6).map(bytes),
    pa.date32(): st.integers(-719_162, 2_932_896),
    pa.timestamp("us", "UTC"): st.integers(0, 2**55),
    pa.timestamp("us"): st.integers(0, 2**55),
    pa.duration("us"): durations(),
}


@st.composite
def keys(draw: st.DrawFn) -> list[pa.Array]:
    """Draw the columns of some keys from few values, so that keys often start with the same values."""
    types = draw(st.lists(st.sampled_from(list(KEY_TYPES)), min_size=1, max_size=3))
    count = draw(st.integers(0, 8))
    columns = []
    for kind in types:
        pool = draw(st.lists(st.one_of(st.none(), KEY_TYPES[kind]), min_size=1, max_size=4))
        columns.append(pa.array(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)), kind))
    return columns


LEAVES: dict[pa.DataType, Values] = {
    **KEY_TYPES,
    pa.null(): st.none(),
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float16(): st.floats(width=16, allow_nan=False).map(np.float16),
    pa.decimal256(50, 3): decimals(50, 3),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.month_day_nano_interval(): st.tuples(integers(32), integers(32), integers(64)),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.large_binary(): st.binary(max_size=6),
}


def nullable_lists(values: Values, size: int | None = None) -> Values:
    """Draw lists whose elements may be null."""
    return st.lists(st.one_of(st.none(), values), min_size=size or 0, max_size=3 if size is None else size)


def entries(values: Values) -> Values:
    """Draw lists of pairs from which Arrow makes maps."""
    return st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), values)), max_size=3)


def structs(fields: list[tuple[pa.DataType, Values]]) -> tuple[pa.DataType, Values]:
    """Return the type of a struct with these fields, and a strategy that draws its values."""
    kind = pa.struct([(f"f{number}", field) for number, (field, _) in enumerate(fields)])
    return kind, st.fixed_dictionaries({f"f{number}": st.one_of(st.none(), v) for number, (_, v) in enumerate(fields)})


def nested(leaves: dict[pa.DataType, Values]) -> st.SearchStrategy[tuple[pa.DataType, Values]]:
    """Draw a type that is nested from these leaves, and a strategy that draws its values."""
    return st.recursive(
        st.sampled_from(list(leaves.items())),
        lambda inner: st.one_of(
            inner.map(lambda t: (pa.list_(t[0]), nullable_lists(t[1]))),
            inner.map(lambda t: (pa.large_list(t[0]), nullable_lists(t[1]))),
            inner.filter(lambda t: not pa.types.is_fixed_size_list(t[0])).map(
                lambda t: (pa.list_(t[0], 2), nullable_lists(t[1], 2))
            ),
            inner.map(lambda t: (pa.map_(pa.string(), t[0]), entries(t[1]))),
            st.lists(inner, max_size=3).map(structs),
        ),
        max_leaves=5,
    )
