"""Compare the rows that a sink received with a frame."""

from __future__ import annotations

from chispa import assert_df_equality
from pyspark.sql import DataFrame

from tests.kit.streams.streaming import CollectingSink

__all__ = ["assert_newest"]


def assert_newest(sink: CollectingSink, expected: DataFrame, key: str = "k") -> None:
    """Fail unless the newest rows of all keys that a sink received are exactly the rows of a frame."""
    rows = {row[key]: row.asDict() for delivery in sink.deliveries.values() for row in delivery}
    ours = [tuple(row[name] for name in expected.columns) for row in rows.values()]
    frame = expected.sparkSession.createDataFrame(ours, expected.schema)
    assert_df_equality(frame, expected, ignore_row_order=True)
