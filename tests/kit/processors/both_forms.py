"""One logic in both forms: a StatefulProcessor over frames and one over rows. Knows pyspark's classes and pandas. Does
not know any logic.

A logic sees rows as ``Row`` with plain Python values and answers with dicts by column.
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
    """What a processor does, without a form."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare state, and keep the handle where timers are used."""
        raise NotImplementedError

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:
        """Take the rows of a key."""
        raise NotImplementedError

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:  # noqa: ARG002
        """Take one timer that is due."""
        return iter(())

    def initial(self, key: tuple[Any, ...], row: Row) -> None:
        """Take one row of the initial state."""
        raise NotImplementedError


class InRows(StatefulProcessor):
    """A logic for ``transformWithState``."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Pass on."""
        self.logic.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Answer row by row."""
        for each in self.logic.rows(_key(key), rows, timerValues):
            yield Row(**each)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Answer row by row."""
        for each in self.logic.expired(_key(key), timerValues, expiredTimerInfo.getExpiryTimeInMs()):
            yield Row(**each)

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:  # noqa: ARG002
        """Pass on the one row."""
        self.logic.initial(_key(key), initialState)


class InPandas(StatefulProcessor):
    """A logic for ``transformWithStateInPandas``."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Pass on."""
        self.logic.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Answer with one frame, or none where there is nothing to say."""
        yield from _frames(self.logic.rows(_key(key), _rows(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Answer with one frame, or none where there is nothing to say."""
        yield from _frames(self.logic.expired(_key(key), timerValues, expiredTimerInfo.getExpiryTimeInMs()))

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: ARG002
        """Pass on each row of the frame."""
        for row in _rows([initialState]):
            self.logic.initial(_key(key), row)


def sparks_own(grouped: Any, form: str) -> Callable[..., DataFrame]:
    """Return Spark's own operator in a form, of grouped rows: PySpark 4.0 declares none over rows."""
    operator: Callable[..., DataFrame] = (
        grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState
    )
    return operator


def collect(frame: DataFrame, _: int) -> None:
    """Compute a batch and drop it."""
    frame.collect()


def plain(value: Any) -> Any:
    """Return the Python value of what pandas gives: None for each of its nulls, no NumPy."""
    if value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value


def millis(at: datetime) -> int:
    """Return milliseconds since 1970; a time without a zone is UTC, as every session and worker here is."""
    aware = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
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
        # As objects, so that pandas makes no floats of integers beside nulls.
        yield pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in rows[0]})
