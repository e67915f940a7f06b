"""The StatefulProcessors that both sides run unchanged. Executors import this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Appending", "Counting", "CountingInPandas", "Expiring", "Mapping"]


class Counting(StatefulProcessor):
    """Running count per key, in one value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Count the rows of one key."""
        previous_count = self._count.get()
        count = (previous_count[0] if previous_count is not None else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], count=count)


class CountingInPandas(StatefulProcessor):
    """The same over frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Count the rows of one key."""
        previous_count = self._count.get()
        count = (previous_count[0] if previous_count is not None else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})


class Appending(StatefulProcessor):
    """A list per key, to which each row appends as many elements as it says."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._values = handle.getListState("values", "value long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Append, and say how much."""
        appended = 0
        for row in rows:
            self._values.appendList([(row.amount + index,) for index in range(row.times)])
            appended += row.times
        yield Row(key=key[0], count=appended)


class Mapping(StatefulProcessor):
    """A map of counters per key. A row that says ``times`` lays out so many; any other adds to one of them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._counts: Any = handle.getMapState("counts", "name long", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Lay out, or read one counter and add to it."""
        count = 0
        for row in rows:
            for index in range(row.times):
                self._counts.updateValue((index,), (0,))
            if not row.times:
                count = self._counts.getValue((row.amount,))[0] + 1
                self._counts.updateValue((row.amount,), (count,))
        yield Row(key=key[0], count=count)


class Expiring(StatefulProcessor):
    """A value per key that is kept until the timer of the row that brought it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state and keep the handle for the timers."""
        self._handle = handle
        self._held = handle.getValueState("held", "rows long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Hold, and ask to be called when the row says; a row without such a time asks for nothing."""
        for row in rows:
            if row.due_ms:
                self._held.update((1,))
                self._handle.registerTimer(row.due_ms)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002
        """Let go."""
        self._held.clear()
        yield Row(key=key[0], count=expiredTimerInfo.getExpiryTimeInMs())
