"""A source without rows that makes Spark run a batch now and then, and Spark's texts for intervals. Knows a clock. Does
not know what the batch is for.

Spark runs no batch while no source has anything new, so timers and state with a time to live would wait for the next
row. This source's offset is the time, rounded down to its interval: at each step of it Spark plans a batch. There are
no rows and no partitions, so no executor does anything for it.
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
    "ms": 1, "millisecond": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "week": 604_800_000,
}  # fmt: skip
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)"
_WHOLE = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*\Z")


def heartbeat(spark: SparkSession, schema: StructType | str, every: str = "1 second") -> DataFrame:
    """Return a stream of this schema that never has a row, and makes Spark run a batch at least every so often.

    Put it after the events, since a union takes names and the watermark of its first frame. The query ends as usual
    under ``availableNow``, and can be restarted with another interval, but not with or without a heartbeat: Spark's
    checkpoint counts a query's sources.

    >>> events.unionByName(heartbeat(spark, events.schema, every="5 seconds"))  # doctest: +SKIP
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
        """Return a schema for whoever names none."""
        return "value string"

    def streamReader(self, schema: StructType) -> "Beats":  # noqa: ARG002, N802 - as pyspark calls it
        """Return what tells Spark the offsets."""
        return Beats(_interval_ms(self.options))


class Beats(DataSourceStreamReader):
    """Offsets that follow the clock, a step an interval."""

    def __init__(self, every_ms: int) -> None:
        self._every_ms = every_ms
        self._newest_ms = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return an offset before all others: a query's start is a beat."""
        return {HEARTBEAT: 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the last beat's time. A clock that is set back does not count."""
        now = time.time_ns() // 1_000_000
        self._newest_ms = max(self._newest_ms, now - now % self._every_ms)
        return {HEARTBEAT: self._newest_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # noqa: ARG002
        """Return nothing to read."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:  # noqa: ARG002
        """Return no rows."""
        return iter(())


def _interval_ms(options: Mapping[str, str]) -> int:
    every_ms = interval_ms(options.get(_EVERY, "1 second"), "heartbeat")
    if every_ms < 1:
        raise ConfigError("a heartbeat needs some time", remedy='every="1 second"', where="heartbeat", id="RIFFLE-0306")
    return every_ms


def interval_ms(text: str, where: str) -> int:
    """Return an interval in milliseconds. Raises ``ConfigError`` that names ``where`` if the text is none.

    >>> interval_ms("10 minutes", "watermark")
    600000
    """
    lower = text.lower()
    parts = re.findall(_PART, lower) if _WHOLE.match(lower) else []
    lengths = [_UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s")) for _, unit in parts]
    if not parts or None in lengths:
        raise ConfigError(
            f"{text!r} is not an interval",
            remedy="write a number and a unit: milliseconds, seconds, minutes, hours, days or weeks",
            where=where,
            id="RIFFLE-0307",
        )
    return round(sum(float(number) * (length or 0) for (number, _), length in zip(parts, lengths, strict=True)))
