"""Queries whose plans are recorded: one of each shape, and one for each refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from tests.kit.stream_plans import stream_of

__all__ = ["QUERIES", "REFUSED_QUERIES", "SCHEMA", "Frames", "Query", "kept"]

SCHEMA = "at timestamp, page string, n long"
BOUND = "page = other and seen >= at and seen <= at + interval 1 minute"
Query = Callable[["Frames"], DataFrame]


class Frames:
    """The inputs of the queries: two wrapped streams with watermarks, the view ``events`` of the first, and a static
    frame.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.static = spark.range(3).selectExpr("concat('p', id) as page", "id as weight")
        self.plain = spark.readStream.schema(SCHEMA).parquet(str(folder))
        rows = spark.createDataFrame([], SCHEMA)
        self.bare = stream_of(rows, str(folder))
        self.events = self.bare.withWatermark("at", "10 minutes")
        other_rows = self.bare.selectExpr("at as seen", "page as other", "n as m")
        self.others = other_rows.withWatermark("seen", "5 minutes")
        self.events.createOrReplaceTempView("events")


def of_window(frames: Frames) -> DataFrame:
    """Count the rows of each page in tumbling windows."""
    return frames.events.groupBy(F.window("at", "1 minute"), "page").count()


def table_of(frames: Frames) -> DataFrame:
    """Return the second stream as a table."""
    return riffle_spark.latest(frames.others, "other", by="seen")


def kept(key: object, frames: Iterable[pd.DataFrame], state: object) -> Iterator[pd.DataFrame]:
    """Return no rows."""
    return iter(())


class Called:
    """A Python object that Java accepts as a function. No test calls it."""

    class Java:
        """The declaration of Java interfaces that Py4J requires."""

        implements = (
            "org.apache.spark.api.java.function.MapFunction",
            "org.apache.spark.api.java.function.MapGroupsWithStateFunction",
        )


def scala_groups(events: DataFrame) -> DataFrame:
    """Return a wrapped stream that goes through Scala's ``mapGroupsWithState``."""
    context = events.sparkSession.sparkContext
    assert context._gateway is not None
    encoders = context._gateway.jvm.org.apache.spark.sql.Encoders
    ensure_callback_server_started(context._gateway)
    grouped = events._jdf.groupByKey(Called(), encoders.STRING())
    counted_frame = grouped.mapGroupsWithState(Called(), encoders.LONG(), encoders.LONG()).toDF()
    return riffle_spark.on(DataFrame(counted_frame, events.sparkSession))


QUERIES: dict[str, Query] = {
    "a tumbling window": of_window,
    "a condition and a projection on it": lambda f: of_window(f).where("count > 1").select("window.end"),
    "HAVING in SQL over a view": lambda f: f.spark.sql(
        "select page, count(*) from events group by page having count(*) > 1"
    ),
    "a window in SQL": lambda f: f.spark.sql(
        "select window(at, '1 minute') w, sum(n) from events group by window(at, '1 minute')"
    ),
    "a sub-query in FROM": lambda f: f.spark.sql(
        "select c + 1 from (select page, count(*) c from events group by page) where c > 1"
    ),
    "WITH, used twice": lambda f: f.spark.sql(
        "with c as (select page, count(*) n from events group by page) select n from c union all select n from c"
    ),
    "SELECT DISTINCT": lambda f: f.spark.sql("select distinct at from events"),
    "a session": lambda f: f.events.groupBy(F.session_window("at", "1 minute"), "page").count(),
    "a union below": lambda f: f.events.union(f.events).groupBy("page", "at").count(),
    "a union with a plain stream": lambda f: (
        f.plain.union(f.bare).withWatermark("at", "1 minute").groupBy("at").count()
    ),
    "a union of two aggregates": lambda f: f.events.groupBy("at").count().union(f.events.groupBy("at").agg(F.sum("n"))),
    "a static join below": lambda f: f.events.join(f.static, "page").groupBy("at").agg(F.sum("weight")),
    "a static join above": lambda f: f.events.groupBy("at", "page").count().join(f.static, "page"),
    "window of windows": lambda f: of_window(f).groupBy(F.window(F.window_time("window"), "5 minutes")).count(),
    "distinct, then an aggregate": lambda f: f.events.dropDuplicates(["page", "at"]).groupBy("at").count(),
    "distinct rows": lambda f: f.events.select("page", "at").distinct(),
    "within the watermark": lambda f: f.events.dropDuplicatesWithinWatermark(["page"]).select("n"),
    "a join of streams": lambda f: f.events.join(f.others, F.expr(BOUND)).where("n < m"),
    "a join behind an aggregate": lambda f: (
        of_window(f).withColumn("at", F.window_time("window")).join(f.others, F.expr(BOUND))
    ),
    "a join with a table": lambda f: f.events.join(table_of(f).where("m > 1"), F.expr("page = other"), "left_outer"),
    "a table that is on the left, and another behind it": lambda f: (
        table_of(f)
        .join(f.events, F.expr("page = other"), "right")
        .join(
            riffle_spark.latest(f.bare.selectExpr("n as number", "page as named"), "number", by="named"),
            F.expr("n = number"),
            "left_anti",
        )
        .select("m")
    ),
    "an aggregate behind a table": lambda f: f.events.join(table_of(f), F.expr("page = other")).groupBy("at").count(),
    "a cube": lambda f: f.events.cube("page", "at").count(),
    "groups with state": lambda f: f.events.groupBy("page").applyInPandasWithState(
        kept, SCHEMA, "n long", "append", "NoTimeout"
    ),
    "pandas between": lambda f: f.events.mapInPandas(lambda frames: frames, SCHEMA).groupBy("page").count(),
    "an order in complete mode": lambda f: f.events.groupBy("page").count().orderBy("count").limit(3),
    "no state at all": lambda f: f.events.where("n > 1").select("page"),
}
"""A query of each shape."""

REFUSED_QUERIES: dict[str, tuple[Query, str]] = {
    "limit": (lambda f: f.events.dropDuplicates(["at"]).limit(3), "append"),
    "watermark": (lambda f: f.bare.groupBy("at").count().withWatermark("at", "1 minute"), "update"),
    "set": (lambda f: f.events.dropDuplicates(["at"]).exceptAll(f.spark.createDataFrame([], SCHEMA)), "append"),
    "unknown": (
        lambda f: (
            f.events.groupBy("page")
            .cogroup(f.others.groupBy("other"))
            .applyInPandas(lambda frame, _: frame, SCHEMA)
            .dropDuplicates(["page"])
        ),
        "update",
    ),
    "scala": (lambda f: scala_groups(f.events).dropDuplicates(["value"]), "update"),
    "table_alone": (lambda f: f.events.join(table_of(f).limit(3), F.expr("page = other")), "append"),
    "table_outer": (lambda f: f.events.join(table_of(f), F.expr("page = other"), "full_outer"), "append"),
    "join_keys": (lambda f: f.events.join(f.others, F.expr("seen >= at and seen <= at + interval 1 minute")), "append"),
}
"""A query for each refusal of a plan, by the name of the refusal, and the output mode in which it is started."""
