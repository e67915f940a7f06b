"""``riffle_spark.testing.run`` runs wrapped queries over given batches with the results of Spark's own state."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.testing import Batch, query_runs, run

pytestmark = pytest.mark.spark
CLICKS = "at timestamp, page string, n long"


def click(second: int, page: str, n: int | None = 1) -> dict[str, object]:
    """Return a row in the first minute of 2026."""
    return {"at": f"2026-01-01 00:00:{second:02}", "page": page, "n": n}


STEPS: list[Any] = [
    [click(1, "a"), click(2, "a"), click(3, "b", 5)],
    [click(4, "b"), click(41, "c")],
    Batch([click(42, "c"), click(2, "late")], crash="after sink"),
    [],
    [click(58, "a", None)],
]


def in_windows(events: DataFrame) -> DataFrame:
    """Return counts and sums per window."""
    windows = events.withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds"), "page")
    return windows.agg(F.count("*").alias("count"), F.sum("n").alias("n")).select("window.start", "page", "count", "n")


def once(events: DataFrame) -> DataFrame:
    """Return the first row of each page."""
    return events.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["page"]).select("page")


def running(events: DataFrame) -> Any:
    """Return a writer of running totals."""
    return events.groupBy("page").agg(F.sum("n").alias("n")).writeStream.outputMode("update").format("console")


def ordered(outputs: list[list[dict[str, object]]]) -> list[list[dict[str, object]]]:
    """Return the rows of each batch in a fixed order."""
    return [sorted(rows, key=str) for rows in outputs]


@pytest.mark.parametrize(
    "query", [in_windows, pytest.param(once, marks=pytest.mark.long), pytest.param(running, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_results_equal_those_of_spark(query: Callable[[DataFrame], Any], spark: SparkSession) -> None:
    """Each batch has Spark's results, with late rows, an empty batch, and a crash between sink and commit."""
    ours = run(query, STEPS, schema=CLICKS)
    assert ordered(ours) == ordered(run(query, STEPS, schema=CLICKS, engine="spark"))
    assert len(ours) == len(STEPS)
    assert any(ours)


@pytest.mark.long
@pytest.mark.parametrize("step", ["before run", "after seal", "after sink", "after record"])
def test_a_crash_changes_no_result(step: Any, spark: SparkSession) -> None:
    """A crash at any step, with all local copies lost, does not change the results."""
    batches: list[Any] = [STEPS[0], STEPS[1], [click(5, "a")]]
    expected = run(running, batches, schema=CLICKS)
    crashing: list[Any] = [batches[0], Batch(batches[1], crash=step, lose_copies=True), batches[2]]
    assert ordered(run(running, crashing, schema=CLICKS)) == ordered(expected)


def test_the_clock_and_the_watermark_move_on_request(spark: SparkSession) -> None:
    """A processing-time timeout fires when the clock is advanced. A window closes when the watermark is advanced."""

    def remind(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"page": [key[0]], "due": [True]})
            return
        list(frames)
        state.update((1,))
        state.setTimeoutDuration(3_600_000)

    def reminders(events: DataFrame) -> DataFrame:
        grouped = events.groupBy("page")
        output = "page string, due boolean"
        return grouped.applyInPandasWithState(remind, output, "n long", "append", "ProcessingTimeTimeout")

    batches = [Batch([click(1, "a")]), Batch([click(2, "b")], advance=3000), Batch(advance=1200), Batch(advance=3600)]
    due = [{"page": "a", "due": True}], [{"page": "b", "due": True}]
    assert run(reminders, batches, schema=CLICKS) == [[], [], *due]

    closing: list[Any] = [STEPS[0], Batch(watermark="2026-01-01 00:00:10"), [click(9, "late"), click(11, "a")]]
    outputs = run(in_windows, closing, schema=CLICKS)
    assert [len(rows) for rows in outputs] == [0, 2, 0]


def test_several_streams_are_passed_by_name(spark: SparkSession) -> None:
    """A join of two streams gets the rows of each stream by name. A batch may have rows of one or of both."""

    def joined(clicks: DataFrame, users: DataFrame) -> DataFrame:
        return clicks.join(users, "page").select("page", "n", "user")

    bob: dict[str, object] = {"page": "b", "user": "bob"}
    batches = [
        Batch({"clicks": [click(1, "a")], "users": [bob]}),
        Batch({"users": [{"page": "a", "user": "ann"}]}),
        Batch({"clicks": [click(2, "b", 7)]}, crash="after record"),
    ]
    schemas = {"clicks": CLICKS, "users": "page string, user string"}
    expected = [[], [{"page": "a", "n": 1, "user": "ann"}], [{"page": "b", "n": 7, "user": "bob"}]]
    assert run(joined, batches, schema=schemas) == expected
    assert run(joined, batches[:1], schema=schemas, engine="spark") == expected[:1]


def test_invalid_batches_and_options_are_refused(spark: SparkSession) -> None:
    """Unknown columns, streams and steps, and options that Spark's engine lacks, are refused.

    Errors of the query pass.
    """
    refused: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("RIFFLE-1124", [Batch(advance=1)], {"engine": "spark"}),
        ("RIFFLE-1124", [Batch(crash="after record")], {"engine": "spark"}),
        ("RIFFLE-1125", [Batch(watermark=5)], {}),
        ("RIFFLE-0479", [Batch(crash="later")], {}),  # type: ignore[arg-type]
        ("RIFFLE-0480", [[{"pages": "a"}]], {}),
        ("RIFFLE-0480", [[click(1, "a")]], {"engine": "flink"}),
    ]
    for error_id, batches, options in refused:
        with pytest.raises(ConfigError) as caught:
            run(running, batches, schema=CLICKS, **options)
        assert caught.value.id == error_id

    def failing(events: DataFrame) -> DataFrame:
        return events.groupBy("page").agg(F.sum(F.expr("raise_error('no')").cast("long")).alias("n"))

    with pytest.raises(StreamingQueryException, match="no"):
        run(failing, [[click(1, "a")]], schema=CLICKS, output_mode="update")


@pytest.mark.long
def test_the_example_prints_what_it_shows(spark: SparkSession) -> None:
    """The example in the docstring prints what it shows."""
    failed, tried = doctest.testmod(query_runs)
    assert (failed, tried > 0) == (0, True)
