"""What tells a batch's rows from others where Spark has no offsets of it: batches by hand, and Spark Connect."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["digest_of"]

_TO_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TOLD_EXACTLY = {
    "timestampFormat": _TO_MICROS, "timestampNTZFormat": _TO_MICROS, "timeZone": "UTC", "ignoreNullFields": "false",
}  # fmt: skip


def digest_of(batch: DataFrame) -> str:
    """Return a digest of the rows, whatever their order and the session's time zone: their number and the sum of their
    hashes.

    Columns are not named: there may be two of one name.
    """
    each = F.xxhash64(F.to_json(F.struct("*"), _TOLD_EXACTLY))
    row = batch.agg(F.count(F.lit(1)), F.sum(each.cast("decimal(38,0)"))).collect()[0]
    return f"{row[0]}:{row[1]}"
