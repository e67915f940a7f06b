"""A stored decimal can be read under another declared decimal only if no digit can be lost."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark.state.formats.arrow_schemas import can_become


@pytest.mark.parametrize(
    ("declared", "is_readable"),
    [
        (pa.decimal128(5, 2), True),
        (pa.decimal128(7, 4), True),
        (pa.decimal128(9, 2), True),
        (pa.decimal128(5, 4), False),
        (pa.decimal128(6, 4), False),
        (pa.decimal128(9, 1), False),
    ],
    ids=str,
)
def test_a_stored_decimal_keeps_its_precision_and_scale(declared: pa.DataType, is_readable: bool) -> None:
    """A stored decimal(5, 2) has three digits before the point and two after it."""
    stored = pa.schema([("d", pa.decimal128(5, 2))])
    assert can_become(stored, pa.schema([("d", declared)])) == is_readable
