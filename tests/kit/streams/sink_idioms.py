"""Ways in which users process the frame that a sink receives. Each idiom takes the frame and returns its result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

__all__ = ["IDIOMS", "idiom_result"]

Idiom = Callable[[DataFrame], object]


def _view(rows: DataFrame, query: str) -> DataFrame:
    rows.createOrReplaceTempView("delivered")
    return rows.sparkSession.sql(query)


def _joined_with_own_aggregate(rows: DataFrame) -> DataFrame:
    sums = rows.groupBy((F.col("total") % 2).alias("odd")).agg(F.sum("visits").alias("all"))
    return rows.join(sums, rows.total % 2 == sums.odd)


def _cached(rows: DataFrame) -> DataFrame:
    cached = rows.cache()
    cached.count()
    cached.unpersist(True)
    return rows.union(rows)


def _persisted_part(rows: DataFrame) -> DataFrame:
    part = rows.where("total > 1").persist()
    return part.join(rows, "user").union(part.join(part, "user"))


def _cleared(rows: DataFrame) -> DataFrame:
    rows.count()
    rows.sparkSession.catalog.clearCache()
    return rows


def _cached_and_cleared(rows: DataFrame) -> DataFrame:
    rows.cache().count()
    rows.sparkSession.catalog.clearCache()
    return rows.join(rows, "user")


def _written_twice(rows: DataFrame) -> list[object]:
    with tempfile.TemporaryDirectory() as folder:
        row_count = rows.count()
        for name in ("one", "two"):
            rows.write.parquet(f"{folder}/{name}")
        return [row_count, rows.sparkSession.read.parquet(f"{folder}/one", f"{folder}/two").collect()]


def _merged(rows: DataFrame) -> list[Row]:
    """Update existing rows and insert new ones. The rows are read twice, as in MERGE."""
    spark = rows.sparkSession
    with tempfile.TemporaryDirectory() as folder:
        rows.where("total % 2 = 0").selectExpr("user", "0L visits", "0L total").write.parquet(f"{folder}/t")
        target = spark.read.parquet(f"{folder}/t")
        updated = target.join(rows, "user").select("user", rows.visits, rows.total)
        merged = updated.union(rows.join(target, "user", "left_anti"))
        return merged.union(target.join(rows, "user", "left_anti")).collect()


def _in_partitions(rows: DataFrame) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:

        def keep(part: Iterator[Row]) -> None:
            for row in part:
                Path(folder, f"{row.user}-{row.total}").touch()

        rows.foreachPartition(keep)
        return sorted(path.name for path in Path(folder).iterdir())


def _in_pandas(rows: DataFrame) -> DataFrame:
    def largest(group: pd.DataFrame) -> pd.DataFrame:
        return group.nlargest(1, "total")

    return rows.union(rows).groupBy((F.col("total") % 2).alias("odd")).applyInPandas(largest, rows.schema)


IDIOMS: dict[str, Idiom] = {
    "collect": lambda rows: rows,
    "union with itself, filtered": lambda rows: rows.union(rows).where("total > 1").union(rows),
    "self-join": lambda rows: rows.join(rows, "user"),
    "broadcast self-join": lambda rows: rows.join(F.broadcast(rows), "user"),
    "join with its own aggregate": _joined_with_own_aggregate,
    "view and scalar subquery": lambda rows: _view(
        rows, "select * from delivered where total > (select avg(total) from delivered)"
    ),
    "count and two writes": _written_twice,
    "merge": _merged,
    "for each partition": _in_partitions,
    "apply in pandas": _in_pandas,
    "to pandas": lambda rows: rows.union(rows).toPandas().to_dict("records"),  # type: ignore[attr-defined]
    "to local iterator": lambda rows: list(rows.union(rows).toLocalIterator()),
    "rdd": lambda rows: rows.rdd.union(rows.rdd).map(tuple).collect(),
    "limit and tail": lambda rows: [
        rows.orderBy("user").limit(2).collect(),
        rows.orderBy("user").tail(2),
        len(rows.take(1)),
    ],
    "local checkpoint": lambda rows: rows.localCheckpoint().union(rows),
    "cached, then released": _cached,
    "part persisted": _persisted_part,
    "never persisted, released": lambda rows: rows.unpersist(True).union(rows),
    "cache cleared": _cleared,
    "cached and cache cleared": _cached_and_cleared,
}
"""Idioms that use the frame several times in a plan, run jobs on it, and release cached data that it reads."""


def idiom_result(idiom: str, rows: DataFrame) -> str:
    """Return the result of an idiom on a frame as text, without the order of rows."""
    return _text(IDIOMS[idiom](rows))


def _text(value: object) -> str:
    if isinstance(value, DataFrame):
        return _text(value.collect())
    if isinstance(value, list):
        return "[" + ", ".join(sorted(map(_text, value))) + "]"
    return str(value)
