"""Text that is not UTF-8, NULL structs of NOT NULL fields, and NULL variants in wrapped queries: all is as in Spark.

Each query runs over four batches. Between the second and the third it starts again, and all local copies are lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import riffle_spark
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

SCHEMA = "at timestamp, h string, n long"
TEXTS = ("636166e9", "ff", "c3a9", "", "61eda080", None)
FILES = [
    [{"at": f"2024-05-01T00:00:{10 * file + at:02}Z", "h": h, "n": file + at} for at, h in enumerate(TEXTS)]
    for file in range(4)
]


HAS_VARIANTS = hasattr(T, "VariantType")


def events(stream: DataFrame) -> DataFrame:
    """Text of any bytes, a struct that is NULL in every second row and has NOT NULL fields, and such a variant."""
    return stream.withWatermark("at", "1 minute").selectExpr(
        "at", "n", "cast(unhex(h) as string) k",
        "case when n % 2 = 0 then struct(coalesce(n, 0) as a, 't' as b) end v",
        f"case when n % 2 = 0 then {'parse_json' if HAS_VARIANTS else 'string'}('[1]') end j",
    )  # fmt: skip


def other(frame: DataFrame) -> DataFrame:
    """The same events, under other names."""
    return frame.selectExpr("at at2", "n n2", "k k2", "v v2", "j j2")


def joined(frame: DataFrame) -> DataFrame:
    """Pairs of equal text that are near in time."""
    near = F.expr("k = k2 and n = n2 and at2 between at - interval 5 seconds and at + interval 5 seconds")
    return frame.join(other(frame), near, "leftOuter")


QUERIES: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "text as a key": ("update", lambda e: e.groupBy("k").count()),
    "text in aggregates": (
        "update",
        lambda e: e.groupBy(F.col("n") % 2).agg(F.min("k"), F.max("k"), F.max_by("k", "n"), F.collect_list("k")),
    ),
    "text in a window": ("update", lambda e: e.groupBy(F.window("at", "20 seconds"), "k").count()),
    "distinct text": ("append", lambda e: e.dropDuplicates(["k"])),
    "distinct structs and text": ("append", lambda e: e.dropDuplicates(["k", "n"])),
    "a join": ("append", joined),
    "structs in aggregates": (
        "update",
        lambda e: e.groupBy("k").agg(F.max_by("v", "n"), F.last("v"), F.max_by(F.array("v"), "n")),
    ),
    "text in more aggregates": (
        "update",
        lambda e: e.groupBy(F.col("n") % 2).agg(
            F.array_sort(F.collect_set("k")).alias("s"), F.approx_count_distinct("k"), F.min_by("k", "n"), F.first("k")
        ),
    ),
    "structs in more aggregates": (
        "update",
        lambda e: e.groupBy("k").agg(F.array_sort(F.collect_list("v")), F.first("v"), F.min_by("v", "n"), F.max("v")),
    ),
    "maps of structs": (
        "update",
        lambda e: e.groupBy("n").agg(F.max_by(F.create_map(F.coalesce("k", F.lit("")), F.col("v")), "at").alias("m")),
    ),
    "sessions": (
        "complete",
        lambda e: e.groupBy(F.session_window("at", "3 seconds"), "k").agg(F.count("*"), F.max_by("v", "n")),
    ),
    "variants in aggregates": ("update", lambda e: e.groupBy("k").agg(F.max_by("j", "n"))),
}


OFTEN = ("text as a key",)
"""The query that every run plays."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [] if name in OFTEN else [pytest.mark.long]
    return [*marks, pytest.mark.needs_spark4("variants")] if name.startswith("variants") else marks


def shown(frame: DataFrame) -> DataFrame:
    """Show all bytes of text, which ``collect`` would replace."""
    return frame.select(
        *[_shown(F.col(f"`{one.name}`"), one.dataType).alias(f"c{at}") for at, one in enumerate(frame.schema)]
    )


def _shown(column: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.StringType):
        return F.hex(column.cast("binary"))
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.StringType):
        return F.transform(F.array_sort(column), lambda one: F.hex(one.cast("binary")))
    if isinstance(kind, T.MapType):
        return F.transform(F.map_entries(column), lambda one: F.struct(F.hex(one["key"].cast("binary")), one["value"]))
    return F.to_json(column) if HAS_VARIANTS and isinstance(kind, T.VariantType) else column


def played(
    spark: SparkSession, folder: Path, mode: str, query_of: Callable[[DataFrame], DataFrame], *, ours: bool
) -> list[list[str]]:
    """Return the rows of each batch that has some: Spark has one more without rows after a restart."""
    feed, found = Feed(folder / "in", SCHEMA), dict[int, list[Row]]()
    settings = settings_in(folder) if ours else None

    def keep(rows: DataFrame, batch: int) -> None:
        found[batch] = shown(rows).collect()

    for files in (FILES[:2], FILES[2:]):
        for file in files:
            feed.add(file)
        stream = events(feed.stream(spark))
        frame = query_of(riffle_spark.on(stream, settings=settings) if settings else stream)
        writer = frame.writeStream.outputMode(mode).foreachBatch(keep)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        shutil.rmtree(folder / "local", ignore_errors=True)
    return [sorted(map(str, found[batch])) for batch in sorted(found) if found[batch]]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in QUERIES])
@pytest.mark.long
def test_answers_are_sparks(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Batch by batch, over a restart, with every local copy lost."""
    mode, query_of = QUERIES[name]
    expected = played(spark, tmp_path / "spark", mode, query_of, ours=False)
    assert played(spark, tmp_path / "ours", mode, query_of, ours=True) == expected
    assert sum(map(len, expected)) >= len(TEXTS)
