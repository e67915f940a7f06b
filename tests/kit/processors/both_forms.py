"""Turn one logic into two StatefulProcessors: one over pandas DataFrames and one over rows.

A logic gets each row as a ``Row`` with plain Python values, and yields dicts by column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["InPandas", "InRows", "Logic", "Output", "collect", "millis", "plain", "sparks_own"]

Output = Iterator[dict[str, Any]]


class Logic:
    """The logic of a processor, without a form."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state. A logic with timers also keeps the handle."""
        raise NotImplementedError

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:
        """Process the rows of a key and yield output rows."""
        raise NotImplementedError

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:  # noqa: ARG002
        """Process one timer that is due and yield output rows."""
        return iter(())

    def initial(self, key: tuple[Any, ...], row: Row) -> None:
        """Process one row of the initial state."""
        raise NotImplementedError


class InRows(StatefulProcessor):
    """A processor that runs a logic in ``transformWithState``."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Call ``init`` of the logic."""
        self.logic.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Yield the output rows of the logic."""
        for each in self.logic.rows(_key(key), rows, timerValues):
            yield Row(**each)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Yield the output rows of the logic."""
        for each in self.logic.expired(_key(key), timerValues, expiredTimerInfo.getExpiryTimeInMs()):
            yield Row(**each)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: ARG002
        """Give the row to the logic."""
        self.logic.initial(_key(key), initialState)


class InPandas(StatefulProcessor):
    """A processor that runs a logic in ``transformWithStateInPandas``."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Call ``init`` of the logic."""
        self.logic.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Yield the output rows of the logic as one frame, or nothing if there are none."""
        yield from _frames(self.logic.rows(_key(key), _rows(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Yield the output rows of the logic as one frame, or nothing if there are none."""
        yield from _frames(self.logic.expired(_key(key), timerValues, expiredTimerInfo.getExpiryTimeInMs()))

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: ARG002
        """Give each row of the frame to the logic."""
        for row in _rows([initialState]):
            self.logic.initial(_key(key), row)


def sparks_own(grouped: Any, form: str) -> Callable[..., DataFrame]:
    """Return Spark's own operator of grouped rows in a form. PySpark 4.0 does not declare the one over rows."""
    operator: Callable[..., DataFrame] = (
        grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState
    )
    return operator


def collect(frame: DataFrame, _: int) -> None:
    """Compute a batch and drop its rows."""
    frame.collect()


def plain(value: Any) -> Any:
    """Return a value from pandas as a plain Python value. Each null of pandas becomes ``None``."""
    if value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value


def millis(time: datetime) -> int:
    """Return milliseconds since 1970. A time without a time zone is in UTC, as in all sessions and workers here."""
    aware = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return round(aware.timestamp() * 1000)


def _key(key: Any) -> tuple[Any, ...]:
    return tuple(plain(each) for each in key)


def _rows(frames: Any) -> Iterator[Row]:
    for frame in frames:
        maker = Row(*frame.columns)
        for values in frame.itertuples(index=False, name=None):
            yield maker(*map(plain, values))


def _frames(output: Output) -> Iterator[pd.DataFrame]:
    rows = list(output)
    if rows:
        # The dtype is object, because pandas turns integers with nulls into floats.
        yield pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in rows[0]})
