"""Column names in another case, nested fields as keys, and duplicate column names work as on Spark's own operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count, min_, sum_, transform_with_state, transform_with_state_in_pandas
from tests.kit.processors.both_forms import sparks_own
from tests.kit.processors.columns import Columns
from tests.kit.streams import sparks_operator as native
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

CONF = native.CONF
SCHEMA = "user string, s struct<x: string>, v long"
OUTPUT = "key string, told string"
ROWS = [{"user": "ann", "s": {"x": "in"}, "v": 1}]
FORM = "pandas" if spark_version.startswith("4.0.") else "rows"
MAKE = {"pandas": transform_with_state_in_pandas, "rows": transform_with_state}
TOLD = "['user', 's', 'v', 'v', 1, 1]"


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream in which one column is there twice."""
    feed = Feed(folder / "in", SCHEMA)
    feed.add(ROWS)
    return feed.stream(spark).select("user", "s", "v", "v")


@pytest.mark.parametrize(("key", "found"), [("USER", "ann"), ("S.x", "in")])
@pytest.mark.sample(step=2)
def test_a_processor_gets_all_columns_whatever_the_case_of_its_key(
    spark: SparkSession, key: str, found: str, tmp_path: Path
) -> None:
    """A processor gets all columns of its rows, if its key is named in another case or is a field of a struct."""
    sink = CollectingSink()
    operator = MAKE[FORM](Columns(), key=key, output=OUTPUT, settings=settings_in(tmp_path))
    run_to_end(stream(spark, tmp_path), operator.into(sink), tmp_path / "checkpoint")
    assert sink.latest("key") == {found: {"told": TOLD}}


def test_an_aggregate_finds_its_columns_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    """An aggregate finds its key, order and value columns in any case. Columns that it does not use may be
    duplicates.
    """
    sink = CollectingSink()
    totals = aggregate(n=count(), total=sum_("W"), of=min_("S.x"))
    operator = Stateful("totals", "USER", totals, order_by="S.X", settings=settings_in(tmp_path))
    rows = stream(spark, tmp_path).selectExpr("*", "user as w_text", "cast(7 as long) as w")
    run_to_end(rows, operator.into(sink), tmp_path / "checkpoint")
    assert sink.latest("user") == {"ann": {"n": 1, "total": 7, "of": "in"}}


@pytest.mark.long
def test_duplicate_columns_are_allowed_without_an_offset_log(spark: SparkSession, tmp_path: Path) -> None:
    """Without an offset log, a batch is identified by the digest of its rows, which may have duplicate column names."""
    sink = CollectingSink()
    rows = spark.createDataFrame([("ann", 1)], "user string, v long").selectExpr("user", "v", "v", "v + 1 as V")
    job = Stateful("totals", "user", aggregate(n=count()), settings=settings_in(tmp_path)).into(sink)
    job(rows, 0)
    job(rows, 0)
    assert [report.decision for report in job.reports] == ["run", "repeat"]
    assert sink.latest("user") == {"ann": {"n": 1}}


def test_column_names_are_case_sensitive_if_spark_is(spark: SparkSession) -> None:
    """Column names are case-sensitive if ``spark.sql.caseSensitive`` is set."""
    from riffle_spark.spark.engine.routing import is_case_sensitive

    assert not is_case_sensitive(spark)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert is_case_sensitive(spark)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def natively(frame: DataFrame, key: str, folder: Path) -> list[Any]:
    """Return the output of Spark's own operator."""
    found: list[Any] = []
    writer = sparks_own(frame.groupBy(key), FORM)(Columns(), OUTPUT, "update", "None").writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda frame, _: found.extend(map(tuple, frame.collect())))
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(native.END_SECONDS)
    return found


@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.long
@pytest.mark.parametrize(("key", "column", "found"), [("USER", "USER", "ann"), ("S.x", "x", "in")])
def test_sparks_own_operator_passes_the_same_columns(
    spark: SparkSession, key: str, column: str, found: str, tmp_path: Path
) -> None:
    """Spark's own operator passes the same columns to the processor. Spark 4.3 adds such a key as a first column."""
    shown = TOLD if FORM == "pandas" else f"['{column}', 'user', 's', 'v', 'v', {{'x': 'in'}}, 1, 1]"
    columns_of_spark = [
        (key, text.replace("Row(x='in')", "{'x': 'in'}"))
        for key, text in natively(stream(spark, tmp_path), key, tmp_path)
    ]
    assert columns_of_spark == [(found, shown)]
