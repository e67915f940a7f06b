"""Joins with a table are read from Spark's plan: the key, under any name, and the table columns that are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.spark.plans.cut_query import check_plan
from riffle_spark.spark.plans.table_plan import read_table
from tests.kit.stream_plans import cut_of, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

Query = Callable[[DataFrame, DataFrame], DataFrame]


@pytest.fixture(scope="module")
def streams(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    """A wrapped stream of events, and an unwrapped stream of changes."""
    events = spark.createDataFrame([], "at timestamp, k int, n long, page string")
    changes = spark.createDataFrame([], "k int, v long, name string, tags map<string, int>, at timestamp")
    folders = [str(tmp_path_factory.mktemp("rows")) for _ in range(2)]
    return stream_of(events, folders[0]), spark.readStream.schema(changes.schema).parquet(folders[1])


def read(query: DataFrame) -> TableSpec:
    """Check the query, and return the specification of its first stage."""
    cut = cut_of(query)
    check_plan(cut, "update")
    return read_table(cut.reader, cut.stages[0].node, (), cut.stages[0].used_columns).spec


def latest(changes: DataFrame) -> DataFrame:
    """Return the changes as a table."""
    return riffle_spark.latest(changes, "k", by="v")


FORMS: dict[str, tuple[Query, list[str], list[str], list[str]]] = {
    "all columns": (
        lambda events, changes: events.join(latest(changes), "k"),
        ["k"], ["at_2", "n", "page"], ["v", "name", "tags", "at"],
    ),
    "columns that are wanted": (
        lambda events, changes: events.join(
            latest(changes).withColumn("long", F.length("name")).where("at is not null").select("k", "long"), "k",
            "left",
        ).select("n", "long"),
        ["k"], ["n"], ["v", "name", "at"],
    ),
    "another name, and a condition beside": (
        lambda events, changes: latest(changes).withColumnRenamed("k", "j").select("j", "v").alias("t").join(
            events, F.expr("k + 1 = t.j AND n > v AND page = 'a'"), "right_outer"
        ).select("at"),
        ["k"], ["at", "n", "page"], ["v"],
    ),
    "whether there is one": (
        lambda events, changes: events.join(latest(changes).select("k"), "k", "left_anti").select("k", "n"),
        ["k"], ["n"], ["v"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_table_keeps_only_the_columns_that_the_query_uses(name: str, streams: tuple[DataFrame, DataFrame]) -> None:
    """A table keeps its key, its order column and the columns that the query uses. The stream sends only the columns
    that are used.
    """
    query, keys, stream_columns, table_columns = FORMS[name]
    spec = read(query(*streams))
    assert (spec.keys.names, spec.stream_columns.names, spec.table_columns.names, spec.order_by) == (
        keys,
        stream_columns,
        table_columns,
        ("v",),
    )
    assert spec.store == "table.k"


OTHERS: dict[str, Query] = {
    "another column": lambda events, changes: events.join(latest(changes), F.expr("page = name")),
    "part of the key": lambda events, changes: events.join(riffle_spark.latest(changes, ["k", "name"], by="v"), "k"),
    "an expression of the key": lambda events, changes: events.join(latest(changes).alias("t"), F.expr("n = t.k")),
    "a comparison": lambda events, changes: events.join(latest(changes).alias("t"), F.expr("n > t.v")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_table_join_that_is_not_by_the_whole_key_is_refused(name: str, streams: tuple[DataFrame, DataFrame]) -> None:
    """A join with a table is refused unless it is by the table's whole key. A key that Spark casts is refused too."""
    with pytest.raises(ConfigError) as refused:
        read(OTHERS[name](*streams))
    assert refused.value.id == REFUSED["table_keys"].id


def test_wrong_arguments_of_latest_are_refused(streams: tuple[DataFrame, DataFrame]) -> None:
    """``latest`` refuses unknown columns, expressions, missing keys or order columns, and static frames. A join refuses
    an order column without an order.
    """
    events, changes = streams
    with pytest.raises(AnalysisException, match="nobody"):
        riffle_spark.latest(changes, "nobody", by="v")
    for key, by in (("k", "v + 1"), ("k", []), ([], "v")):
        with pytest.raises((ConfigError, AnalysisException)):
            riffle_spark.latest(changes, key, by=by)
    with pytest.raises(ConfigError, match="RIFFLE-0348"):
        riffle_spark.latest(changes, "k", by="tags.newest")
    with pytest.raises(ConfigError, match="RIFFLE-0304"):
        riffle_spark.latest(changes.sparkSession.range(3), "id", by="id")
    with pytest.raises(ConfigError, match="RIFFLE-0191"):
        read(events.join(riffle_spark.latest(changes, "k", by="tags"), "k"))


def test_explain_names_the_store_and_the_columns_of_a_table(
    streams: tuple[DataFrame, DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    """``explain`` names the store of a table, its key and the columns that it keeps."""
    events, changes = streams
    events.join(latest(changes).select("k", "name"), "k").explain()
    output = capsys.readouterr().out
    assert "== Stage 0: table.k ==" in output
    assert "name" in output.partition("== Stage 0: table.k ==")[2]
