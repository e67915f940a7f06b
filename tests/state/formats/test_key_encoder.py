"""One key at a time: the same bytes as whole columns give."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.nested_keys import KeyEncoder
from tests.kit.state.drawn_tables import keys


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
