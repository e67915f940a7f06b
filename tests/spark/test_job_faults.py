"""Errors of a job name the place and the remedy, and the batch commits nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, arrow_function, count, max_
from riffle_spark.errors import ConfigError, ConflictError, UserFunctionError
from riffle_spark.spark.engine.spark_batch import arity
from tests.kit.streams.streaming import CollectingSink, Feed, committed, run_to_end, settings_in

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

COUNTED = aggregate(rows=count())
Function = Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]]
SEEN = pa.schema([("k", pa.int64()), ("seen", pa.int64())])


def raises(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Raise an error, like a user's function with a mistake."""
    raise ZeroDivisionError("no page has a size of 0")


def returns_text(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return text in a column that is declared as a number."""
    answer = pa.table({"k": rows["k"], "seen": rows["k"].cast(pa.string())})
    return answer, answer


def returns_a_foreign_key(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return state of a key that has no rows in this call."""
    answer = pa.table({"k": pa.array([10**6]), "seen": pa.array([1])})
    return answer, answer


def keeps(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the state unchanged."""
    return state, state


BROKEN: dict[Function, str] = {
    raises: "ZeroDivisionError:\n.*no page has a size of 0",
    returns_text: "RIFFLE-0200",
    returns_a_foreign_key: "RIFFLE-0170.*{'k': 1000000}",
}


@pytest.mark.parametrize("function", BROKEN, ids=lambda function: function.__name__)
@pytest.mark.sample("raises")
def test_a_broken_function_fails_the_batch(spark: SparkSession, tmp_path: Path, function: Function) -> None:
    """The error names what is wrong, the store, key-group and executor. The query continues with a corrected
    function.
    """
    settings = settings_in(tmp_path)
    frame = spark.range(6).selectExpr("id k")
    broken = arrow_function(function, state=pa.schema([("seen", pa.int64())]), output=SEEN)
    sink = CollectingSink()
    with pytest.raises(UserFunctionError, match=r"(?s)" + BROKEN[function]) as caught:
        Stateful("pages", "k", broken, settings=settings).into(sink)(frame, 0)
    assert "store 'pages', key-group " in caught.value.where
    assert "executor driver" in caught.value.where
    assert sink.calls == []
    assert committed(f"file://{tmp_path}/state") == []
    mended = arrow_function(keeps, state=pa.schema([("seen", pa.int64())]), output=SEEN)
    Stateful("pages", "k", mended, settings=settings).into(sink)(frame, 0)
    assert committed(f"file://{tmp_path}/state") == [0]


class Elsewhere:
    """A function of a module that only the driver has."""

    def __call__(self, _rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the state unchanged."""
        return state, state

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        """Import the module when the function is unpickled on an executor."""
        return importlib.import_module, ("helpers_of_the_driver",)


def test_a_module_that_executors_lack_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """If executors lack a module that a function needs, the error names the module and how to send it."""
    compute = arrow_function(Elsewhere(), state=pa.schema([("seen", pa.int64())]), output=SEEN)
    job = Stateful("pages", "k", compute, settings=settings_in(tmp_path)).into(CollectingSink())
    with pytest.raises(ConfigError, match="RIFFLE-0300") as caught:
        job(spark.range(3).selectExpr("id k"), 0)
    assert "has no module 'helpers_of_the_driver'" in caught.value.problem
    assert "send it with the query" in caught.value.remedy
    assert committed(f"file://{tmp_path}/state") == []


def test_the_traceback_of_a_function_reaches_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The error of a streaming query shows the user's own line, the store and the key-group."""
    feed = Feed(tmp_path / "in", "k long")
    feed.add([{"k": 1}])
    compute = arrow_function(raises, state=pa.schema([("seen", pa.int64())]), output=SEEN)
    job = Stateful("pages", "k", compute, settings=settings_in(tmp_path)).into(CollectingSink())
    with pytest.raises(StreamingQueryException) as caught:
        run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    message = str(caught.value)
    assert "test_job_faults.py" in message
    assert 'ZeroDivisionError("no page has a size of 0")' in message
    assert "store 'pages', key-group" in message


def test_a_sink_that_fails_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """If a sink fails, its own error is raised and nothing is committed. The batch is repeated with the same delivery
    id.
    """
    kept = CollectingSink()

    def failing(frame: DataFrame, batch: int, delivery: str) -> None:
        kept(frame, batch, delivery)
        if len(kept.calls) == 1:
            raise OSError("the disk of the sink is full")

    job = Stateful("totals", "k", COUNTED, settings=settings_in(tmp_path)).into(failing)
    frame = spark.range(5).selectExpr("id k")
    with pytest.raises(OSError, match="disk of the sink"):
        job(frame, 0)
    assert committed(f"file://{tmp_path}/state") == []
    job(frame, 0)
    assert len(set(kept.calls)) == 1
    assert kept.latest("k") == {k: {"rows": 1} for k in range(5)}


def test_a_third_parameter_of_a_sink_gets_the_delivery_id() -> None:
    """A sink's third parameter gets the delivery id unless it has a default. A sink with one parameter is refused at
    once.
    """

    class Sink:
        def __call__(self, frame: DataFrame, batch: int, delivery: str) -> None: ...

    assert arity(lambda frame, batch: None) == 2  # noqa: ARG005
    assert arity(lambda frame, batch, path="/out": None) == 2  # noqa: ARG005
    assert arity(Sink()) == 3
    assert arity(print) == 2
    assert arity(max) == 2, "Python does not know its parameters"
    with pytest.raises(ConfigError, match="RIFFLE-0288"):
        Stateful("totals", "k", COUNTED).into(lambda frame: None)  # noqa: ARG005


def test_an_aggregate_that_compares_collated_strings_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """``max_`` of collated text is refused, because Spark does not compare it by its bytes."""
    frame = spark.range(3).selectExpr("id k", "CAST(id AS STRING) COLLATE UTF8_LCASE c")
    job = Stateful("most", "k", aggregate(most=max_("c")), settings=settings_in(tmp_path)).into(CollectingSink())
    with pytest.raises(ConfigError, match="collate UTF8_LCASE"):
        job(frame, 0)
    assert committed(f"file://{tmp_path}/state") == []


def test_a_batch_id_that_is_repeated_with_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A batch id that is repeated with other rows is refused, and not skipped as a repeat."""
    job = Stateful("totals", "k", COUNTED, settings=settings_in(tmp_path)).into(CollectingSink())
    job(spark.range(3).selectExpr("id k"), 0)
    job(spark.range(3).selectExpr("id k"), 0)
    assert [report.decision for report in job.reports] == ["run", "repeat"]
    with pytest.raises(ConflictError, match="RIFFLE-0214"):
        job(spark.range(4).selectExpr("id k"), 0)
