"""Record the frames of placed slots that a job builds."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark.engine import placed

__all__ = ["built_frames"]


def built_frames(patch: pytest.MonkeyPatch) -> list[SlotLayout]:
    """Return a list to which the layout of every new frame of placed slots is added."""
    built: list[SlotLayout] = []
    place = placed.placed

    def placing(spark: SparkSession, layout: SlotLayout) -> DataFrame:
        built.append(layout)
        return place(spark, layout)

    patch.setattr(placed, "placed", placing)
    return built
