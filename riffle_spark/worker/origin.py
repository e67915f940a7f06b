"""Where a slot's rows came from: how many of each key-group, by partition. Knows two columns. Does not know racks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from riffle_spark.worker.order import KEY_GROUP

__all__ = ["counted"]


def counted(rows: pa.Table, column: str) -> tuple[tuple[int, int, int], ...]:
    """Return (key-group, partition, rows) of all rows that came from one; ``column`` holds the partitions' numbers."""
    if rows.column(column).null_count:  # rows of initial state
        rows = rows.filter(rows.column(column).is_valid())
    if rows.num_rows == 0:
        return ()
    key_groups = rows.column(KEY_GROUP).to_numpy().astype(np.int64)
    partitions = rows.column(column).to_numpy().astype(np.int64)
    pairs, counts = np.unique((key_groups << 32) | partitions, return_counts=True)
    return tuple(
        (int(pair >> 32), int(pair & 0xFFFFFFFF), int(count)) for pair, count in zip(pairs, counts, strict=True)
    )
