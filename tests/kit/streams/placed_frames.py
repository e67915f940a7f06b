"""Which frames of placed slots a job builds. Does not know what a test expects."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.protocol.ports import SlotLayout
from riffle_spark.spark.engine import placed

__all__ = ["built_frames"]


def built_frames(patch: pytest.MonkeyPatch) -> list[SlotLayout]:
    """Return a list that gets the layout of every frame of placed slots that is built from now on."""
    built: list[SlotLayout] = []
    place = placed.placed

    def placing(spark: SparkSession, layout: SlotLayout) -> DataFrame:
        built.append(layout)
        return place(spark, layout)

    patch.setattr(placed, "placed", placing)
    return built
