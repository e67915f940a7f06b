"""Event time as Spark's frames tell it: the watermark that ``withWatermark`` set, and a batch's newest. Knows schemas
and one aggregate job. Does not know what a watermark does.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Watermark
from riffle_spark.protocol.ports import WatermarkPolicy
from riffle_spark.spark.engine.routing import quoted
from riffle_spark.worker.input import newest_ms

__all__ = ["newest_event_times", "policy_in", "watermark_in"]

_DELAY = "spark.watermarkDelayMs"
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def watermark_in(schema: StructType, store: str) -> Watermark:
    """Return the watermark that ``withWatermark`` left in a batch's schema: the first timestamp column's that has one.

    Raises ``ConfigError`` if there is none.
    """
    for field in schema.fields:
        if _DELAY in (field.metadata or {}) and isinstance(field.dataType, (TimestampType, TimestampNTZType)):
            return Watermark(field.name, int(field.metadata[_DELAY]))
    raise ConfigError(
        "timers go by event time, and no timestamp column of the input has a watermark",
        remedy="call withWatermark on the events and keep that column, or give the operator "
        'watermark=(column, "10 minutes"). A union takes the watermark of its first frame',
        where=store,
    )


def policy_in(spark: SparkSession) -> WatermarkPolicy:
    """Return which of several watermarks is the query's. In a batch's session Spark keeps what the checkpoint says."""
    said = spark.conf.get(_POLICY, "min") or "min"
    return "max" if said.lower() == "max" else "min"


def newest_event_times(batch: DataFrame, columns: Sequence[str]) -> dict[str, int]:
    """Return the newest event time (ms) of each timestamp column that has any: one job over the input."""
    newest = batch.agg(*[F.max(quoted(name)).alias(f"c{at}") for at, name in enumerate(columns)]).toArrow()
    found = {name: newest_ms(column) for name, column in zip(columns, newest.columns, strict=True)}
    return {name: ms for name, ms in found.items() if ms is not None}
