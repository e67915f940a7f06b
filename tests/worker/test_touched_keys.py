"""The keys that a slot's rows touch, sorted by key-group and hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import KEY_GROUP, Order
from riffle_spark.testing import routed
from riffle_spark.worker.input import KeysOfStores, TouchedKeys, _sort_by_group_and_hash, find_touched_keys
from tests.kit.worker.slot_member import Member, kept_last, rows_of

HASHES = st.one_of(st.integers(0, 3), st.integers(2**64 - 4, 2**64 - 1), st.integers(0, 2**64 - 1))


@given(arrays.arrays(np.uint64, st.integers(0, 40), elements=HASHES), st.data())
def test_keys_are_sorted_by_key_group_and_hash(hashes: npt.NDArray[np.uint64], data: st.DataObject) -> None:
    """Keys are sorted by key-group and hash, also if hashes differ only in the lowest bits."""
    groups = data.draw(arrays.arrays(np.int32, len(hashes), elements=st.sampled_from([0, 1, 7, 32_767])))
    order = _sort_by_group_and_hash(groups, hashes)
    assert sorted(order.tolist()) == list(range(len(hashes)))
    pairs = list(zip(groups[order].tolist(), hashes[order].tolist(), strict=True))
    assert pairs == sorted(pairs)


ROWS = rows_of(("a", 1, 0), ("b", 2, 0), ("a", 3, 0), ("c", 4, 0))
Store = tuple[Order, pa.Table]


def other_values(order: Order, rows: pa.Table) -> Store:
    """Change a column that is not part of the key."""
    return replace(order, store="other"), rows.set_column(rows.column_names.index("v"), "v", pa.array([9, 9, 9, 9]))


def fewer_rows(order: Order, rows: pa.Table) -> Store:
    """Remove a row, as the removal of late rows does."""
    return order, rows.slice(1)


def other_key(order: Order, rows: pa.Table) -> Store:
    """Use another column with other values as the key."""
    renamed = rows.rename_columns([{"k": "v", "v": "k"}.get(name, name) for name in rows.column_names])
    return order, renamed.set_column(renamed.column_names.index("k"), "k", pa.array(["x", "b", "x", "c"]))


def other_key_groups(order: Order, rows: pa.Table) -> Store:
    """Move the same keys to other key-groups."""
    moved = pa.array([(number + 1) % order.total for number in rows.column(KEY_GROUP).to_pylist()], pa.int32())
    return replace(order, by_key=False), rows.set_column(rows.column_names.index(KEY_GROUP), KEY_GROUP, moved)


@pytest.mark.parametrize(
    ("change", "shares"), [(other_values, True), (fewer_rows, False), (other_key, False), (other_key_groups, False)]
)
def test_stores_share_equal_touched_keys(
    tmp_path: Path, change: Callable[[Order, pa.Table], Store], shares: bool
) -> None:
    """Stores share the touched keys if these are equal. The result equals that of a single store."""
    order = replace(Member(tmp_path, kept_last()).order(), by_key=False)
    rows = routed(order, ROWS)[0]
    keys = KeysOfStores()
    first = keys.find(order, 0, rows)
    other, other_rows = change(order, rows)
    touched_keys = keys.find(other, 0, other_rows)
    assert (touched_keys is first) == shares
    assert_same(touched_keys, find_touched_keys(other, 0, other_rows))
    assert_same(keys.find(order, 0, rows), first)


def test_a_key_group_of_another_slot_is_refused(tmp_path: Path) -> None:
    """A key-group of another slot is refused, also after a store that has it."""
    order = Member(tmp_path, kept_last()).order()
    rows = routed(order, ROWS)[0]
    keys = KeysOfStores()
    keys.find(order, 0, rows)
    own = tuple(number for number in order.slots[0] if number not in set(rows.column(KEY_GROUP).to_pylist()))
    with pytest.raises(ConfigError, match="RIFFLE-0481"):
        keys.find(replace(order, slots={0: own}), 0, rows)


def assert_same(actual: TouchedKeys, expected: TouchedKeys) -> None:
    """Check that all arrays are equal."""
    assert actual.keys.equals(expected.keys)
    assert actual.spans == expected.spans
    for name in ("hashes", "key_groups", "codes"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name))
