"""Batches as Spark would pass them to a driver."""

from riffle_spark.protocol.ports import IncomingBatch

__all__ = ["incoming_batch"]


def incoming_batch(version: int, time_ms: int) -> IncomingBatch:
    """Return batch ``version`` of a query without a watermark. ``time_ms`` is its time in milliseconds since the
    epoch.
    """
    return IncomingBatch(
        version=version,
        query_id="query",
        run_id="run",
        offsets=f"offsets-{version}",
        input_digest=None,
        time_ms=time_ms,
        watermark_ms=None,
    )
