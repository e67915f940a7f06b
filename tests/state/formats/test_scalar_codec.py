"""One key and one value at a time: the same bytes and the same values as whole columns give."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.row_codec import RowCodec
from riffle_spark.state.formats.scalar_codec import KeyEncoder, ValueDecoder
from tests.kit.state.drawn_tables import KEY_TYPES, damaged, keys, some, tables


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """Return rows as tuples of Python values."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@st.composite
def flat_tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table of the columns that are compiled, and some that are not."""
    kinds = draw(st.lists(st.sampled_from(list(KEY_TYPES)), min_size=1, max_size=10))
    count = draw(st.integers(0, 4))
    lists = [draw(st.lists(st.one_of(st.none(), KEY_TYPES[k]), min_size=count, max_size=count)) for k in kinds]
    arrays = [pa.array(values, kind) for values, kind in zip(lists, kinds, strict=True)]
    return pa.table(arrays, names=[f"c{at}" for at in range(len(kinds))])


def same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    """Compare values, one NaN equal to another."""
    return len(left) == len(right) and all(
        one == other or (isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other))
        for one, other in zip(left, right, strict=True)
    )


@some
@given(keys())
def test_a_key_alone_is_encoded_as_its_column_is(columns: list[pa.Array]) -> None:
    """Every key of every type gives the bytes that the columns give."""
    encode = KeyEncoder([column.type for column in columns])
    alone = [encode(key) for key in zip(*(column.to_pylist() for column in columns), strict=True)]
    assert alone == encode_keys(columns).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), np.int32(7)),
        (pa.float64(), 3),
        (pa.float64(), -0.0),
        (pa.float64(), -math.nan),
        (pa.float32(), 1e300),
        (pa.float32(), np.float32(0.1)),
        (pa.string(), b"bytes"),
        (pa.timestamp("us", "UTC"), datetime(2024, 5, 1, 12)),
        (pa.timestamp("us", "UTC"), datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=5)))),
        (pa.timestamp("us"), datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=5)))),
        (pa.timestamp("us"), datetime(1, 1, 1)),
        (pa.timestamp("us"), 5),
    ],
    ids=str,
)
def test_a_value_of_another_class_is_encoded_as_arrow_takes_it(kind: pa.DataType, value: object) -> None:
    """What Arrow makes of numbers of other classes, zeros, NaNs and times of other zones is what is encoded."""
    assert KeyEncoder([kind])((value,)) == encode_keys([pa.array([value], kind)])[0].as_py()


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.int8(), 128), (pa.int64(), 2**63), (pa.int64(), True), (pa.int64(), "1"), (pa.string(), 1)]
)
def test_a_value_that_arrow_does_not_take_is_refused(kind: pa.DataType, value: object) -> None:
    """Nothing is wrapped around or converted in silence."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
        KeyEncoder([kind])((value,))


def test_a_key_of_another_number_of_columns_is_refused() -> None:
    """A key has as many values as there are columns."""
    with pytest.raises(ValueError, match="shorter"):
        KeyEncoder([pa.int64(), pa.int64()])((1,))


@some
@given(st.one_of(flat_tables(), tables()))
def test_a_value_alone_is_decoded_as_its_row_is(table: pa.Table) -> None:
    """Every row of every schema gives the Python values that the decoded table gives."""
    codec = RowCodec(table.schema)
    decode = ValueDecoder(codec)
    stored = codec.encode(table)
    for alone, row in zip(map(decode, stored.to_pylist()), rows_of(codec.decode(stored)), strict=True):
        assert same(alone, row)


@some
@given(flat_tables(), st.data())
def test_a_damaged_value_alone_raises_as_its_row_does(table: pa.Table, data: st.DataObject) -> None:
    """Changed bytes raise where the codec of columns raises, and else give what it gives."""
    codec = RowCodec(table.schema)
    for whole in codec.encode(table).to_pylist():
        stored = damaged(data, whole)
        try:
            (row,) = rows_of(codec.decode([stored]))
        except (CorruptStateError, ValueError, OverflowError) as error:
            with pytest.raises(type(error)):
                ValueDecoder(codec)(stored)
        else:
            assert same(ValueDecoder(codec)(stored), row)
