"""The keys of a batch get numbers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.blocks.folding import group_keys


@pytest.mark.parametrize("type", [pa.binary(), pa.large_binary()], ids=str)
@given(keys=st.lists(st.binary(max_size=2)), start=st.integers(0, 3))
def test_keys_are_numbered_by_first_appearance(type: pa.DataType, keys: list[bytes], start: int) -> None:
    """Property: keys are numbered by their first row, also in slices of arrays."""
    codes, first = group_keys(pa.array(keys, type).slice(start))
    distinct = list(dict.fromkeys(keys[start:]))
    assert codes.tolist() == [distinct.index(key) for key in keys[start:]]
    assert first.tolist() == [keys[start:].index(key) for key in distinct]
