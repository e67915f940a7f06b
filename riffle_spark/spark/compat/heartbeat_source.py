"""Provide the data source of a heartbeat on Spark 4. It has no rows, and its offset is the time.

The time is rounded down to a multiple of the interval. Spark plans a batch at each new offset. The source has no
partitions, so no executor runs a task for it.
"""

import time
from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from riffle_spark.protocol.shards import HEARTBEAT

EVERY_MS = "every_ms"


class Heartbeat(DataSource):
    """The data source ``riffle_heartbeat``, with the option ``every_ms``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "riffle_heartbeat"

    def schema(self) -> str:
        """Return the schema that is used if the reader sets none."""
        return "value string"

    def streamReader(self, schema: StructType) -> "Beats":  # noqa: ARG002, N802 - the signature of pyspark
        """Return the reader that gives Spark the offsets."""
        return Beats(int(self.options.get(EVERY_MS, 1000)))


class Beats(DataSourceStreamReader):
    """Offsets that follow the clock in steps of an interval."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._newest_ms = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset 0, so that a new query runs a batch at once."""
        return {HEARTBEAT: 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the time of the last beat. It never decreases."""
        clock_ms = time.time_ns() // 1_000_000
        self._newest_ms = max(self._newest_ms, clock_ms - clock_ms % self._every_ms)
        return {HEARTBEAT: self._newest_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
        """Return no partitions, so that no executor runs a task."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:  # noqa: ARG002
        """Return no rows."""
        return iter(())
