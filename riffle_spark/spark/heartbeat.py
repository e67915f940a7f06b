"""Provide a source without rows that makes Spark run a batch at an interval, and parse intervals.

Spark runs no batch while no source has new rows, so timers and state TTL would wait for the next row. The offset of
this source is the time, rounded down to a multiple of its interval. Spark plans a batch at each new offset. The source
has no partitions, so no executor runs a task for it.
"""

import re
import time
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.shards import HEARTBEAT

__all__ = ["Heartbeat", "heartbeat", "interval_ms"]

_EVERY = "every"
_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)"
_WHOLE = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*\Z")


def heartbeat(spark: SparkSession, schema: StructType | str, every: str = "1 second") -> DataFrame:
    """Return a stream without rows that makes Spark run a batch at an interval.

    Unite it with the events. Put the events first, because a union has the names and the watermark of its first frame.
    The query ends as usual under ``availableNow``. A restart may change the interval. It may neither add nor remove a
    heartbeat, because Spark's checkpoint counts the sources of a query.

    Args:
        spark: The session of the query.
        schema: The schema of the events.
        every: The interval: a number and a unit, from milliseconds to weeks.

    Returns:
        The stream, with the schema of the events.

    Raises:
        ConfigError: If ``every`` is not an interval, or shorter than a millisecond.

    >>> from riffle_spark import heartbeat
    >>> stream = events.unionByName(heartbeat(spark, events.schema, every="5 seconds"))
    """
    _interval_ms({_EVERY: every})
    spark.dataSource.register(Heartbeat)
    return spark.readStream.format(Heartbeat.name()).schema(schema).option(_EVERY, every).load()


class Heartbeat(DataSource):
    """The data source ``riffle_heartbeat``, with the option ``every``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "riffle_heartbeat"

    def schema(self) -> str:
        """Return the schema that is used if the reader sets none."""
        return "value string"

    def streamReader(self, schema: StructType) -> "Beats":  # noqa: ARG002, N802 - the signature of pyspark
        """Return the reader that gives Spark the offsets."""
        return Beats(_interval_ms(self.options))


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
        """Return no partitions."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:  # noqa: ARG002
        """Return no rows."""
        return iter(())


def _interval_ms(options: Mapping[str, str]) -> int:
    every_ms = interval_ms(options.get(_EVERY, "1 second"), "heartbeat")
    if every_ms < 1:
        raise ConfigError(
            f"The heartbeat interval is {every_ms} ms.",
            remedy="Use at least 1 millisecond.",
            where="heartbeat",
            id="RIFFLE-0306",
        )
    return every_ms


def interval_ms(text: str, where: str) -> int:
    """Return an interval in milliseconds. Raise ``ConfigError`` with ``where`` if the text is not an interval.

    >>> interval_ms("10 minutes", "watermark")
    600000
    """
    lower = text.lower()
    parts = re.findall(_PART, lower) if _WHOLE.match(lower) else []
    lengths = [_UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s")) for _, unit in parts]
    if not parts or None in lengths:
        raise ConfigError(
            f"{text!r} is not an interval of a fixed length.",
            remedy="Write a number and a unit: milliseconds, seconds, minutes, hours, days or weeks.",
            where=where,
            id="RIFFLE-0307",
        )
    return round(sum(float(number) * (length or 0) for (number, _), length in zip(parts, lengths, strict=True)))
