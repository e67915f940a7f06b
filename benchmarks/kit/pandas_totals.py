"""A processor for Spark's own operator. Executors import it from this separate module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["PandasTotals"]


class PandasTotals(StatefulProcessor):
    """Running count and sum in one value state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._totals: Any = handle.getValueState("totals", "count long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Add the rows of one key."""
        count, total = self._totals.get() if self._totals.exists() else (0, 0)
        for frame in rows:
            count = count + len(frame)
            total = total + int(frame["amount"].sum())
        self._totals.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "total": [total]})

    def close(self) -> None:
        """Nothing to close."""
