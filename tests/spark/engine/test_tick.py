"""The tick source of a real query starts batches without rows: after the watermark moved or a time came, and never
otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from riffle_spark import arrow_function
from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.process.blocks.arrow_function import Context
from riffle_spark.process.blocks.block import BlockComputation
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark.engine.tick import Tick, _reached, query_id_in
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from tests.kit.process.counted_windows import ENDS, CountedWindows
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed, run_to_end, settings_in, start, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

SECOND = 1_767_225_600
"""The first second of 2026, as Unix time."""


class ObservedBatch(NamedTuple):
    """A batch: its id, the number of its rows, and the ends of the windows that it closed."""

    number: int
    rows: int
    closed: list[int]


class Query:
    """A count per five-second window in append mode, built like a wrapped query, which can be started repeatedly."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.feed = Feed(folder / "in", "ts timestamp, k string")
        self.reports: list[BatchReport] = []
        self.seen: list[ObservedBatch] = []
        self.fails_at: tuple[int, str] | None = None
        self.before_start: Callable[[], object] | None = None
        self._closed: list[int] = []

    def add(self, *seconds: int) -> None:
        """Add a file with one row per second given."""
        self.feed.add({"ts": f"2026-01-01T00:00:{second:02}Z", "k": "x"} for second in seconds)

    @contextmanager
    def running(
        self, *, ticks: bool = True, available_now: bool = False, once: bool = False, by_clock: bool = False
    ) -> Iterator[StreamingQuery]:
        """Run the query in the block. Without ``ticks`` the tick source exists, but the job never asks it for
        a batch.
        """
        rows = self.feed.stream(self.spark).withWatermark("ts", "10 seconds")
        rows = rows.select(F.window("ts", "5 seconds")["end"].alias("end"), "k")
        windows = self.operator("windows", ("end", "k"), CountedWindows("append"))
        tick = Tick(self.spark, str(self.folder / "checkpoint"), by_clock=by_clock, once=once)
        with self.job_on(rows, tick, [windows], ticks=ticks) as job:
            before_start, self.before_start = self.before_start, None
            if before_start is not None:
                before_start()
            ends = {"once": True} if once else {"availableNow": True}
            trigger = ends if once or available_now else {"processingTime": "0 seconds"}
            query = start(*job, self.folder / "checkpoint", **trigger)
            try:
                yield query
            finally:
                query.stop()

    @contextmanager
    def job_on(
        self, rows: DataFrame, tick: Tick | None, operators: list[JobOperator], *, ticks: bool = True
    ) -> Iterator[tuple[DataFrame, Callable[[DataFrame, int], None]]]:
        """Yield the frame to write and the function that takes its batches."""
        tick = tick or Tick(self.spark, str(self.folder / "checkpoint"))
        rows = tick.unite_with(rows)
        job = RunningJob(
            operators, settings_in(self.folder), self.spark, self._reached, "spark", tick if ticks else None
        )

        def batch(frame: DataFrame, number: int) -> None:
            self._closed = []
            self.reports.append(job.process(frame, number))
            if self.reports[-1].decision == "run":
                self.seen.append(ObservedBatch(number, self.reports[-1].rows, sorted(self._closed)))

        try:
            yield rows, batch
        finally:
            tick.stop()
            job.stop()

    def operator(self, store: str, key: tuple[str, ...], compute: BlockComputation) -> JobOperator:
        """Return an operator whose output is recorded."""
        late = ENDS if "end" in key else None
        return JobOperator(store, key, compute, (), True, self._take, late=late)

    def _take(self, frame: DataFrame, _number: int) -> None:
        self._closed = [int(row[0].timestamp()) - SECOND for row in frame.collect() if "end" in frame.columns]

    def _reached(self, step: str) -> None:
        if self.fails_at == (len(self.seen), step):
            self.fails_at = None
            raise RuntimeError(f"as wanted {step}")

    def ran(self) -> list[ObservedBatch]:
        """Return the batches since the last call."""
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    """A query that has not run yet."""
    return Query(spark, tmp_path)


def ended(query: StreamingQuery) -> None:
    """Wait for the end of the query, and raise its error."""
    assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)


def write_checkpoint(folder: Path, committed_batch: int, watermark_ms: int, tick: str = "7") -> None:
    """Write a checkpoint whose newest batch is 3, with this offset of the tick and a watermark of one second."""
    (folder / "offsets").mkdir()
    (folder / "commits").mkdir()
    metadata = json.dumps({"batchWatermarkMs": 1000, "batchTimestampMs": 0, "conf": {}})
    (folder / "offsets" / "3").write_text(f'v1\n{metadata}\n{{"logOffset":3}}\n{tick}')
    committed = json.dumps({"nextBatchWatermarkMs": watermark_ms})
    (folder / "commits" / str(committed_batch)).write_text(f"v1\n{committed}")


@pytest.mark.parametrize(
    ("committed_batch", "watermark_ms", "by_clock", "is_due"),
    [(3, 1000, False, False), (3, 2000, False, True), (3, 1000, True, True), (2, 2000, True, False)],
)
def test_a_restart_starts_a_batch_if_the_last_one_moved_the_watermark(
    spark: SparkSession, tmp_path: Path, *, committed_batch: int, watermark_ms: int, by_clock: bool, is_due: bool
) -> None:
    """A restart starts a batch if the last committed batch moved the watermark, or if the query uses the clock.

    If the last batch is not committed, Spark repeats it, so no batch is due.
    """
    write_checkpoint(tmp_path, committed_batch, watermark_ms)
    assert _reached(spark, f"file://{tmp_path}", ["", ""], by_clock=by_clock) == (7, is_due)


@pytest.mark.smoke
@pytest.mark.parametrize(("tick_offset", "reached_offset"), [("7", 7), ("7", 10), ("-", -1), ("-", 2)])
def test_a_restarted_tick_accepts_the_offset_of_the_checkpoint(
    query: Query, tmp_path: Path, tick_offset: str, reached_offset: int
) -> None:
    """Spark commits the checkpoint's offset to the tick of a new run, with the ticks that an earlier run added after it
    was read. The first batch of the tick has no partition for each of them. The same holds for a checkpoint of batches
    before the first tick.
    """
    write_checkpoint(tmp_path, 3, 2000, tick_offset)
    tick = Tick(query.spark, f"file://{tmp_path}")
    tick.unite_with(query.feed.stream(query.spark))
    stream = tick._stream
    reached = stream.deserializeOffset(str(reached_offset))
    newest = stream.currentOffset()
    stream.commit(reached)
    assert len(stream.planInputPartitions(reached, newest)) <= 1
    stream.commit(newest)
    tick.stop()


@pytest.mark.long
def test_available_now_runs_the_ticks_batch_in_the_same_run(query: Query) -> None:
    """With availableNow the tick's batch is in the same run. Batch ids and closed windows are those of Spark's own
    aggregate.
    """
    for second in (15, 0, 30):
        query.add(second)
    with query.running(available_now=True) as run:
        ended(run)
    assert query.ran() == [
        ObservedBatch(0, 1, []),
        ObservedBatch(1, 1, [5]),
        ObservedBatch(2, 1, []),
        ObservedBatch(3, 0, [20]),
    ]
    query.add(58)
    with query.running(available_now=True) as run:
        ended(run)
    assert query.ran() == [ObservedBatch(4, 1, []), ObservedBatch(5, 0, [35])]
    with query.running(available_now=True) as run:
        ended(run)
    assert query.ran() == []
    assert [report.watermark_ms and report.watermark_ms - SECOND * 1000 for report in query.reports] == [
        0, 5_000, 5_000, 20_000, 20_000, 48_000,
    ]  # fmt: skip


def test_only_a_moved_watermark_causes_a_batch_without_rows(query: Query) -> None:
    """There is a batch without rows after each batch that moved the watermark, even if no window closes, as
    in Spark.
    """
    with query.running() as run:
        for second in (0, 40, 30, 59):
            query.add(second)
            run.processAllAvailable()
    assert query.ran() == [
        ObservedBatch(0, 1, []),
        ObservedBatch(1, 0, []),
        ObservedBatch(2, 1, []),
        ObservedBatch(3, 0, [5]),
        ObservedBatch(4, 1, []),
        ObservedBatch(5, 1, []),
        ObservedBatch(6, 0, [35, 45]),
    ]


@pytest.mark.parametrize("by_clock", [False, True])
def test_an_earlier_run_may_add_ticks_until_a_start_ends_it(query: Query, by_clock: bool) -> None:
    """A start reads the checkpoint before Spark ends an earlier run. Ticks that this run adds in between end neither
    the new run nor later ones.
    """
    query.add(1, 12)
    with query.running() as earlier:
        earlier.processAllAvailable()

        def add_ticks() -> None:
            for second in (20, 30):
                query.add(second)
                earlier.processAllAvailable()

        query.before_start = add_ticks
        with query.running(available_now=True, by_clock=by_clock) as run:
            ended(run)
    for second in (40, 50):
        query.add(second)
        with query.running(available_now=True) as run:
            ended(run)
    assert [batch.closed for batch in query.ran() if batch.closed] == [[5], [15], [25], [35]]


def test_a_failed_batch_of_a_tick_is_repeated_after_a_restart(query: Query) -> None:
    """If a tick's batch fails, Spark repeats it from its offset log after a restart, and then runs only new batches."""
    query.add(0, 40)
    query.fails_at = (1, "after seal")
    with query.running() as run, pytest.raises(Exception, match="as wanted after seal"):
        run.processAllAvailable()
    with query.running() as run:
        run.processAllAvailable()
        query.add(59)
        run.processAllAvailable()
    assert query.ran() == [
        ObservedBatch(0, 2, []),
        ObservedBatch(1, 0, [5]),
        ObservedBatch(2, 1, []),
        ObservedBatch(3, 0, [45]),
    ]


@pytest.mark.long
def test_a_restart_runs_the_missed_batch_of_a_tick(query: Query) -> None:
    """If a query ended before the batch that its watermark requires, the restart runs it, but not with the trigger
    ``once``.

    If Spark repeats the last batch after the restart, the batch without rows follows it.
    """
    query.add(0, 40)
    with query.running(ticks=False) as run:
        run.processAllAvailable()
    with query.running(once=True) as run:
        ended(run)
    assert query.ran() == [ObservedBatch(0, 2, [])], "as in Spark, the trigger once runs no batch without rows"
    with query.running(available_now=True) as run:
        ended(run)
    assert query.ran() == [ObservedBatch(1, 0, [5])]
    query.add(59)
    query.fails_at = (0, "after record")
    with query.running() as run, pytest.raises(Exception, match="as wanted after record"):
        run.processAllAvailable()
    with query.running() as run:
        run.processAllAvailable()
    assert query.ran() == [ObservedBatch(3, 0, [45])]
    assert [report.decision for report in query.reports] == ["run", "run", "repeat", "run"]


STATE = pa.schema([("until", pa.int64())])
OUTPUT = pa.schema([("k", pa.string())])


def kept_briefly(rows: pa.Table, _state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table]:
    """Keep a key until half a second later."""
    keys = rows.group_by("k").aggregate([]).select(["k"])
    return OUTPUT.empty_table(), keys.append_column("until", pa.array([context.time_ms + 500] * len(keys), pa.int64()))


@pytest.mark.long
def test_a_key_that_expires_by_the_clock_causes_one_batch(query: Query) -> None:
    """A key that expires by the clock causes one batch once its time has come. So does a start, because its due times
    are unknown.
    """
    compute = arrow_function(
        kept_briefly, state=STATE, output=OUTPUT, due="until", time_mode="ProcessingTime",
        expired=lambda state: state.select(["k"]),
    )  # fmt: skip
    briefly = query.operator("briefly", ("k",), compute)
    for wanted, count, adds in (("expired", 1, True), ("rows", 2, True), ("expired", 2, False)):
        if adds:
            query.add(0)
        rows, tick = query.feed.stream(query.spark), Tick(query.spark, str(query.folder / "checkpoint"), by_clock=True)
        with query.job_on(rows, tick, [briefly]) as job:
            run = start(*job, query.folder / "checkpoint", processingTime="0 seconds")
            try:
                wait_for(lambda: sum(getattr(report, wanted) for report in query.reports) == count, wanted)  # noqa: B023
            finally:
                run.stop()
    # Spark repeats a last batch that it has not committed before the stop, and the job skips it.
    ran = [report for report in query.reports if report.decision == "run"]
    assert [(report.rows, report.expired) for report in ran[:3]] == [(1, 0), (0, 1), (1, 0)]
    offsets = [query.folder / "checkpoint" / "offsets" / str(number) for number in (0, 1)]
    came, gone = (json.loads(each.read_text().splitlines()[1])["batchTimestampMs"] for each in offsets)
    assert gone - came >= 500
    assert sum(report.rows for report in ran[3:]) == 0


def test_a_timer_that_is_set_to_a_past_time_causes_a_batch(query: Query) -> None:
    """A timer that is set to a past time causes a batch."""
    tick, now_ms = Tick(query.spark, str(query.folder / "checkpoint")), SECOND * 1_000
    tick.unite_with(query.feed.stream(query.spark))
    tick.schedule_next(
        query.spark.range(0), IncomingBatch(0, "", "", None, None, now_ms, None), now_ms - 1, by_watermark=False
    )
    wait_for(lambda: tick._stream.currentOffset().offset() == 0, "a batch is asked for")


def test_the_union_with_a_tick_has_the_schema_of_the_input(query: Query) -> None:
    """The union of the input and the tick has the input's names, types, nullability and column metadata."""
    rows = query.feed.stream(query.spark).withWatermark("ts", "1 minute")
    rich = rows.select(
        "*", F.lit(1).alias("one"), F.expr("map(k, array(named_struct('d', cast(1 as decimal(9,2)))))").alias("nested"),
        F.window("ts", "5 seconds"),
    )  # fmt: skip
    tick = Tick(query.spark, str(query.folder / "checkpoint"))
    united = tick.unite_with(rich)
    assert united.schema == rich.schema
    assert united.schema.json() == rich.schema.json()


def test_a_checkpoint_that_cannot_be_read_is_refused(query: Query) -> None:
    """A checkpoint whose tick offset cannot be read is refused before the query starts."""
    offsets = query.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{}\n{"not":"a tick"}')
    with pytest.raises(UnavailableError, match="RIFFLE-0297"):
        Tick(query.spark, str(query.folder / "checkpoint")).unite_with(query.feed.stream(query.spark))


@pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark writes names of sources since 4.2")
def test_a_checkpoint_with_names_of_sources_is_refused(query: Query) -> None:
    """A checkpoint whose offset log has sources by name is refused, because the tick is found by its position."""
    offsets = query.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    (offsets / "0").write_text(f'v2\n{metadata}\nvisits:{{"logOffset":0}}')
    with pytest.raises(ConfigError, match="RIFFLE-1841"):
        Tick(query.spark, str(query.folder / "checkpoint")).unite_with(query.feed.stream(query.spark))


@pytest.mark.parametrize("incomplete", ["offsets/1", "commits/1"])
def test_the_error_names_an_incomplete_file_of_the_checkpoint(query: Query, incomplete: str) -> None:
    """The error for an incomplete newest entry has the error of Spark's log, which names the file, and the remedy."""
    checkpoint = query.folder / "checkpoint"
    for folder, text in (("offsets", "v1\n{}\n0"), ("commits", "v1\n{}")):
        (checkpoint / folder).mkdir(parents=True)
        for batch in range(2):
            (checkpoint / folder / str(batch)).write_text(text)
    (checkpoint / incomplete).write_text("")
    with pytest.raises(UnavailableError, match=f"/{incomplete}\\b") as refused:
        Tick(query.spark, str(checkpoint)).unite_with(query.feed.stream(query.spark))
    assert "delete this file" in refused.value.remedy


@pytest.mark.parametrize(
    ("offsets", "streams", "has_tick"),
    [(['{"logOffset":0}'], 1, False), (['{"logOffset":0}', "-"], 1, True), (['{"logOffset":0}', "3"], 2, True)],
    ids=["a job", "a wrapped query", "a wrapped query with an added stream"],
)
def test_a_checkpoint_without_a_tick_continues_without_one(
    query: Query, offsets: list[str], streams: int, has_tick: bool
) -> None:
    """A checkpoint that was started without a tick continues without one, because Spark counts a query's sources."""
    folder = query.folder / "checkpoint" / "offsets"
    folder.mkdir(parents=True)
    (folder / "0").write_text("\n".join(["v1", "{}", *offsets]))
    rows = query.feed.stream(query.spark)
    rows = rows.union(query.feed.stream(query.spark)) if streams > 1 else rows
    tick = Tick(query.spark, str(query.folder / "checkpoint"))
    united = tick.unite_with(rows)
    assert (united is not rows) == has_tick
    tick.now()
    tick.schedule_next(query.spark.range(0), IncomingBatch(0, "", "", None, None, 0, None), None, by_watermark=False)


def test_a_source_with_plain_numbers_as_offsets_is_not_a_tick(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint without a tick continues without one, even if its source has plain numbers as offsets,
    like a tick.
    """
    rates = query.spark.readStream.format("rate").load()
    lines = query.spark.readStream.format("socket").options(host="localhost", port=9).load()
    ran: list[int] = []

    def batch(_: DataFrame, number: int) -> None:
        ran.append(number)

    checkpoint = query.folder / "checkpoint"
    run_to_end(rates, batch, checkpoint)
    for rows in (rates, lines):
        assert Tick(query.spark, str(checkpoint)).unite_with(rows) is rows
        assert "RIFFLE-0295" in caplog.text
        caplog.clear()
    wait_for(
        lambda: run_to_end(Tick(query.spark, str(checkpoint)).unite_with(rates), batch, checkpoint) and ran[1:],
        "two batches",
    )


def test_a_watermark_that_cannot_be_read_is_one_warning(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """If Spark's watermark cannot be read, as for a batch without a query, the batch stays committed with one
    warning.
    """
    tick, incoming = Tick(query.spark, str(query.folder / "checkpoint")), IncomingBatch(0, "", "", None, None, 0, None)
    tick.unite_with(query.feed.stream(query.spark))
    for _ in range(2):
        tick.schedule_next(query.spark.range(0), incoming, None, by_watermark=True)
    assert [record.getMessage()[:13] for record in caplog.records] == ["[RIFFLE-0296]"]


def test_a_damaged_checkpoint_is_refused_with_its_place(query: Query) -> None:
    """A checkpoint whose metadata cannot be read is refused, and the error names the checkpoint."""
    checkpoint = query.folder / "checkpoint"
    assert query_id_in(query.spark, str(checkpoint)) is None
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text("{")
    with pytest.raises(UnavailableError, match="RIFFLE-0298") as refused:
        query_id_in(query.spark, str(checkpoint))
    assert refused.value.where == str(checkpoint)
