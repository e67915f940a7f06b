"""Processors and functions of groups take, keep and answer every type as on Spark's own operators, or fail as there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession

from riffle_spark import StatefulProcessor
from riffle_spark.errors import ConfigError
from tests.kit.processors.both_forms import sparks_own
from tests.kit.queries.played_query import QUICK, ROCKSDB
from tests.kit.queries.type_columns import KEPT, READABLE
from tests.kit.queries.typed_functions import VALUES, GivesBack
from tests.kit.queries.typed_play import Build, check_cells, play, typed
from tests.kit.queries.typed_processors import KeepsTypes

pytestmark = pytest.mark.spark

INTERVAL = "s_interval"
"""Spark's own operators keep no interval."""
READ = "k string, n long, read string, wrong string"
FORMS = ["pandas", *(["rows"] if hasattr(GroupedData, "transformWithState") else [])]
"""Spark's own forms of processors: that with rows is there since Spark 4.1."""


@pytest.fixture(autouse=True)
def _quick(spark: SparkSession) -> None:
    """Have Spark's own side run quickly; its processors need RocksDB."""
    for name, value in {**QUICK, **ROCKSDB}.items():
        spark.conf.set(name, value)


def given_back(rows: DataFrame, names: list[str], form: str = "pandas") -> DataFrame:
    """Return what a processor answers that gives its rows back, as texts."""
    frame = sparks_own(rows.groupBy("k"), form)(GivesBack(), rows.schema, "append", "None")
    return frame.selectExpr("k", "n", *names)


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("form", FORMS)
def test_processors_give_columns_back_as_in_spark(form: str, spark: SparkSession, tmp_path: Path) -> None:
    """All types that pandas can hold are input and output."""
    names = [f"{one.text} AS {one.name}" for one in READABLE]

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return given_back(typed(rows, READABLE), names, form)

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False, files=1)
    found = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True, files=1)
    check_cells(found, expected)
    print(f"input and output of processors, {form}: {sum(len(one.values) + 1 for one in READABLE)} cells as in Spark")


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("name", ["c_invalid", "c_timestamp_far", "c_ntz_far", "c_required"])
def test_what_pandas_cannot_hold_fails_a_processor_as_in_spark(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Text that is not UTF-8, also in a field, and times that nanoseconds do not reach."""
    columns = [one for one in KEPT if one.name == name]

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return given_back(typed(rows, columns), [name])

    for side in ("spark", "riffle"):
        with pytest.raises(StreamingQueryException):
            play(spark, build, tmp_path / side, "append", is_wrapped=side == "riffle", files=1)


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["value", "list", "map"])
def test_variables_of_each_type_are_read_back_as_in_spark(
    way: str, form: str, spark: SparkSession, tmp_path: Path
) -> None:
    """After restarts without local copies; riffle reads what was written, also where Spark's pandas changes it."""
    names = tuple(name for name in VALUES if name != INTERVAL and (way, name) != ("map", "s_map"))

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return sparks_own(rows.groupBy("k"), form)(KeepsTypes(way, names), READ, "append", "None")

    expected = play(spark, build, tmp_path / "spark", "append", is_wrapped=False)
    found = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True)
    assert [row["wrong"] for run in found for row in run if row["wrong"]] == []
    compared = [[{name: row[name] for name in ("k", "n", "read")} for row in run] for run in (*found, *expected)]
    check_cells(compared[: len(found)], compared[len(found) :])
    print(f"{way} of a processor: {sum(len(VALUES[name][1]) + 1 for name in names)} cells as in Spark")


@pytest.mark.long
@pytest.mark.needs_spark4("transformWithState")
@pytest.mark.parametrize("way", ["value", "list", "map"])
def test_an_interval_is_kept_in_a_variable_and_not_by_spark(way: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own operator fails the query; here what was written is read."""

    def build(rows: DataFrame, _: DataFrame) -> DataFrame:
        return rows.groupBy("k").transformWithStateInPandas(KeepsTypes(way, (INTERVAL,)), READ, "append", "None")

    found = play(spark, build, tmp_path / "riffle", "append", is_wrapped=True)
    assert [row["wrong"] for run in found for row in run if row["wrong"]] == []
    assert any("timedelta" in str(row["read"]) for run in found for row in run)
    with pytest.raises(StreamingQueryException, match="DayTimeIntervalType"):
        play(spark, build, tmp_path / "spark", "append", is_wrapped=False, files=1)


class Answers(StatefulProcessor):
    """Answers one value for each key."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def init(self, handle: Any) -> None:
        """Keep nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Answer it."""
        yield pd.DataFrame({"k": [key[0]], "v": pd.Series([self._value], dtype=object)})

    def close(self) -> None:
        """Do nothing."""


def answers_of_processor(kind: str, value: Any) -> Build:
    """Return a query whose processor answers a value."""
    schema = f"k string, v {kind}"
    return lambda rows, _: rows.groupBy("k").transformWithStateInPandas(Answers(value), schema, "append", "None")


def answers_of_function(kind: str, value: Any) -> Build:
    """Return a query whose function of groups answers a value."""

    def function(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "v": pd.Series([value], dtype=object)})

    schema = f"k string, v {kind}"
    return lambda rows, _: rows.groupBy("k").applyInPandasWithState(function, schema, "n long", "append", "NoTimeout")


ANSWERS: dict[str, Callable[[str, Any], Build]] = {"processor": answers_of_processor, "function": answers_of_function}
OF = (
    pytest.param("processor", marks=pytest.mark.needs_spark4("transformWithState")),
    pytest.param("function", marks=pytest.mark.long),
)


@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param("decimal(5,2)", Decimal("12345.67"), marks=pytest.mark.long),
        pytest.param("decimal(5,2)", Decimal("1.005"), marks=pytest.mark.long),
        pytest.param("decimal(38,0)", Decimal("1" + "0" * 38), marks=pytest.mark.long),
        ("tinyint", 300),
        pytest.param("int", 2**31, marks=pytest.mark.long),
        pytest.param("bigint", 2**63, marks=pytest.mark.long),
        pytest.param("date", "2024-01-02", marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.long
def test_an_answer_beyond_its_declared_type_fails_the_query_as_in_spark(
    of: str, kind: str, value: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """It is neither cut nor wrapped, and the message of riffle names the column."""
    build = ANSWERS[of](kind, value)
    for side in ("spark", "riffle"):
        with pytest.raises(StreamingQueryException, match=r"column '?v|name 'v'|too large to convert"):
            play(spark, build, tmp_path / side, "append", is_wrapped=side == "riffle", files=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["char(3)", "varchar(3)"])
def test_state_of_bounded_length_is_refused(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """When the query starts."""

    def state_of_function(rows: DataFrame, _: DataFrame) -> DataFrame:
        def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
            state.update(("a",))
            yield pd.DataFrame({"k": [key[0]]})

        groups = rows.groupBy("k")
        return groups.applyInPandasWithState(function, "k string", f"kept {kind}", "append", "NoTimeout")

    with pytest.raises(ConfigError) as refused:
        play(spark, state_of_function, tmp_path / "riffle", "append", is_wrapped=True, files=1)
    assert "'kept'" in refused.value.problem
    assert kind in refused.value.problem
