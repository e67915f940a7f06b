"""Processors that tests of whole queries run; in a module of their own so that executors can import them."""

# ruff: noqa: ARG002 - PySpark's arguments

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Broken", "Idle", "PandasVisits", "Reminders", "Sums", "Visits"]


class Visits(StatefulProcessor):
    """Counts a user's rows and adds up their amounts; an idle user is told of once, by event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one value of two fields."""
        self.handle = handle
        self.totals = handle.getValueState("totals", "visits long, total long")

    def add(self, visits: int, total: int) -> tuple[int, int]:
        """Add to what is kept and return it."""
        before = self.totals.get() or (0, 0)
        self.totals.update((before[0] + visits, before[1] + total))
        return self.totals.get()  # type: ignore[return-value]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Give out the totals."""
        every = list(rows)
        visits, total = self.add(len(every), sum(row.amount for row in every))
        yield Row(user=key[0], visits=visits, total=total)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Begin with what was known before."""
        self.add(initialState.visits, 0)


class Sums(StatefulProcessor):
    """Adds up what the rows of a key bring, as plainly as can be: for counting what it costs."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one sum."""
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Add the rows, and give out the sum."""
        total = (self.total.get() or (0,))[0]
        for row in rows:
            total += row.v
        self.total.update((total,))
        yield Row(k=key[0], total=total)


class PandasVisits(Visits):
    """The same with DataFrames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Give out the totals."""
        frame = pd.concat(rows)
        visits, total = self.add(len(frame), int(frame["amount"].sum()))
        yield pd.DataFrame({"user": [key[0]], "visits": [visits], "total": [total]})

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Begin with what was known before."""
        self.add(int(initialState["visits"].iloc[0]), 0)


class Idle(Visits):
    """Tells of a user whose event time has passed."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Register a timer ten seconds after the newest row."""
        newest = max(int(row.at.timestamp() * 1000) for row in rows)
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(newest + 10_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Give out when the timer was due, and the watermark."""
        due, now = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(user=key[0], visits=due, total=now)


class Reminders(Visits):
    """Tells of a user five seconds after each of its rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Register a timer."""
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Give out whose it was."""
        yield Row(user=key[0])


class Broken(Visits):
    """Raises with the first row."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Raise."""
        raise KeyError("no such price")
