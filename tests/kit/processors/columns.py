"""A processor that returns the columns that it receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Columns"]


class Columns(StatefulProcessor):
    """Returns the names of all columns, and the values of the last row from the third column on, which are numbers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare no state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Yield the names and values as one text."""
        for row in rows:
            if isinstance(row, pd.DataFrame):
                yield pd.DataFrame({"key": [key[0]], "told": [str([*row.columns, *map(int, row.iloc[-1, 2:])])]})
            else:
                yield Row(key=key[0], told=str([*row.__fields__, *row[2:]]))

    def close(self) -> None:
        """Do nothing."""
