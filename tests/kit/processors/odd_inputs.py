"""Processors at the edges of what Spark takes: odd keys, nulls, frames without rows. Know both forms of rows. Do not
know who runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["NoRows", "NullInNotNull", "Redeclares", "Tells"]


class Tells(StatefulProcessor):
    """Tells each call's key, how many rows it had and the watermark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Tell them."""
        given = list(rows)
        number = sum(len(one) if isinstance(one, pd.DataFrame) else 1 for one in given)
        told = self.told(key, number, timerValues)
        yield pd.DataFrame({"told": [told]}) if isinstance(given[0], pd.DataFrame) else Row(told=told)

    def told(self, key: Any, number: int, times: Any) -> str | None:
        """Return what is told."""
        return f"{key!r} {number} {times.getCurrentWatermarkInMs()}"

    def close(self) -> None:
        """Do nothing."""


class NullInNotNull(Tells):
    """Writes null into a number that is not null."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare it."""
        self._state = handle.getValueState("v", "n int not null")

    def told(self, key: Any, number: int, times: Any) -> str | None:  # noqa: ARG002
        """Write it, and return what is read."""
        self._state.update((None,))
        return str(self._state.get())


class NoRows(Tells):
    """Gives frames without rows: one without columns, and one of a column of another type."""

    def __init__(self, columns: bool) -> None:
        self._columns = columns

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Give the frame, and one with a row."""
        yield pd.DataFrame({"told": []}) if self._columns else pd.DataFrame()
        yield pd.DataFrame({"told": ["end"]})


class Redeclares(Tells):
    """Deletes a variable and declares it again."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Do so."""
        handle.getValueState("v", "n int")
        handle.deleteIfExists("v")
        handle.getValueState("v", "n int")
