"""Row counts by key-group and input partition."""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.messages.slot_orders import KEY_GROUP
from riffle_spark.worker.input import count_by_partition


def test_rows_are_counted_by_key_group_and_partition() -> None:
    """Rows are counted by key-group and partition. Rows of initial state have no partition and do not count."""
    rows = pa.table({KEY_GROUP: pa.array([3, 3, 3, 70_000], pa.int32()), "partition": pa.array([1, 1, None, 0])})
    assert count_by_partition(rows, "partition") == ((3, 1, 2), (70_000, 0, 1))
    assert count_by_partition(rows.slice(2, 1), "partition") == ()
    assert count_by_partition(rows.slice(0, 0), "partition") == ()
