"""Define ``StatefulProcessor`` for Spark 3.5, with the methods of PySpark 4.

A processor that subclasses it needs no change on Spark 4, where ``riffle_spark.StatefulProcessor`` is PySpark's class.
"""

# ruff: noqa: N802, N803, B027 - PySpark names these methods, and the optional ones do nothing

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any


class ValueState:
    """A state variable with one value per key."""


class ListState:
    """A state variable with a list of values per key."""


class MapState:
    """A state variable with a map per key."""


class StatefulProcessorHandle:
    """Declares state variables and registers timers."""


class TimerValues:
    """The time and the watermark of a batch, in milliseconds."""

    def __init__(self, currentProcessingTimeInMs: int = -1, currentWatermarkInMs: int = -1) -> None:
        self._time_ms = currentProcessingTimeInMs
        self._watermark_ms = currentWatermarkInMs

    def getCurrentProcessingTimeInMs(self) -> int:
        """Return the time of the batch."""
        return self._time_ms

    def getCurrentWatermarkInMs(self) -> int:
        """Return the watermark."""
        return self._watermark_ms


class ExpiredTimerInfo:
    """The time of an expired timer, in milliseconds."""

    def __init__(self, expiryTimeInMs: int = -1) -> None:
        self._expiry_ms = expiryTimeInMs

    def getExpiryTimeInMs(self) -> int:
        """Return the time of the timer."""
        return self._expiry_ms


class StatefulProcessor(ABC):
    """The logic of a user for the rows, timers and state of a key."""

    @abstractmethod
    def init(self, handle: Any) -> None:
        """Declare the state variables, before any other call."""

    @abstractmethod
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterable[Any]:
        """Return output rows for the input rows of a key."""

    def handleExpiredTimer(
        self,
        key: Any,  # noqa: ARG002 - PySpark's signature
        timerValues: TimerValues,  # noqa: ARG002
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002
    ) -> Iterable[Any]:
        """Return output rows for an expired timer of a key."""
        return iter(())

    def close(self) -> None:
        """Release what ``init`` acquired."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Take the initial state of a key."""
