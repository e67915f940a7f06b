"""Queries whose rows are combined before the shuffle in every batch return Spark's results."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.messages.slot_orders import Order
from riffle_spark.process.blocks.combining import Combined
from riffle_spark.spark.engine import combined_rows
from riffle_spark.spark.engine.combined_rows import Reductions
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import difference, play_ours
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import is_recorded, recorded

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

OFTEN = ("keyless", "tumbling_late_append")
"""The shapes that every test run plays. ``--all`` plays all whose rows can be combined."""
OTHERS = (
    "complete_count", "complete_joined", "complete_late_counts", "complete_top", "count_by_key", "null_struct_key",
    "over_results", "rollup", "sliding_append", "sliding_offset", "sliding_uneven", "sql_complete", "sql_having",
    "sql_with", "struct_key", "tumbling_append", "tumbling_append_over_restart", "tumbling_append_together",
    "tumbling_far_apart", "tumbling_no_delay", "tumbling_no_watermark", "tumbling_of_event_time", "tumbling_offset",
    "tumbling_update", "tumbling_update_over_break", "two_keys", "typed_keys",
)  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [
        *[pytest.param(SHAPES[name], id=name) for name in OFTEN],
        *[pytest.param(SHAPES[name], id=name, marks=pytest.mark.long) for name in OTHERS],
    ],
)
@pytest.mark.sample("keyless")
def test_a_query_with_combined_rows_has_sparks_recorded_results(
    spark: SparkSession, shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query returns the recorded results of Spark over late rows, restarts, batches without rows and each output
    mode.
    """
    if not is_recorded(shape):
        pytest.skip("not recorded on this version of Spark")
    combined: list[str] = []

    def ordering(order: Order, how: Combined) -> Order:
        combined.append(order.store)
        return combined_rows.combined_order(order, how)

    monkeypatch.setattr("riffle_spark.spark.engine.spark_batch.combined_order", ordering)
    monkeypatch.setattr(Reductions, "combines", lambda _self, _store: True)
    assert difference(play_ours(spark, shape, tmp_path), recorded(shape)) == ""
    assert combined
