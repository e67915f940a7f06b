"""Each one-line edit of a wrapped query between two runs keeps its state, migrates it, or is refused with an error."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import riffle_spark
from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.spark.queries.query_start import _with_accepted
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

ROWS = [{"at": "2024-05-01T00:00:01Z", "page": "a", "n": 5, "m": 50}]
MORE = [{"at": "2024-05-01T00:00:02Z", "page": "a", "n": 3, "m": 70}]
Made = Callable[[DataFrame], DataFrame]
InputFrames = Iterable[pd.DataFrame]


def grouped(*results: str, by: str = "page") -> Made:
    """Return a query with these aggregates."""
    return lambda events: events.groupBy(F.expr(by)).agg(*map(F.expr, results))


def windowed(size: str, delay: str | None = "10 seconds", slide: str | None = None) -> Made:
    """Return a query that counts in windows. Without a ``delay`` there is no watermark."""

    def make(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("at", delay) if delay else events
        return timed.groupBy(F.window("at", size, slide)).agg(F.count("*").alias("c"))

    return make


def sessions(gap: str) -> Made:
    """Return a query that counts in sessions."""

    def make(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("at", "10 seconds")
        return timed.groupBy("page", F.session_window("at", gap)).agg(F.count("*").alias("c"))

    return make


def once(*columns: str, within: bool = False, delay: str | None = None) -> Made:
    """Return a query that keeps the first row of each key. Without a ``delay`` there is no watermark."""

    def make(events: DataFrame) -> DataFrame:
        if within:
            return events.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(list(columns))
        timed = events.withWatermark("at", delay) if delay else events
        return timed.dropDuplicates(list(columns))

    return make


def counting(
    timeout: str = GroupStateTimeout.NoTimeout, state: str = "c long", times: int = 1, by: str = "page"
) -> Made:
    """Return a query whose function counts the rows of each key."""

    def function(key: tuple[Any, ...], frames: InputFrames, kept: Any) -> Iterator[pd.DataFrame]:
        total = (kept.get[0] if kept.exists else 0) + sum(len(frame) for frame in frames)
        kept.update((total, *[None] * state.count(",")))
        yield pd.DataFrame({"page": [str(key[0])], "c": [total * times]})

    return lambda events: (
        events.withWatermark("at", "10 seconds")
        .groupBy(by)
        .applyInPandasWithState(function, "page string, c long", state, "update", timeout)
    )


class Counting(StatefulProcessor):
    """A processor that counts the rows of each key."""

    def __init__(self, name: str, fields: str, times: int) -> None:
        self.name, self.fields, self.times = name, fields, times

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the count."""
        self.count = handle.getValueState(self.name, self.fields)

    def handleInputRows(self, key: Any, rows: InputFrames, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Count the rows and output the count."""
        total = ((self.count.get() or (0,))[0] or 0) + sum(len(frame) for frame in rows)
        self.count.update((total,))
        yield pd.DataFrame({"page": [key[0]], "c": [total * self.times]})


def processing(
    name: str = "c", fields: str = "c long", times: int = 1, mode: str = "update", time: str = "None"
) -> Made:
    """Return a query with the processor."""

    def make(events: DataFrame) -> DataFrame:
        groups = events.withWatermark("at", "10 seconds").groupBy("page")
        processor = Counting(name, fields, times)
        return groups.transformWithStateInPandas(processor, "page string, c long", mode, time)

    return make


def joined(how: str = "inner", hours: int = 1, also: str = "n <= m", delay: str | None = "10 seconds") -> Made:
    """Return a query that joins the stream with itself. Without a ``delay`` there is no watermark."""

    def make(events: DataFrame) -> DataFrame:
        timed = events.withWatermark("at", delay) if delay else events
        left = timed.select("at", "page", "n")
        right = timed.selectExpr("at AS bt", "page AS view", "m")
        within = f"page = view AND bt BETWEEN at - INTERVAL {hours} HOUR AND at + INTERVAL {hours} HOUR AND {also}"
        return left.join(right, F.expr(within), how)

    return make


def with_all_left_rows(delay: str | None = None) -> Made:
    """Return an outer join. Without a ``delay`` only the right side has a watermark, so all left rows are kept."""

    def make(events: DataFrame) -> DataFrame:
        left = events.withWatermark("at", delay) if delay else events
        right = events.withWatermark("at", "10 seconds").selectExpr("at AS bt", "page AS view", "m")
        return left.select("at", "page", "n").join(right, F.expr("page = view AND bt >= at AND bt <= at"), "left_outer")

    return make


def in_two_stages(events: DataFrame) -> DataFrame:
    """A de-duplication before a count."""
    return events.dropDuplicates(["page", "n"]).groupBy("page").agg(F.count("*").alias("c"))


@dataclass(frozen=True)
class Edit:
    """An edited query with its expected rows for the second file, as columns and sorted values, or with the error that
    refuses it.
    """

    made: Made
    rows: tuple[str, list[tuple[Any, ...]]] = ("", [])
    refused: str = ""
    mode: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Base:
    """A query as it first runs, its output mode and its edits."""

    made: Made
    mode: str
    edits: Mapping[str, Edit]


COUNT, TOTAL, MIDDLE = "count(*) AS c", "sum(n) AS t", "percentile_approx(n, 0.5, 100) AS p"
COUNT_IF = "count_if(n > 1) AS c"
BASES = {
    "aggregate": Base(
        grouped(COUNT, TOTAL, MIDDLE),
        "update",
        {
            "the same": Edit(grouped(COUNT, TOTAL, MIDDLE), ("c, t, p", [(2, 8, 3)])),
            "a result more": Edit(grouped(COUNT, TOTAL, MIDDLE, "max(m) AS x"), ("c, t, x", [(2, 8, 70)])),
            "a result less": Edit(grouped(COUNT, MIDDLE), ("c, p", [(2, 3)])),
            "another function": Edit(grouped(COUNT, "max(n) AS t", MIDDLE), refused="RIFFLE-0334"),
            "a result renamed": Edit(grouped(COUNT, "sum(n) AS u", MIDDLE), refused="RIFFLE-0338"),
            "a function accepted": Edit(
                grouped(COUNT, "max(n) AS t", MIDDLE), ("c, t", [(2, 5)]), options={"riffle.accept": "t"}
            ),
            "another key": Edit(grouped(COUNT, TOTAL, MIDDLE, by="n"), refused="RIFFLE-0330"),
            "another expression of the key": Edit(
                grouped(COUNT, TOTAL, MIDDLE, by="upper(page) AS page"), refused="RIFFLE-0334"
            ),
        },
    ),
    "an expression that Spark computes once": Base(
        grouped(COUNT_IF, TOTAL),
        "update",
        {
            "the same": Edit(grouped(COUNT_IF, TOTAL), ("c, t", [(2, 8)])),
            "another condition": Edit(grouped("count_if(n > 3) AS c", TOTAL), refused="RIFFLE-0334"),
            "a result in front": Edit(grouped("max(m) AS x", COUNT_IF, TOTAL), ("x, c, t", [(70, 2, 8)])),
            "only plain results": Edit(grouped(TOTAL), ("t", [(8,)])),
        },
    ),
    "counted values": Base(
        grouped("count(DISTINCT n) AS c", TOTAL),
        "update",
        {
            "the same": Edit(grouped("count(DISTINCT n) AS c", TOTAL), ("c, t", [(2, 8)])),
            "a result renamed after it": Edit(
                lambda e: grouped("count(DISTINCT n) AS c", TOTAL)(e).selectExpr("c AS d", "t"), ("d, t", [(2, 8)])
            ),
            "a result renamed": Edit(
                grouped("count(DISTINCT n) AS d", TOTAL), refused="RIFFLE-1830", options={"riffle.accept": "d"}
            ),
            "another function": Edit(grouped("sum(DISTINCT n) AS s", TOTAL), refused="RIFFLE-1830"),
        },
    ),
    "windows": Base(
        windowed("10 seconds"),
        "update",
        {
            "a longer window": Edit(
                windowed("20 seconds"), ("unix_seconds(window.end) - unix_seconds(window.start), c", [(20, 1)])
            ),
            "a slide": Edit(windowed("10 seconds", slide="5 seconds"), ("c", [(1,), (2,)])),
            "another delay": Edit(windowed("10 seconds", "20 seconds"), ("c", [(2,)])),
            "rows once closed": Edit(windowed("10 seconds"), ("c", []), mode="append"),
            "complete results": Edit(windowed("10 seconds"), refused="RIFFLE-0327", mode="complete"),
            "no watermark": Edit(windowed("10 seconds", None), refused="RIFFLE-0327", mode="update"),
            "complete results of a new store": Edit(
                windowed("10 seconds"), ("c", [(1,)]), mode="complete", options={"riffle.stores": "anew"}
            ),
            "two stores": Edit(windowed("10 seconds"), refused="RIFFLE-0323", options={"riffle.stores": ",anew"}),
        },
    ),
    "complete windows": Base(
        windowed("10 seconds"),
        "complete",
        {
            "the same": Edit(windowed("10 seconds"), ("c", [(2,)])),
            "windows that end": Edit(windowed("10 seconds"), refused="RIFFLE-0327", mode="update"),
        },
    ),
    "windows without a watermark": Base(
        windowed("10 seconds", None),
        "update",
        {
            "complete results": Edit(windowed("10 seconds"), ("c", [(2,)]), mode="complete"),
            "a watermark": Edit(windowed("10 seconds"), refused="RIFFLE-0327", mode="update"),
        },
    ),
    "sessions": Base(sessions("5 seconds"), "complete", {"another gap": Edit(sessions("20 seconds"), ("c", [(2,)]))}),
    "distinct": Base(
        once("page"),
        "append",
        {
            "the same": Edit(once("page"), ("page", [])),
            "within the watermark": Edit(once("page", within=True), refused="RIFFLE-0330"),
        },
    ),
    "distinct times": Base(
        once("at"), "append", {"a watermark": Edit(once("at", delay="10 seconds"), refused="RIFFLE-0327")}
    ),
    "functions": Base(
        counting(),
        "update",
        {
            "other code": Edit(counting(times=10), ("c", [(20,)])),
            "a state column more": Edit(counting(state="c long, d string"), ("c", [(2,)])),
            "a narrower column": Edit(counting(state="c int"), refused="has another schema"),
            "a time-out": Edit(counting(GroupStateTimeout.ProcessingTimeTimeout), refused="has another schema"),
            "another key": Edit(counting(by="n"), refused="RIFFLE-0330"),
        },
    ),
    "processors": Base(
        processing(time="ProcessingTime"),
        "update",
        {
            "other code": Edit(processing(times=10, time="ProcessingTime"), ("c", [(20,)])),
            "a variable renamed": Edit(processing("d", time="ProcessingTime"), ("c", [(1,)])),
            "a narrower field": Edit(processing(fields="c int", time="ProcessingTime"), refused="has another schema"),
            "append": Edit(processing(mode="append", time="ProcessingTime"), ("c", [(2,)]), mode="append"),
            "timers by another time": Edit(processing(time="EventTime"), refused="has times by ProcessingTime"),
            "no timers": Edit(processing(), refused="has another schema"),
        },
    ),
    "joins": Base(
        joined(),
        "append",
        {
            "the same": Edit(joined(), ("n, m", [(3, 50), (3, 70), (5, 70)])),
            "other bounds": Edit(joined(hours=2), refused="RIFFLE-0334"),
            "an outer join": Edit(joined("left_outer"), refused="RIFFLE-1780"),
            "no watermark": Edit(joined(delay=None), refused="RIFFLE-0327"),
        },
    ),
    "outer joins": Base(
        with_all_left_rows(), "append", {"a watermark": Edit(with_all_left_rows("10 seconds"), refused="RIFFLE-0327")}
    ),
}
PROCESSORS = "processors"
EDITS = [(base, edit) for base, one in BASES.items() for edit in one.edits]
LONG_BASES = ("windows", "complete windows", "sessions", "distinct", PROCESSORS)
"""Base queries that only long runs play. tests/protocol/batch/test_edited_jobs.py has edits of all kinds
without Spark.
"""


def _marks(base: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.long] if base in LONG_BASES else []
    return [*marks, pytest.mark.needs_spark4("transformWithState")] if base == PROCESSORS else marks


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Feed]]:
    """A function that runs a base query once on its first file, and returns its folder and its feed with a
    second file.
    """

    @functools.cache
    def run_base(name: str) -> tuple[Path, Feed]:
        folder = tmp_path_factory.mktemp(name)
        feed = Feed(tmp_path_factory.mktemp("events"), "at timestamp, page string, n long, m long")
        feed.add(ROWS)
        run(spark, feed, BASES[name].made, folder, BASES[name].mode)
        feed.add(MORE)
        return folder, feed

    return run_base


def run(spark: SparkSession, feed: Feed, made: Made, folder: Path, mode: str, **options: str) -> DataFrame | None:
    """Run a query to the end of its input, and return the rows of the newest batch that has any."""
    batches: list[DataFrame] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        found = rows.collect()
        if found:
            batches.append(rows.sparkSession.createDataFrame(found, rows.schema))

    frame = made(riffle_spark.on(feed.stream(spark), settings=settings_in(folder)))
    writer = frame.writeStream.outputMode(mode).foreachBatch(keep).option("checkpointLocation", str(folder / "c"))
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    return batches[-1] if batches else None


@pytest.mark.parametrize(
    ("base", "edit"),
    [pytest.param(base, edit, id=f"{base}: {edit}", marks=_marks(base)) for base, edit in EDITS],
)
@pytest.mark.sample(
    "aggregate: another expression of the key",
    "an expression that Spark computes once: a result in front",
    "functions: a time-out",
    "joins: other bounds",
)
def test_an_edited_query_continues_migrates_or_is_refused(
    base: str, edit: str, spark: SparkSession, ran: Callable[[str], tuple[Path, Feed]], tmp_path: Path
) -> None:
    """An edited query continues a copy of the state with the expected rows, or is refused and commits nothing."""
    first_folder, feed = ran(base)
    folder = tmp_path / "copy"
    one = BASES[base].edits[edit]
    shutil.copytree(first_folder, folder, ignore=shutil.ignore_patterns("local"))
    before = records(f"file://{folder}/state")
    mode = one.mode or BASES[base].mode
    if one.refused:
        with pytest.raises((ConfigError, StreamingQueryException)) as caught:
            run(spark, feed, one.made, folder, mode, **one.options)
        assert one.refused in str(caught.value)
        assert records(f"file://{folder}/state")[-1].version == before[-1].version
        return
    found = run(spark, feed, one.made, folder, mode, **one.options)
    columns, rows = one.rows
    assert (sorted(map(tuple, found.selectExpr(*columns.split(", ")).collect())) if found else []) == rows


def test_accepted_names_of_option_and_setting_are_combined(spark: SparkSession, tmp_path: Path) -> None:
    """The names in the option ``riffle.accept`` are added to those in the setting."""
    spark.conf.set("spark.riffle.accept", "distinct.page-n")
    try:
        assert _with_accepted(spark, settings_in(tmp_path), "c, d").accept == ("distinct.page-n", "c", "d")
    finally:
        spark.conf.unset("spark.riffle.accept")


@pytest.mark.parametrize(
    ("option", "setting"), [("c", "distinct.page-n"), pytest.param("distinct.page-n", "", marks=pytest.mark.long)]
)
@pytest.mark.long
def test_a_stage_that_returns_after_its_removal_is_refused(
    option: str, setting: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A stage that was removed for a batch and returns is refused, unless its store is accepted by option or
    setting.
    """
    some = Feed(tmp_path / "in", "at timestamp, page string, n long, m long")

    def fed(made: Made, **options: str) -> DataFrame | None:
        some.add(ROWS)
        return run(spark, some, made, tmp_path, "update", **options)

    fed(in_two_stages)
    fed(grouped(COUNT))
    with pytest.raises(ConflictError, match="RIFFLE-0221"):
        fed(in_two_stages)
    spark.conf.set("spark.riffle.accept", setting)
    try:
        fed(in_two_stages, **{"riffle.accept": option})
    finally:
        spark.conf.unset("spark.riffle.accept")
    assert records(f"file://{tmp_path}/state")[-1].stale_stores == {}
    counted = fed(grouped(COUNT))
    assert counted is not None
    assert [row.c for row in counted.collect()] == [3], (
        "the rows of the batch without the stage count, and duplicates that it knew do not"
    )
