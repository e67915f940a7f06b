"""Processors that tests of whole queries run. They have a separate module, so that executors can import it."""

# ruff: noqa: ARG002 - PySpark's arguments

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Broken", "Idle", "PandasVisits", "Reminders", "Sums", "Visits"]


class Visits(StatefulProcessor):
    """Counts the rows of a user and sums their amounts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one value with two fields."""
        self.handle = handle
        self.totals = handle.getValueState("totals", "visits long, total long")

    def add(self, visits: int, total: int) -> tuple[int, int]:
        """Add to the stored totals and return the sums."""
        before = self.totals.get() or (0, 0)
        self.totals.update((before[0] + visits, before[1] + total))
        return self.totals.get()  # type: ignore[return-value]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Yield the totals."""
        row_list = list(rows)
        visits, total = self.add(len(row_list), sum(row.amount for row in row_list))
        yield Row(user=key[0], visits=visits, total=total)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Add the visits of the initial state."""
        self.add(initialState.visits, 0)


class Sums(StatefulProcessor):
    """Sums the values of a key in the simplest way. Tests count the cost of this."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one sum."""
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Add the rows and yield the sum."""
        total = (self.total.get() or (0,))[0]
        for row in rows:
            total += row.v
        self.total.update((total,))
        yield Row(k=key[0], total=total)


class PandasVisits(Visits):
    """Counts the rows of a user and sums their amounts, with DataFrames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Yield the totals."""
        frame = pd.concat(rows)
        visits, total = self.add(len(frame), int(frame["amount"].sum()))
        yield pd.DataFrame({"user": [key[0]], "visits": [visits], "total": [total]})

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Add the visits of the initial state."""
        self.add(int(initialState["visits"].iloc[0]), 0)


class Idle(Visits):
    """Reports a user ten seconds of event time after the newest row."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Register a timer ten seconds after the newest row."""
        newest = max(int(row.at.timestamp() * 1000) for row in rows)
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(newest + 10_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Yield the due time of the timer and the watermark."""
        due, now = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(user=key[0], visits=due, total=now)


class Reminders(Visits):
    """Reports a user five seconds of processing time after each batch with rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Register a timer in five seconds."""
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Yield the user."""
        yield Row(user=key[0])


class Broken(Visits):
    """Raises an error at the first row."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Raise an error."""
        raise KeyError("no such price")
