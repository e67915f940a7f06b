"""The placed frame of the current layout, built once an assignment. Knows when to fall back to hash placement, and
says so once.
"""

from __future__ import annotations

import logging

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.protocol.ports import Layout
from riffle_spark.spark import placement
from riffle_spark.spark.jvm import is_classic, is_same

__all__ = ["PlacedFrames"]

_logger = logging.getLogger("riffle_spark")


class PlacedFrames:
    """Keeps the frame of the last layout for the session it was built in."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._spark: SparkSession | None = None
        self._frame: DataFrame | None = None
        self.placeable = True

    def frame(self, spark: SparkSession, layout: Layout) -> DataFrame:
        """Return the layout as a frame; the same one as long as layout and session stay."""
        if self._frame is None or self._layout is not layout or not is_same(spark, self._spark):
            self._frame, self._layout, self._spark = self._build(spark, layout), layout, spark
        return self._frame

    def _build(self, spark: SparkSession, layout: Layout) -> DataFrame:
        if self.placeable and not is_classic(spark):
            self._give_up("Spark Connect has no JVM handle")
        if self.placeable:
            try:
                return placement.placed(spark, layout)
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: placement is never a condition
                self._give_up(str(error).splitlines()[0])
        return placement.hashed(spark, layout)

    def _give_up(self, reason: str) -> None:
        self.placeable = False
        _logger.warning("slots are hash-placed from now on, results are the same: %s", reason)
