"""Encoded keys have the documented bytes, and one key is encoded like a whole column."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.nested_keys import KeyEncoder


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
def test_values_of_other_classes_are_encoded_as_arrow_converts_them(kind: pa.DataType, value: object) -> None:
    """Numbers of other classes, zeros, NaNs and times of other zones are encoded as Arrow converts them."""
    assert KeyEncoder([kind])((value,)) == encode_keys([pa.array([value], kind)])[0].as_py()


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.int8(), 128), (pa.int64(), 2**63), (pa.int64(), True), (pa.int64(), "1"), (pa.string(), 1)]
)
def test_a_value_that_arrow_cannot_convert_is_refused(kind: pa.DataType, value: object) -> None:
    """A value that Arrow would wrap around or cannot convert is refused."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)):
        KeyEncoder([kind])((value,))


def test_a_key_with_a_wrong_number_of_values_is_refused() -> None:
    """A key with another number of values than columns is refused."""
    with pytest.raises(ValueError, match="shorter"):
        KeyEncoder([pa.int64(), pa.int64()])((1,))


def test_encoded_keys_have_the_documented_bytes() -> None:
    """Encoded keys have the bytes that the documentation shows."""
    columns = [pa.array([1, -1, None]), pa.array(["a\x00b", "", None]), pa.array([1.5, -1.5, None])]
    assert [key.hex(" ") for key in encode_keys(columns).to_pylist()] == [
        "01 80 00 00 00 00 00 00 01 01 61 00 ff 62 00 00 01 bf f8 00 00 00 00 00 00",
        "01 7f ff ff ff ff ff ff ff 01 00 00 01 40 07 ff ff ff ff ff ff",
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
    ]


def test_a_list_column_is_refused_as_a_key() -> None:
    """A list column is refused as a key, because Spark must be able to group by the columns of a key."""
    with pytest.raises(ConfigError, match="RIFFLE-0119"):
        encode_keys([pa.array([[1]])])
