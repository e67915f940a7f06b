"""Queries of Spark's own that move to riffle in the middle answer what they would have answered without the move."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Settings
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import ROCKSDB, difference, play_moved, play_native_part
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import is_recorded, recorded

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

OFTEN = ("tumbling_append",)
"""Shapes that every run of the tests moves. `--all` moves all others."""
STORES = {"hdfs": {}, "rocksdb": ROCKSDB}


def _is_moved(shape: Shape) -> bool:
    """Return whether a shape has batches one by one on Spark's own stream, and can be moved."""
    is_played = shape.play == "each" and shape.oracle == "stream" and len(shape.batches) > 1
    return is_played and not shape.owed and not shape.differs and shape.kind not in ("form", "enriched")


def _cases() -> list[object]:
    """Return the cases: each shape from each state store."""
    cases = list[object]()
    for name, shape in SHAPES.items():
        for store in STORES if _is_moved(shape) and is_recorded(shape) else ():
            marks = [] if name in OFTEN and store == "hdfs" else [pytest.mark.long]
            cases.append(pytest.param(shape, store, id=f"{name}-{store}", marks=marks))
    return cases


@pytest.mark.parametrize(("shape", "store"), _cases())
def test_a_moved_query_continues_as_if_it_had_not_moved(
    spark: SparkSession, shape: Shape, store: str, tmp_path: Path
) -> None:
    """Moved after about half of its batches, it answers each later batch as Spark's own undisturbed run did."""
    settings = Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=8)
    steps = play_native_part(spark, shape, tmp_path, (len(shape.batches) + 1) // 2, STORES[store])
    assert difference(play_moved(spark, shape, tmp_path, steps, settings), recorded(shape)) == ""
