"""Provide a source without rows that makes Spark run a batch at an interval, and parse intervals.

Spark runs no batch while no source has new rows, so timers and state TTL would wait for the next row.
"""

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.spark import compat

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
        every: The interval: a number and a unit, from milliseconds to weeks. Spark 3.5 accepts only a second.

    Returns:
        The stream, with the schema of the events.

    Raises:
        ConfigError: If ``every`` is not an interval, shorter than a millisecond, or not a second on Spark 3.5.

    >>> from riffle_spark import heartbeat
    >>> stream = events.unionByName(heartbeat(spark, events.schema, every="5 seconds"))
    """
    every_ms = interval_ms(every, "heartbeat")
    if every_ms < 1:
        raise ConfigError(
            f"The heartbeat interval is {every_ms} ms.",
            remedy="Use at least 1 millisecond.",
            where="heartbeat",
            id="RIFFLE-0306",
        )
    return compat.beats(spark, schema, every_ms)


def interval_ms(text: str, where: str) -> int:
    """Return an interval in milliseconds. Raise ``ConfigError`` with ``where`` if the text is not an interval.

    >>> interval_ms("10 minutes", "watermark")
    600000
    """
    lower = str(text).lower()  # A number of seconds is refused, too.
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
