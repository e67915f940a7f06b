"""Processors take, store and return every type as on Spark's own operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession

from tests.kit.processors.both_forms import sparks_own
from tests.kit.queries.played_query import QUICK, ROCKSDB
from tests.kit.queries.type_columns import READABLE
from tests.kit.queries.typed_functions import VALUES, IdentityProcessor
from tests.kit.queries.typed_play import check_cells, play, typed
from tests.kit.queries.typed_processors import KeepsTypes

pytestmark = pytest.mark.spark

INTERVAL = "s_interval"
"""An interval, which Spark's own operators cannot store."""
READ = "k string, n long, read string, wrong string"
FORMS = ["pandas", *(["rows"] if hasattr(GroupedData, "transformWithState") else [])]
"""The forms of processors that this version of Spark has. Spark 4.1 adds rows."""


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> None:
    """Make Spark's own queries run quickly. Their processors need RocksDB."""
    for name, value in {**QUICK, **ROCKSDB}.items():
        spark.conf.set(name, value)


def given_back(rows: DataFrame, names: list[str], form: str = "pandas") -> DataFrame:
    """Return, as text, the output of a processor that returns its rows."""
    frame = sparks_own(rows.groupBy("k"), form)(IdentityProcessor(), rows.schema, "append", "None")
    return frame.selectExpr("k", "n", *names)


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("form", FORMS)
def test_processors_return_columns_as_in_spark(form: str, spark: SparkSession, tmp_path: Path) -> None:
    """A processor returns columns of all types that pandas supports, as in Spark."""
    names = [f"{one.text} AS {one.name}" for one in READABLE]

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return given_back(typed(rows, READABLE), names, form)

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False, files=1)
    output = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True, files=1)
    check_cells(output, expected)
    print(f"input and output of processors, {form}: {sum(len(one.values) + 1 for one in READABLE)} cells as in Spark")


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["value", "list", "map"])
def test_variables_of_each_type_are_read_back_as_in_spark(
    way: str, form: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Variables of every type are read back as in Spark, after restarts without local copies.

    riffle returns exactly the stored value, even if Spark's conversion by pandas changes it.
    """
    names = tuple(name for name in VALUES if name != INTERVAL and (way, name) != ("map", "s_map"))

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return sparks_own(rows.groupBy("k"), form)(KeepsTypes(way, names), READ, "append", "None")

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False)
    output = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True)
    assert [row["wrong"] for run in output for row in run if row["wrong"]] == []
    compared = [[{name: row[name] for name in ("k", "n", "read")} for row in run] for run in (*output, *expected)]
    check_cells(compared[: len(output)], compared[len(output) :])
    print(f"{way} of a processor: {sum(len(VALUES[name][1]) + 1 for name in names)} cells as in Spark")


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("way", ["value", "list", "map"])
def test_a_variable_stores_an_interval_although_sparks_cannot(way: str, spark: SparkSession, tmp_path: Path) -> None:
    """An interval in a variable is read back as stored. Spark's own operator fails the query."""

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return rows.groupBy("k").transformWithStateInPandas(KeepsTypes(way, (INTERVAL,)), READ, "append", "None")

    output = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True)
    assert [row["wrong"] for run in output for row in run if row["wrong"]] == []
    assert any("timedelta" in str(row["read"]) for run in output for row in run)
    with pytest.raises(StreamingQueryException, match="DayTimeIntervalType"):
        play(spark, build, tmp_path / "spark", "append", is_wrapped=False, files=1)
