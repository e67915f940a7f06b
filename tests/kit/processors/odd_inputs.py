"""A processor that shows what each of its calls got, for both forms of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Tells"]


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
