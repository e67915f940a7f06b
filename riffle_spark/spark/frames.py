"""The placed frames of the last layouts, each built once. Knows when to fall back to hash placement, and says so once.
Does not know what runs on them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.protocol.ports import Layout
from riffle_spark.spark import placement
from riffle_spark.spark.jvm import is_classic, is_same

__all__ = ["PlacedFrames"]

_logger = logging.getLogger("riffle_spark")


class PlacedFrames:
    """Keeps the frames of the last ``kept`` layouts for the session they were built in. ``silent`` for those whose
    fallback is told by others.
    """

    def __init__(self, kept: int = 1, *, silent: bool = False) -> None:
        self._kept = kept
        self._silent = silent
        self._spark: SparkSession | None = None
        self._frames: OrderedDict[Layout, DataFrame] = OrderedDict()
        self.placeable = True

    def frame(self, spark: SparkSession, layout: Layout) -> DataFrame:
        """Return the layout as a frame; the same one as long as an equal layout is kept and the session stays."""
        if not is_same(spark, self._spark):
            self._frames.clear()
            self._spark = spark
        frame = self._frames.pop(layout, None) or self._build(spark, layout)
        self._frames[layout] = frame
        while len(self._frames) > self._kept:
            self._frames.popitem(last=False)
        return frame

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
        level = logging.DEBUG if self._silent else logging.WARNING
        _logger.log(level, "slots are hash-placed from now on, results are the same: %s", reason)
