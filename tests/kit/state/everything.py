"""A processor with variables of all kinds."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row

from riffle_spark import StatefulProcessor

__all__ = ["Everything"]


class Everything(StatefulProcessor):
    """Writes a value, a list, a map with a TTL, and a timer for each row."""

    def __init__(self, key: str) -> None:
        """Create the processor for keys of one column."""
        self._key = key

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._handle = handle
        self._value = handle.getValueState("last", "at long")
        self._list = handle.getListState("seen", "at long, n int")
        self._map = handle.getMapState("tags", "tag string", "n int", 60_000)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
        """Write all variables for each row, and yield their contents."""
        now = timers.getCurrentProcessingTimeInMs()
        for _ in rows:
            last = self._value.get()
            self._value.update((now if last is None else last[0] + 1,))
            self._list.appendValue((now, 1))
            self._map.updateValue(("t",), (1,))
            self._handle.registerTimer(now + 30_000)
        values = [sorted(map(tuple, self._list.get())), sorted((k[0], v[0]) for k, v in self._map.iterator())]
        yield Row(**{self._key: key[0]}, shown=f"{self._value.get()[0]} {values}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: ARG002
        """Yield the time of the fired timer."""
        yield Row(**{self._key: key[0]}, shown=f"fired {expiredTimerInfo.getExpiryTimeInMs()}")

    def close(self) -> None:
        """Do nothing."""
