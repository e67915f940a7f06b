"""An unchanged PySpark processor in a query on riffle: both forms, restarts, initial state and event time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from riffle_spark import Stateful, StatefulProcessorHandle, transform_with_state, transform_with_state_in_pandas
from riffle_spark.errors import ConfigError, UserFunctionError
from tests.kit.processors.visit_processors import Broken, Idle, PandasVisits, Visits
from tests.kit.streams.newest_rows import assert_newest
from tests.kit.streams.processor_runs import ScriptedProcessor
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

SCHEMA = "user string, amount long, at timestamp"
OUTPUT = "user string, visits long, total long"


def at(second: int) -> str:
    """Return a time of day."""
    return f"2026-01-01T00:00:{second:02d}.000Z"


FORMS: dict[str, tuple[Callable[..., Stateful], Callable[[], object]]] = {
    "rows": (transform_with_state, Visits),
    "pandas": (transform_with_state_in_pandas, PandasVisits),
}


def operator(form: str, folder: Path, **arguments: Any) -> Stateful:
    """Return an operator with the processor."""
    make, processor = FORMS[form]
    return make(processor(), key="user", output=OUTPUT, settings=settings_in(folder), **arguments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.sample(step=2)
def test_a_processor_loads_initial_state_once_and_continues_after_restarts(
    spark: SparkSession, form: str, tmp_path: Path
) -> None:
    """A processor starts from its initial state once, and a new job continues its state after a restart."""
    feed, sink = Feed(tmp_path / "in", SCHEMA), CollectingSink()
    initial = spark.createDataFrame([("ann", 100), ("zoe", 7)], "user string, visits long")
    feed.add([{"user": "ann", "amount": 1, "at": at(0)}, {"user": "bob", "amount": 2, "at": at(1)}] * 2)
    job = operator(form, tmp_path, initial_state=initial).into(sink)
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert sink.latest("user") == {"ann": {"visits": 102, "total": 2}, "bob": {"visits": 2, "total": 4}}
    feed.add([{"user": user, "amount": 5, "at": at(2)} for user in ("ann", "zoe", "new")])
    again = operator(form, tmp_path, initial_state=initial).into(sink)
    run_to_end(feed.stream(spark), again, tmp_path / "checkpoint")
    of_user = feed.table(spark).groupBy("user").agg(F.count("*").alias("came"), F.sum("amount").alias("total"))
    visits = (F.col("came") + F.coalesce("visits", F.lit(0))).alias("visits")
    assert_newest(sink, of_user.join(initial, "user", "left").select("user", visits, "total"), key="user")
    assert [report.rows for report in job.reports] == [6], "only the first batch has the two rows of initial state"
    assert [report.rows for report in again.reports] == [3]


@pytest.mark.long
def test_timers_fire_by_the_watermark_of_the_input(spark: SparkSession, tmp_path: Path) -> None:
    """Timers fire by the watermark of ``withWatermark``. Late rows are dropped and counted, and the last batch fires
    all due timers.
    """
    feed, sink = Feed(tmp_path / "in", SCHEMA), CollectingSink()
    for batch in ([("ann", 1), ("bob", 20)], [("ann", 2), ("bob", 25)], [("eve", 50)]):
        feed.add([{"user": user, "amount": 1, "at": at(second)} for user, second in batch])
    job = transform_with_state(
        Idle(), key="user", output=OUTPUT, time_mode="EventTime", settings=settings_in(tmp_path)
    ).into(sink)
    run_to_end(feed.stream(spark).withWatermark("at", "5 seconds"), job, tmp_path / "checkpoint")
    visits = {row.user: row.visits for rows in sink.deliveries.values() for row in rows}
    second = 1_767_225_600_000
    assert visits == {"ann": second + 11_000, "bob": second + 35_000}
    assert sum(report.late_rows for report in job.reports) == 1
    assert sum(report.timers_fired for report in job.reports) == 2


def test_an_error_in_a_processor_fails_the_batch_with_its_key(spark: SparkSession, tmp_path: Path) -> None:
    """An error in a processor fails the batch with the traceback and the key."""

    job = transform_with_state(Broken(), key="user", output=OUTPUT, settings=settings_in(tmp_path)).into(
        CollectingSink()
    )
    rows = spark.createDataFrame([("ann", 1)], "user string, amount long")
    with pytest.raises(UserFunctionError, match="no such price") as caught:
        job(rows, 0)
    assert "ann" in str(caught.value)
    assert not job.reports


def test_an_output_is_declared_by_ddl_by_types_or_by_an_arrow_schema() -> None:
    """DDL, Spark's types and an Arrow schema declare the same output."""
    fields = [("user", StringType()), ("visits", LongType())]
    types = StructType([StructField(name, kind) for name, kind in fields])
    arrow = pa.schema([("user", pa.string()), ("visits", pa.int64())])
    declared = ("user string, visits long", types, arrow)
    outputs = [transform_with_state(Visits(), key="user", output=output).compute.output for output in declared]  # type: ignore[attr-defined]
    assert outputs == [arrow] * 3


def test_wrong_output_and_time_modes_are_refused() -> None:
    """Wrong output and time modes are refused."""
    for wrong in ({"output_mode": "complete"}, {"time_mode": "WallClock"}):
        with pytest.raises(ConfigError, match=next(iter(wrong.values()))):
            transform_with_state(Visits(), key="user", output=OUTPUT, **wrong)  # type: ignore[arg-type]


def test_state_variables_are_counted_by_kind() -> None:
    """The state variables of a processor are counted by kind and time to live, under the names of Spark's progress."""

    def init(_: object, handle: StatefulProcessorHandle) -> None:
        handle.getValueState("value", "n long")
        handle.getValueState("brief", "n long", 1_000)
        handle.getListState("list", "n long")
        handle.getMapState("map", "k string", "n long", 1_000)
        handle.deleteIfExists("old")

    operator = transform_with_state(
        ScriptedProcessor(init=init), key="k", output="k string", time_mode="ProcessingTime"
    )
    assert operator.compute.counted() == {  # type: ignore[attr-defined]
        "numValueStateVars": 2,
        "numListStateVars": 1,
        "numMapStateVars": 1,
        "numValueStateWithTTLVars": 1,
        "numListStateWithTTLVars": 0,
        "numMapStateWithTTLVars": 1,
        "numDeletedStateVars": 1,
    }
