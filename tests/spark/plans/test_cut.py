"""Spark's checks of wrapped queries, and the parts of a cut query on rows.

``tests/process/plans`` tests on recorded plans how queries are cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import __version__ as spark_version
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.spark.plans.cut_query import check_plan
from riffle_spark.spark.plans.plan_nodes import Catalyst, analysed
from tests.kit.planned_queries import QUERIES, REFUSED_QUERIES, SCHEMA, Frames, Query, kept
from tests.kit.queries.played_query import configured
from tests.kit.stream_plans import cut_of, rdd_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

VERSION = tuple(int(part) for part in spark_version.split(".")[:2])


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frames]:
    """The frames of the planned queries. Their view is dropped at the end."""
    yield Frames(spark, tmp_path_factory.mktemp("events"))
    spark.catalog.dropTempView("events")


UNTIMED = (
    "HAVING in SQL over a view",
    "WITH, used twice",
    "a sub-query in FROM",
    "pandas between",
    "an order in complete mode",
)
APPENDED = [name for name in QUERIES if name not in UNTIMED]


@pytest.mark.parametrize("name", APPENDED)
def test_queries_that_spark_allows_in_append_mode_are_allowed(name: str, frames: Frames) -> None:
    """Neither Spark's checker nor riffle refuses these queries in append mode."""
    check_plan(cut_of(QUERIES[name](frames)), "append")


def test_an_aggregate_of_a_table_join_allows_every_output_mode(frames: Frames) -> None:
    """An aggregate of a join with a table is allowed in every output mode, as after a join with a static frame."""
    cut = cut_of(QUERIES["an aggregate behind a table"](frames))
    for mode in ("append", "update", "complete"):
        check_plan(cut, mode)


def test_distinct_values_are_allowed_though_spark_refuses_them(frames: Frames) -> None:
    """Distinct aggregates are allowed, also in an expression, although Spark refuses them."""
    query = frames.events.groupBy("page").agg(F.count_distinct("n") + F.count("*"), F.sum_distinct("n"))
    check_plan(cut_of(query), "update")


BY_SPARK: dict[str, tuple[Query, str, str]] = {
    "append without a watermark": (lambda f: f.bare.groupBy("page").count(), "append", "without watermark"),
    "an order in update mode": (lambda f: f.events.groupBy("page").count().orderBy("page"), "update", "Sorting"),
    "a session in update mode": (QUERIES["a session"], "update", "[Ss]ession"),
    "distinct values without a watermark": (
        lambda f: f.bare.groupBy("page").agg(F.count_distinct("n")), "append", "without watermark",
    ),
    "an outer join without a bound": (
        lambda f: f.bare.join(f.others, F.expr("page = other"), "left_outer"), "append", "watermark",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_SPARK)
def test_queries_that_spark_refuses_raise_sparks_error(name: str, frames: Frames) -> None:
    """A query that Spark refuses raises Spark's error."""
    query, mode, message = BY_SPARK[name]
    with pytest.raises(AnalysisException, match=message):
        check_plan(cut_of(query(frames)), mode)


BY_READERS = {
    *(
        "array_key",
        "void_key",
        "collated_key",
        "random_key",
        "user_key",
        "distinct",
        "own_buffer",
        "user_function",
        "ordered_texts",
    ),
    *("event_times", "struct_key", "several_stages", "join_condition", "join_structs", "several_results"),
    *("result_and_input", "table_keys", "join_outside"),
}
"""The terms of ``REFUSED`` that other tests cover: those of aggregates, de-duplications, joins, tables and chains, and
two below.
"""


@pytest.mark.parametrize("name", REFUSED_QUERIES)
def test_queries_that_only_riffle_refuses_raise_their_terms_error(name: str, frames: Frames) -> None:
    """A query that only riffle refuses raises the error of its term, with the place that Spark names."""
    query, mode = REFUSED_QUERIES[name]
    with pytest.raises(ConfigError) as refused:
        check_plan(cut_of(query(frames)), mode)
    assert (refused.value.id, bool(refused.value.where)) == (REFUSED[name].id, True)


def test_every_refused_term_has_a_query() -> None:
    """Each term of ``REFUSED`` has a query in ``REFUSED_QUERIES`` or a test in another file."""
    assert REFUSED.keys() == REFUSED_QUERIES.keys() | BY_READERS
    assert not REFUSED_QUERIES.keys() & BY_READERS


def test_a_struct_as_key_of_a_function_of_groups_is_refused(frames: Frames) -> None:
    """``explain`` refuses a function of groups whose key is a struct."""
    groups = frames.events.withColumn("w", F.window("at", "1 minute")).groupBy("w")
    with pytest.raises(ConfigError) as refused:
        groups.applyInPandasWithState(kept, SCHEMA, "n long", "append", "NoTimeout").explain()
    assert REFUSED["struct_key"].problem in refused.value.problem


def test_a_union_of_an_aggregate_with_its_input_is_refused(frames: Frames) -> None:
    """A union of an aggregate with its own input is refused, because Spark would return these rows in another batch."""
    query = frames.events.groupBy("at").count().union(frames.events.selectExpr("at", "n"))
    with pytest.raises(ConfigError, match="RIFFLE-0189"):
        cut_of(query)


def test_dates_use_the_time_zone_of_the_querys_definition(frames: Frames, spark: SparkSession) -> None:
    """Dates use the time zone that the session had when the query was defined, as in Spark."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    columns = "date_format(current_date(), 'dd') as day", "date_format(localtimestamp(), 'HH') as hour"
    try:
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
        cut = cut_of(frames.events.groupBy("page").count().selectExpr(*columns))
        spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
        (stage,) = cut.stages
        leaf = Catalyst(spark).rows(
            cut.reader.fetch(stage.node.handle).output(),
            rdd_of(spark.createDataFrame([("p1", 3)], "page string, n long")),
        )
        (row,) = Catalyst(spark).frame(cut.top.fill({0: leaf}, 1_700_000_000_123)).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert tuple(row) == ("15", "11")


@pytest.mark.needs_spark4("SQL with |>")
def test_a_query_with_pipe_operators_is_allowed(frames: Frames, spark: SparkSession) -> None:
    """Operators of ``|>`` before and after a stateful operator are allowed, as the same query without them."""
    frames.plain.createOrReplaceTempView("piped")
    statement = "FROM piped |> EXTEND n + 1 AS m |> AGGREGATE sum(m) AS total GROUP BY page |> WHERE total > 3"
    cut = cut_of(riffle_spark.on(spark.sql(statement)))
    spark.catalog.dropTempView("piped")
    check_plan(cut, "update")
    assert [stage.kind for stage in cut.stages] == ["aggregate"]


@pytest.mark.parametrize(
    ("clocks", "conf", "expected"),
    [
        pytest.param(
            ("current_time()", "current_time(0)", "current_time(2)"), "spark.sql.timeType.enabled",
            ("03:43:20.123", "03:43:20", "03:43:20.12"),
            marks=pytest.mark.skipif(VERSION < (4, 1), reason="Spark has the type time since 4.1"),
        ),
        pytest.param(
            ("current_timestamp(9)", "localtimestamp(7)"), "spark.sql.timestampNanosTypes.enabled",
            ("2023-11-15 03:43:20.123", "2023-11-15 03:43:20.123"),
            marks=pytest.mark.skipif(VERSION < (4, 3), reason="Spark has timestamps of nanoseconds since 4.3"),
        ),
    ],
)  # fmt: skip
def test_new_clocks_return_the_time_of_the_batch(
    clocks: tuple[str, ...], conf: str, expected: tuple[str, ...], frames: Frames, spark: SparkSession
) -> None:
    """After a stateful operator, clocks of newer types return the batch's time in the session's zone."""
    with configured(spark, {conf: "true", "spark.sql.session.timeZone": "Asia/Kolkata"}):
        cut = cut_of(
            frames.events.groupBy("page").count().selectExpr(*(f"CAST({clock} AS STRING)" for clock in clocks))
        )
        (stage,) = cut.stages
        rows = spark.createDataFrame([("p1", 3)], "page string, count long")
        leaf = Catalyst(spark).rows(cut.reader.fetch(stage.node.handle).output(), rdd_of(rows))
        (row,) = Catalyst(spark).frame(cut.top.fill({0: leaf}, 1_700_000_000_123)).collect()
    assert tuple(row) == expected


def test_two_roots_in_a_query_are_refused_naming_both(frames: Frames) -> None:
    """A query over two wrapped frames with different roots is refused, because its stores commit together."""
    other = riffle_spark.on(frames.plain, root="file:///other")
    query = frames.bare.union(other).groupBy("page").count()
    with pytest.raises(ConfigError, match="RIFFLE-0188"):
        cut_of(query)


def test_current_time_functions_return_the_time_of_the_batch(frames: Frames, spark: SparkSession) -> None:
    """Functions of the current time return the batch's time in projections, conditions and static joins."""
    query = (
        frames.events.groupBy("page").count().where("current_timestamp() > timestamp'2001-01-01'")
        .join(frames.static.withColumn("made", F.now()), "page")
        .selectExpr("page", "now() as t", "date_add(current_date(), 1) as d", "made", "localtimestamp() as here")
    )  # fmt: skip
    cut, rows = cut_of(query), spark.createDataFrame([("p1", 3)], "page string, count long")
    (stage,) = cut.stages
    leaf = Catalyst(spark).rows(cut.reader.fetch(stage.node.handle).output(), rdd_of(rows))
    plan = cut.top.fill({0: leaf}, 1_700_000_000_123)
    (row,) = (
        Catalyst(spark).frame(plan).selectExpr("*", "unix_millis(t) as ms", "t = made and t = here as same").collect()
    )
    assert (row["ms"], str(row["d"]), row["same"]) == (1_700_000_000_123, "2023-11-15", True)
    assert Catalyst(spark).frame(cut.top.fill({0: leaf}, 946_684_800_000)).collect() == []
    assert analysed(query).isStreaming()
