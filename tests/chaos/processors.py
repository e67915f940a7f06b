"""The processor of the chaos query with timers, in a separate module that executors can import."""

# ruff: noqa: ARG002 - PySpark's arguments

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["PATIENCE_MS", "Visits"]

PATIENCE_MS = 4_000


class Visits(StatefulProcessor):
    """Counts a user's events and sums their amounts until a timer fires, then returns and deletes them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one value of two fields."""
        self._handle = handle
        self._open: Any = handle.getValueState("open", "count long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Add the rows. The first rows of a key register the timer."""
        if not self._open.exists():
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + PATIENCE_MS)
        count, total = self._open.get() or (0, 0)
        for row in rows:
            count = count + 1
            total = total + row.amount
        self._open.update((count, total))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Return the count and sum of the user, and delete them."""
        count, total = self._open.get()
        self._open.clear()
        yield Row(user=key[0], count=count, total=total)
