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
from pyspark.sql.streaming import StatefulProcessor

from tests.kit.processors.both_forms import sparks_own
from tests.kit.queries.played_query import QUICK, ROCKSDB
from tests.kit.queries.type_columns import READABLE
from tests.kit.queries.typed_functions import GivesBack
from tests.kit.queries.typed_play import Build, check_cells, play, typed

pytestmark = pytest.mark.spark

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


@pytest.mark.parametrize("of", ANSWERS)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("tinyint", 300),
        pytest.param("decimal(38,0)", Decimal("1" + "0" * 38), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_an_answer_beyond_its_declared_type_fails_the_query_as_in_spark(
    of: str, kind: str, value: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """It is neither cut nor wrapped, and the message of riffle names the column."""
    build = ANSWERS[of](kind, value)
    for side in ("spark", "riffle"):
        with pytest.raises(StreamingQueryException, match=r"column '?v|too large to convert"):
            play(spark, build, tmp_path / side, "append", is_wrapped=side == "riffle", files=1)
