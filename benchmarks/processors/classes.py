"""The StatefulProcessors that both sides run unchanged. Executors import this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["CountPerKey", "CountingInPandas", "Expiring", "ListPerKey", "Mapping"]


class CountPerKey(StatefulProcessor):
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
    """Running count per key over pandas frames, in one value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Count the rows of one key."""
        previous_count = self._count.get()
        count = (previous_count[0] if previous_count is not None else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})


class ListPerKey(StatefulProcessor):
    """A list per key. Each row appends ``times`` elements."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._values = handle.getListState("values", "value long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Append the elements, and output their number."""
        appended = 0
        for row in rows:
            self._values.appendList([(row.amount + index,) for index in range(row.times)])
            appended += row.times
        yield Row(key=key[0], count=appended)


class Mapping(StatefulProcessor):
    """A map of counters per key. A row with ``times`` above 0 creates this number of counters. Any other row increments
    one.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._counts: Any = handle.getMapState("counts", "name long", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Create counters, or increment one."""
        count = 0
        for row in rows:
            for index in range(row.times):
                self._counts.updateValue((index,), (0,))
            if not row.times:
                count = self._counts.getValue((row.amount,))[0] + 1
                self._counts.updateValue((row.amount,), (count,))
        yield Row(key=key[0], count=count)


class Expiring(StatefulProcessor):
    """A value per key that is kept until the timer of its row expires."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state and keep the handle for the timers."""
        self._handle = handle
        self._held = handle.getValueState("held", "rows long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Set the value, and register a timer at the row's due time. A row without one does nothing."""
        for row in rows:
            if row.due_ms:
                self._held.update((1,))
                self._handle.registerTimer(row.due_ms)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002
        """Remove the value."""
        self._held.clear()
        yield Row(key=key[0], count=expiredTimerInfo.getExpiryTimeInMs())
