"""A query is cut at its stateful nodes, whatever it was written with: inputs below, stages, pieces between, and one on
top. What cannot be had is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import Input, PlanPiece, marks_in
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.spark.plans.cut_query import CutQuery, check_plan
from riffle_spark.spark.plans.plan_nodes import Catalyst, analysed
from tests.kit.stream_plans import ROOT, cut_of, rdd_of, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

SCHEMA = "at timestamp, page string, n long"
BOUND = "page = other and seen >= at and seen <= at + interval 1 minute"
Query = Callable[["Frames"], DataFrame]


class Frames:
    """Two wrapped streams with watermarks, one of whose views is ``events``; and a static frame."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.static = spark.range(3).selectExpr("concat('p', id) as page", "id as weight")
        self.plain = spark.readStream.schema(SCHEMA).parquet(str(folder))
        rows = spark.createDataFrame([], SCHEMA)
        self.bare = stream_of(rows, str(folder))
        self.events = self.bare.withWatermark("at", "10 minutes")
        others = self.bare.selectExpr("at as seen", "page as other", "n as m")
        self.others = others.withWatermark("seen", "5 minutes")
        self.events.createOrReplaceTempView("events")


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frames]:
    """Such frames; the view goes at the end."""
    yield Frames(spark, tmp_path_factory.mktemp("events"))
    spark.catalog.dropTempView("events")


def shape_of(cut: CutQuery) -> str:
    """Return a cut in a line: of each stage what it is and is fed by, and the piece on top by its own nodes."""

    def told(part: Input | PlanPiece) -> str:
        if isinstance(part, Input):
            return f"input {part.number}"
        stages = "+".join(str(hole.stage) for hole in part.holes)
        return " ".join([*(node.kind for node in part.nodes()), f"stage {stages}"])

    stages = [f"{stage.kind}({', '.join(map(told, stage.below))})" for stage in cut.stages]
    return "; ".join([*stages, told(cut.values.top)])


def of_window(frames: Frames) -> DataFrame:
    """Count in windows."""
    return frames.events.groupBy(F.window("at", "1 minute"), "page").count()


def table_of(frames: Frames) -> DataFrame:
    """Return the others as a table."""
    return riffle_spark.latest(frames.others, "other", by="seen")


def kept(key: object, frames: Iterable[pd.DataFrame], state: object) -> Iterator[pd.DataFrame]:
    """Answer nothing."""
    return iter(())


class Called:
    """A function for the JVM that no test lets it call."""

    class Java:
        """As Py4J asks for it."""

        implements = (
            "org.apache.spark.api.java.function.MapFunction",
            "org.apache.spark.api.java.function.MapGroupsWithStateFunction",
        )


def scala_groups(events: DataFrame) -> DataFrame:
    """Return what mapGroupsWithState makes of a stream, as Java has it."""
    context = events.sparkSession.sparkContext
    assert context._gateway is not None
    encoders = context._gateway.jvm.org.apache.spark.sql.Encoders
    ensure_callback_server_started(context._gateway)
    grouped = events._jdf.groupByKey(Called(), encoders.STRING())
    made = grouped.mapGroupsWithState(Called(), encoders.LONG(), encoders.LONG()).toDF()
    return riffle_spark.on(DataFrame(made, events.sparkSession))


SHAPES: dict[str, tuple[Query, str]] = {
    "a tumbling window": (of_window, "aggregate(input 0); stage 0"),
    "a condition and a projection on it": (
        lambda f: of_window(f).where("count > 1").select("window.end"), "aggregate(input 0); Project Filter stage 0"
    ),
    "HAVING in SQL over a view": (
        lambda f: f.spark.sql("select page, count(*) from events group by page having count(*) > 1"),
        "aggregate(input 0); Filter stage 0",
    ),
    "a window in SQL": (
        lambda f: f.spark.sql("select window(at, '1 minute') w, sum(n) from events group by window(at, '1 minute')"),
        "aggregate(input 0); stage 0",
    ),
    "a sub-query in FROM": (
        lambda f: f.spark.sql("select c + 1 from (select page, count(*) c from events group by page) where c > 1"),
        "aggregate(input 0); Project Filter SubqueryAlias stage 0",
    ),
    "WITH, used twice": (
        lambda f: f.spark.sql(
            "with c as (select page, count(*) n from events group by page) select n from c union all select n from c"
        ),
        "aggregate(input 0); aggregate(input 1); "
        "Union Project SubqueryAlias SubqueryAlias Project Project SubqueryAlias SubqueryAlias stage 0+1",
    ),
    "SELECT DISTINCT": (
        lambda f: f.spark.sql("select distinct at from events"), "aggregate(input 0); stage 0"
    ),
    "a session": (
        lambda f: f.events.groupBy(F.session_window("at", "1 minute"), "page").count(), "aggregate(input 0); stage 0"
    ),
    "a union below": (
        lambda f: f.events.union(f.events).groupBy("page", "at").count(), "aggregate(input 0); stage 0"
    ),
    "a union with a plain stream": (
        lambda f: f.plain.union(f.bare).withWatermark("at", "1 minute").groupBy("at").count(),
        "aggregate(input 0); stage 0",
    ),
    "a union of two aggregates": (
        lambda f: f.events.groupBy("at").count().union(f.events.groupBy("at").agg(F.sum("n"))),
        "aggregate(input 0); aggregate(input 1); Union Project stage 0+1",
    ),
    "a static join below": (
        lambda f: f.events.join(f.static, "page").groupBy("at").agg(F.sum("weight")), "aggregate(input 0); stage 0"
    ),
    "a static join above": (
        lambda f: f.events.groupBy("at", "page").count().join(f.static, "page"),
        "aggregate(input 0); Project Join Project Range stage 0",
    ),
    "window of windows": (
        lambda f: of_window(f).groupBy(F.window(F.window_time("window"), "5 minutes")).count(),
        "aggregate(input 0); aggregate(Project Filter Project stage 0); stage 1",
    ),
    "distinct, then an aggregate": (
        lambda f: f.events.dropDuplicates(["page", "at"]).groupBy("at").count(),
        "distinct(input 0); aggregate(stage 0); stage 1",
    ),
    "distinct rows": (lambda f: f.events.select("page", "at").distinct(), "distinct(input 0); stage 0"),
    "within the watermark": (
        lambda f: f.events.dropDuplicatesWithinWatermark(["page"]).select("n"), "distinct(input 0); Project stage 0"
    ),
    "a join of streams": (
        lambda f: f.events.join(f.others, F.expr(BOUND)).where("n < m"), "join(input 0, input 1); Filter stage 0"
    ),
    "a join behind an aggregate": (
        lambda f: of_window(f).withColumn("at", F.window_time("window")).join(f.others, F.expr(BOUND)),
        "aggregate(input 0); join(Project Project stage 0, input 1); stage 1",
    ),
    "a join with a table": (
        lambda f: f.events.join(table_of(f).where("m > 1"), F.expr("page = other"), "left_outer"),
        "table(input 0, input 1); stage 0",
    ),
    "a table that is on the left, and another behind it": (
        lambda f: table_of(f).join(f.events, F.expr("page = other"), "right").join(
            riffle_spark.latest(f.bare.selectExpr("n as number", "page as named"), "number", by="named"),
            F.expr("n = number"), "left_anti",
        ).select("m"),
        "table(input 0, input 1); table(stage 0, input 2); Project stage 1",
    ),
    "an aggregate behind a table": (
        lambda f: f.events.join(table_of(f), F.expr("page = other")).groupBy("at").count(),
        "table(input 0, input 1); aggregate(stage 0); stage 1",
    ),
    "a cube": (lambda f: f.events.cube("page", "at").count(), "aggregate(input 0); stage 0"),
    "groups with state": (
        lambda f: f.events.groupBy("page").applyInPandasWithState(kept, SCHEMA, "n long", "append", "NoTimeout"),
        "groups(input 0); stage 0",
    ),
    "pandas between": (
        lambda f: f.events.mapInPandas(lambda frames: frames, SCHEMA).groupBy("page").count(),
        "aggregate(input 0); stage 0",
    ),
    "an order in complete mode": (
        lambda f: f.events.groupBy("page").count().orderBy("count").limit(3),
        "aggregate(input 0); GlobalLimit LocalLimit Sort stage 0",
    ),
    "no state at all": (lambda f: f.events.where("n > 1").select("page"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_query_is_cut_at_its_stateful_nodes(name: str, frames: Frames) -> None:
    """Stages are counted from the sources on, and the marks are gone from every part."""
    query, shape = SHAPES[name]
    cut = cut_of(query(frames))
    if not shape:
        assert (cut.stages, cut.inputs, cut.top.holes) == ((), (), ())
    else:
        assert shape_of(cut) == shape
    assert cut.root == ROOT
    assert not marks_in(cut.values.plan)
    assert not any(marks_in(one.plan) for one in cut.inputs)


UNTIMED = (
    "HAVING in SQL over a view",
    "WITH, used twice",
    "a sub-query in FROM",
    "pandas between",
    "an order in complete mode",
)
APPENDED = [name for name in SHAPES if name not in UNTIMED]


@pytest.mark.parametrize("name", APPENDED)
def test_what_spark_allows_in_append_mode_is_allowed(name: str, frames: Frames) -> None:
    """Neither Spark's checker nor ours has anything against these."""
    check_plan(cut_of(SHAPES[name][0](frames)), "append")


def test_an_order_and_a_limit_stand_in_complete_mode(frames: Frames) -> None:
    """There all of the result is sorted with each batch."""
    check_plan(cut_of(SHAPES["an order in complete mode"][0](frames)), "complete")


def test_an_aggregate_behind_a_table_has_every_mode(frames: Frames) -> None:
    """As behind a static frame; changes are never complete, whatever results are."""
    cut = cut_of(SHAPES["an aggregate behind a table"][0](frames))
    for mode in ("append", "update", "complete"):
        check_plan(cut, mode)


def test_distinct_values_are_allowed_though_spark_refuses_them(frames: Frames) -> None:
    """In whatever mode an aggregate may have, also in an expression."""
    query = frames.events.groupBy("page").agg(F.count_distinct("n") + F.count("*"), F.sum_distinct("n"))
    check_plan(cut_of(query), "update")


BY_SPARK: dict[str, tuple[Query, str, str]] = {
    "append without a watermark": (lambda f: f.bare.groupBy("page").count(), "append", "without watermark"),
    "an order in update mode": (lambda f: f.events.groupBy("page").count().orderBy("page"), "update", "Sorting"),
    "a session in update mode": (SHAPES["a session"][0], "update", "[Ss]ession"),
    "distinct values without a watermark": (
        lambda f: f.bare.groupBy("page").agg(F.count_distinct("n")), "append", "without watermark",
    ),
    "an outer join without a bound": (
        lambda f: f.bare.join(f.others, F.expr("page = other"), "left_outer"), "append", "watermark",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SPARK)
def test_what_spark_refuses_is_refused_in_its_words(name: str, frames: Frames) -> None:
    """Its own checker is asked first."""
    query, mode, told = BY_SPARK[name]
    with pytest.raises(AnalysisException, match=told):
        check_plan(cut_of(query(frames)), mode)


BY_US: dict[str, tuple[Query, str]] = {
    "limit": (lambda f: f.events.dropDuplicates(["at"]).limit(3), "append"),
    "watermark": (lambda f: f.bare.groupBy("at").count().withWatermark("at", "1 minute"), "update"),
    "set": (lambda f: f.events.dropDuplicates(["at"]).exceptAll(f.spark.createDataFrame([], SCHEMA)), "append"),
    "unknown": (
        lambda f: f.events.groupBy("page").cogroup(f.others.groupBy("other"))
        .applyInPandas(lambda left, _: left, SCHEMA).dropDuplicates(["page"]), "update",
    ),
    "scala": (lambda f: scala_groups(f.events).dropDuplicates(["value"]), "update"),
    "table_alone": (lambda f: f.events.join(table_of(f).limit(3), F.expr("page = other")), "append"),
    "table_outer": (lambda f: f.events.join(table_of(f), F.expr("page = other"), "full_outer"), "append"),
    "join_keys": (lambda f: f.events.join(f.others, F.expr("seen >= at and seen <= at + interval 1 minute")), "append"),
}  # fmt: skip


BY_READERS = {
    *(
        "array_key",
        "void_key",
        "collated_key",
        "random_key",
        "distinct",
        "own_buffer",
        "user_function",
        "ordered_texts",
    ),
    *("event_times", "struct_key", "several_stages", "join_condition", "join_structs", "several_results"),
    *("result_and_input", "table_keys"),
}
"""What tests of aggregates, de-duplications, joins, tables and chains ask for, and two of below."""


@pytest.mark.parametrize("name", BY_US)
def test_what_only_we_refuse_tells_the_term_the_reason_and_the_way_out(name: str, frames: Frames) -> None:
    """The three are those of the list, and the place is what Spark calls the node."""
    query, mode = BY_US[name]
    with pytest.raises(ConfigError) as refused:
        check_plan(cut_of(query(frames)), mode)
    one = REFUSED[name]
    assert refused.value.problem == f"{one.term} is refused: {one.reason}"
    assert (refused.value.remedy, bool(refused.value.where)) == (one.way_out, True)


def test_every_term_of_the_list_is_met_by_a_query() -> None:
    """Here, or with the keys and functions of aggregates, de-duplications and joins."""
    assert REFUSED.keys() == BY_US.keys() | BY_READERS
    assert not BY_US.keys() & BY_READERS


def test_a_key_of_users_functions_that_is_a_struct_is_refused(frames: Frames) -> None:
    """Where the stage is read, for people too."""
    groups = frames.events.withColumn("w", F.window("at", "1 minute")).groupBy("w")
    with pytest.raises(ConfigError) as refused:
        groups.applyInPandasWithState(kept, SCHEMA, "n long", "append", "NoTimeout").explain()
    assert REFUSED["struct_key"].term in refused.value.problem


def test_a_stage_behind_an_aggregate_that_answers_again_is_refused(frames: Frames) -> None:
    """Spark warns of it or refuses it, as it is configured; a de-duplication below an aggregate is another matter."""
    frames.spark.conf.set("spark.sql.streaming.statefulOperator.checkCorrectness.enabled", "false")
    with pytest.raises(ConfigError, match="count twice"):
        check_plan(cut_of(frames.events.groupBy("at").count().dropDuplicates(["at"])), "update")
    check_plan(cut_of(frames.events.dropDuplicates(["page"]).groupBy("page").count()), "update")


def test_rows_that_come_past_a_stage_are_refused(frames: Frames) -> None:
    """A union of an aggregate with its own stream would have its rows in other batches than Spark's."""
    query = frames.events.groupBy("at").count().union(frames.events.selectExpr("at", "n"))
    with pytest.raises(ConfigError, match="meet results"):
        cut_of(query)


def test_dates_are_of_the_zone_that_a_query_was_written_in(frames: Frames, spark: SparkSession) -> None:
    """Whatever zone the session has while batches run, as in Spark."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    columns = "date_format(current_date(), 'dd') as day", "date_format(localtimestamp(), 'HH') as hour"
    try:
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
        cut = cut_of(frames.events.groupBy("page").count().selectExpr(*columns))
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        (stage,) = cut.stages
        leaf = Catalyst(spark).rows(
            cut.reader.found(stage.node.handle).output(),
            rdd_of(spark.createDataFrame([("p1", 3)], "page string, n long")),
        )
        (row,) = Catalyst(spark).frame(cut.top.on({0: leaf}, 1_700_000_000_123)).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert tuple(row) == ("15", "11")


def test_two_roots_in_a_query_are_refused_naming_both(frames: Frames) -> None:
    """Stores of one query commit together."""
    other = riffle_spark.on(frames.plain, root="file:///other")
    query = frames.bare.union(other).groupBy("page").count()
    with pytest.raises(ConfigError, match="file:///other, file:///state/of/visits"):
        cut_of(query)


def test_a_piece_that_runs_again_has_the_time_of_its_batch(frames: Frames, spark: SparkSession) -> None:
    """Whatever asks for the time, in a projection, a condition or a static join, is told the batch's."""
    query = (
        frames.events.groupBy("page").count().where("current_timestamp() > timestamp'2001-01-01'")
        .join(frames.static.withColumn("made", F.now()), "page")
        .selectExpr("page", "now() as t", "date_add(current_date(), 1) as d", "made", "localtimestamp() as here")
    )  # fmt: skip
    cut, rows = cut_of(query), spark.createDataFrame([("p1", 3)], "page string, count long")
    (stage,) = cut.stages
    leaf = Catalyst(spark).rows(cut.reader.found(stage.node.handle).output(), rdd_of(rows))
    plan = cut.top.on({0: leaf}, 1_700_000_000_123)
    (row,) = (
        Catalyst(spark).frame(plan).selectExpr("*", "unix_millis(t) as ms", "t = made and t = here as same").collect()
    )
    assert (row["ms"], str(row["d"]), row["same"]) == (1_700_000_000_123, "2023-11-15", True)
    assert Catalyst(spark).frame(cut.top.on({0: leaf}, 946_684_800_000)).collect() == []
    assert analysed(query).isStreaming()
