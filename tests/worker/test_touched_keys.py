"""The keys that a slot's rows touch, in the order of the copies: by key-group, then by hash."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from riffle_spark.worker.input import _sort_by_group_and_hash

HASHES = st.one_of(st.integers(0, 3), st.integers(2**64 - 4, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(arrays.arrays(np.uint64, st.integers(0, 40), elements=HASHES), st.data())
def test_keys_are_in_the_order_of_group_and_hash(hashes: npt.NDArray[np.uint64], data: st.DataObject) -> None:
    """Also hashes that differ in their lowest bits alone, and the highest key-group."""
    groups = data.draw(arrays.arrays(np.int32, len(hashes), elements=st.sampled_from([0, 1, 7, 32_767])))
    order = _sort_by_group_and_hash(groups, hashes)
    assert sorted(order.tolist()) == list(range(len(hashes)))
    pairs = list(zip(groups[order].tolist(), hashes[order].tolist(), strict=True))
    assert pairs == sorted(pairs)
