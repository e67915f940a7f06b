"""Tells the columns that a processor is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Columns"]


class Columns(StatefulProcessor):
    """Tells the names of all columns, and the last row's numbers, which are in the third and all after it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Tell them."""
        for row in rows:
            if isinstance(row, pd.DataFrame):
                yield pd.DataFrame({"key": [key[0]], "told": [str([*row.columns, *map(int, row.iloc[-1, 2:])])]})
            else:
                yield Row(key=key[0], told=str([*row.__fields__, *row[2:]]))

    def close(self) -> None:
        """Do nothing."""
