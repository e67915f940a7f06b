"""De-duplication is read from Spark's plan: its keys, the columns that are sent, and when keys expire. Passed rows are
rebuilt unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.process.types.stage_specs import TimeSpec
from riffle_spark.spark.engine.routing import spark_schema
from riffle_spark.spark.plans.distinct_plan import DistinctPlan, read_distinct
from riffle_spark.spark.plans.plan_nodes import Catalyst
from tests.kit.queries.played_query import configured
from tests.kit.stream_plans import cut_of, rdd_of, stream_of, with_rows

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

Query = Callable[[DataFrame], DataFrame]
COLUMNS = (
    "timestamp_seconds(1700000000 + id % 8) AS at", "if(id % 5 = 0, null, concat('p', id % 3)) AS page", "id AS n",
    "if(id % 4 = 0, null, named_struct('a', id % 2, 'b', named_struct('c', if(id % 3 = 0, null, 'x')))) AS s",
    "array(id) AS l", "if(id % 2 = 0, 0.0D, -0.0D) AS z",
)  # fmt: skip


class Read(NamedTuple):
    """A de-duplication, and the expected specification."""

    query: Query
    store: str
    keys: list[str]
    time: TimeSpec | None = None
    due: str | None = None


def timed(frame: DataFrame) -> DataFrame:
    """Add a watermark."""
    return frame.withWatermark("at", "10 seconds")


def windows(frame: DataFrame) -> DataFrame:
    """Group rows into windows, with a watermark."""
    return timed(frame).select(F.window("at", "4 seconds").alias("w"), "page", "n")


AT = TimeSpec("at", 10_000)
ENDS = ["w_start", "w_end"]
FORMS = {
    "by_key": Read(lambda e: e.dropDuplicates(["page"]), "distinct.page", ["page"]),
    "by_all": Read(lambda e: e.select("page", "s").distinct(), "distinct.page-s",
                   ["page", "s_is_null", "s_a", "s_b_is_null", "s_b_c"]),
    "in_the_rows_order": Read(lambda e: timed(e).dropDuplicates(["page", "at"]), "distinct.at-page", ["at", "page"],
                              AT, "at"),
    "late_alone": Read(lambda e: timed(e).dropDuplicates(["page"]), "distinct.page", ["page"], AT),
    "unread": Read(lambda e: timed(e).dropDuplicates(["page"]).select("page"), "distinct.page", ["page"]),
    "within": Read(lambda e: timed(e).dropDuplicatesWithinWatermark(["page"]), "within.page", ["page"], AT,
                   "known_until"),
    "within_all": Read(lambda e: timed(e).selectExpr("at", "page AS known_until").dropDuplicatesWithinWatermark(),
                       "within.at-known_until", ["at", "known_until"], AT, "known_until_2"),
    "by_window": Read(lambda e: windows(e).dropDuplicates(["w"]), "distinct.w", ENDS,
                      TimeSpec("w_end", 10_000, "time", "w_start"), "w_end"),
    "beside_a_window": Read(lambda e: windows(e).dropDuplicates(["page"]), "distinct.page", ["page"],
                            TimeSpec("event_time", 10_000)),
    "a_column_twice": Read(lambda e: e.select("n", "page", "page", "l").dropDuplicates(["n"]), "distinct.n", ["n"]),
    "a_name_twice": Read(lambda e: e.selectExpr("n", "s.b AS x", "page AS x", "z").dropDuplicates(["n"]), "distinct.n",
                         ["n"]),
    "by_zero": Read(lambda e: e.select("z", "n").dropDuplicates(["z"]), "distinct.z", ["z"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows in one partition, so that their order is fixed."""
    return spark.range(0, 40, 1, 1).selectExpr(*COLUMNS).localCheckpoint()


@pytest.fixture(scope="module")
def events(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A wrapped stream with the columns of these rows."""
    return stream_of(rows, str(tmp_path_factory.mktemp("events")))


def read(query: DataFrame) -> tuple[DistinctPlan, Any]:
    """Return the plan of the query's only stage, and Spark's plan below it."""
    cut = cut_of(query)
    (stage,) = cut.stages
    (below,) = stage.below
    return read_distinct(cut.reader, stage.node, (), stage.used_columns), cut.reader.build(below.plan)


def passed(query: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the frame of the rows that pass in one batch. A dictionary replaces the slots."""
    spark, (plan, below) = Catalyst(query.sparkSession), read(query)
    sent = spark.frame(plan.map_side.fill({0: with_rows(spark, below, rows)}))
    first = dict[tuple[object, ...], Row]()
    for row in sent.collect():
        first.setdefault(tuple(row[: len(plan.spec.keys)]), row)
    output_rows = [row[: len(plan.spec.output)] for row in first.values()]
    state = sent.sparkSession.createDataFrame(output_rows, spark_schema(plan.spec.output))
    leaf = spark.rows(plan.evaluation.leaf(plan.evaluation.holes[0]).output(), rdd_of(state))
    top = cut_of(query).top
    return spark.frame(top.fill({0: plan.evaluation.fill({0: leaf})}))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sample(step=3)
def test_the_first_row_of_each_key_passes(name: str, rows: DataFrame, events: DataFrame) -> None:
    """The first row of each key passes, as in Spark's batch query. The specification has the expected keys
    and times.
    """
    form = FORMS[name]
    spec = read(form.query(events))[0].spec
    assert (spec.store, spec.keys.names, spec.time, spec.due) == (form.store, form.keys, form.time, form.due)
    expected = form.query(rows.where("true")) if spec.due is None or "within" not in name else None
    found = passed(form.query(events), rows).collect()
    if expected is not None:
        assert sorted(map(str, found)) == sorted(map(str, expected.collect()))
    else:
        assert len(found) == rows.select("at" if name == "within_all" else "page", "page").distinct().count()


def test_columns_keep_their_metadata(rows: DataFrame, events: DataFrame) -> None:
    """Keys and other columns of the result have the metadata of the input's columns, such as comments."""
    about = {name: {"comment": name} for name in ("n", "page", "s")}
    columns = [F.col(name).alias(name, metadata=metadata) for name, metadata in about.items()]
    found = passed(timed(events).select("at", *columns).dropDuplicates(["n", "s"]), rows)
    delay = {"spark.watermarkDelayMs": 10_000}
    assert {field.name: field.metadata for field in found.schema} == {"at": delay, **about}


@pytest.mark.parametrize(("columns", "time"), [(["page"], None), (["at", "page"], AT)])
def test_rows_are_late_only_if_a_stage_above_reads_their_time(
    columns: list[str], time: TimeSpec | None, events: DataFrame
) -> None:
    """The first of two de-duplications drops late rows only if the query reads the event time after the second."""
    cut = cut_of(timed(events).dropDuplicates(["page", "n"]).dropDuplicates(["page"]).select(*columns))
    first = cut.stages[0]
    assert read_distinct(cut.reader, first.node, (), first.used_columns).spec.time == time


UNSUPPORTED: dict[str, tuple[Query, str]] = {
    "array": (lambda e: e.select("l").distinct(), "array_key"),
    "random": (lambda e: e.select("n", F.rand().alias("r")).distinct(), "random_key"),
    "two_times": (lambda e: timed(e).selectExpr("at", "at AS then", "n").dropDuplicates(["n"]), "event_times"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_keys_are_refused(name: str, events: DataFrame) -> None:
    """A query whose keys are not supported is refused when it is defined, with Spark's term."""
    query, message = UNSUPPORTED[name]
    with pytest.raises(ConfigError, match=REFUSED[message].id):
        read(query(events))


@pytest.mark.skipif(not hasattr(F, "timestamp_nanos"), reason="Spark has timestamps of nanoseconds since 4.3")
def test_a_column_of_a_type_that_pyspark_lacks_is_refused_with_its_name(spark: SparkSession, events: DataFrame) -> None:
    """A value that PySpark cannot read, such as a timestamp of nanoseconds, is refused with its column and a remedy."""
    with configured(spark, {"spark.sql.timestampNanosTypes.enabled": "true"}):
        query = events.selectExpr("page", "timestamp_nanos(n) AS t").dropDuplicates(["page"])
        with pytest.raises(ConfigError, match=r"RIFFLE-0204\] Column 't' has type timestamp_ltz\(9\)") as refused:
            read(query)
    assert "CAST(t AS STRING)" in refused.value.remedy
