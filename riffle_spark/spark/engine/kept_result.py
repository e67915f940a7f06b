"""One operator's result, computed once and kept while its batch lasts. Knows local checkpoints and what Spark says when
a part of one is gone. Does not know what the rows mean.

A result that is persisted is found again by comparing plans. A plan that reads a frame twice has other attributes on
one side: then Spark does not find it, and runs the function again. A local checkpoint is a leaf: it may stand in a plan
any number of times, nothing that clears Spark's cache touches it, and a part that is lost is never computed again but
fails whoever reads it.
"""

from __future__ import annotations

import logging

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from riffle_spark.spark.engine import jvm as handles

__all__ = ["GONE", "KeptResult", "is_told"]

_logger = logging.getLogger("riffle_spark")
GONE = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's name for a part of a local checkpoint that is nowhere any more."""


class KeptResult:
    """A frame whose first action computes it and keeps it, on two executors if there are ``several``."""

    def __init__(self, result: DataFrame, *, several: bool) -> None:
        self._result = result
        level = StorageLevel.MEMORY_AND_DISK_2 if several else StorageLevel.MEMORY_AND_DISK
        # Not eager: the first action computes what it reads, and so one job is enough.
        self.frame = result.localCheckpoint(eager=False, storageLevel=level)

    def tell_size(self) -> None:
        """Tell plans how large the frame is, once an action is through: of unknown size, it would never be broadcast.

        Spark Connect has no way to say so.
        """
        if handles.is_classic(self.frame.sparkSession):
            try:
                self.frame = handles.sized(self.frame)
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: plans are only slower without it
                _logger.debug("sinks' frames have no size: %s", error)

    def observed(self, name: str) -> int | None:
        """Return the number that was observed under a name, once an action is through, or ``None``."""
        try:
            return handles.observed(self._result, name)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: the rows can be counted anew
            _logger.debug("what was observed of a result cannot be read: %s", error)
            return None

    def release(self) -> None:
        """Drop what is kept: reading the frame fails from now on. Spark Connect drops it with its last reference."""
        if not handles.is_classic(self.frame.sparkSession):
            return
        try:
            handles.release(self.frame)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: it must not hide why a batch failed
            _logger.warning("a batch's result is kept until its last reference is collected: %s", error)


def is_told(words: str, error: BaseException) -> bool:
    """Tell whether an error says something, or one that led to it does: writers and sinks wrap what they get."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        at = ahead.pop()
        if at is None or id(at) in seen:
            continue
        if words in str(at):
            return True
        seen.add(id(at))
        ahead += [at.__cause__, at.__context__, getattr(at, "_cause", None)]
    return False
