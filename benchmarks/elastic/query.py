"""A stateful query on a cluster: feed it, wait for its batches, and compare its results with the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import riffle_spark as riffle
from apps.demo.ledger import Difference, Ledger, compare
from benchmarks.elastic.data import OUTPUT, STATE, Feed, make_function
from benchmarks.elastic.stage import POLL_SECONDS, WAIT_SECONDS, Stage, wait_for
from riffle_spark import BatchReport

__all__ = ["KEY_GROUPS", "STORE", "Played", "Query"]

STORE = "vectors"
KEY_GROUPS = 32
PLAY_SECONDS = 600.0
AHEAD = 2
"""The number of files that wait while batches are measured, so that batches follow each other without a pause."""


class Played:
    """Successive batches: their reports, and the times of their triggers in Spark's progress."""

    def __init__(self, reports: list[BatchReport], seconds: dict[int, float]) -> None:
        self.reports = reports
        self.seconds = [seconds[report.version] for report in reports]

    def __iter__(self) -> Iterator[tuple[BatchReport, float]]:
        return iter(zip(self.reports, self.seconds, strict=True))

    def median_s(self, is_selected: Callable[[BatchReport], bool] | None = None) -> float:
        """Return the median time of all batches, or of those for which ``is_selected`` returns true; NaN if there are
        none.
        """
        selected = [seconds for report, seconds in self if is_selected is None or is_selected(report)]
        return float(np.median(selected)) if selected else float("nan")


class Query:
    """One query over a feed, with its state below ``s3://<bucket>/<name>`` and its checkpoint in the stage's folder.

    A copy is warm if its lag is at most a quarter of a key-group's records, so an empty copy is never warm. The query
    may be stopped and started again, in the same application or in another one. ``marks`` is a folder to which its
    function writes the times of its calls (``data.last_call_time``).
    """

    def __init__(
        self, stage: Stage, feed: Feed, name: str = "state", marks: Path | None = None, **settings: object
    ) -> None:
        self.stage = stage
        self.feed = feed
        self.settings = riffle.Settings(
            root=f"s3://{stage.store.bucket}/{name}",
            s3_endpoint=stage.store.endpoint,
            s3_region="us-east-1",
            local_dir=str(stage.folder / "copies"),
            key_groups=KEY_GROUPS,
            acceptable_recovery_lag=feed.size.keys // KEY_GROUPS // 4,
            probing_rebalance_interval=1.0,
            **settings,  # type: ignore[arg-type]
        )
        self.reports: list[BatchReport] = []
        self._marks = marks
        self._checkpoint = stage.folder / f"checkpoint-{name}"
        self._counted = Ledger(np.zeros_like(feed.counts), np.zeros_like(feed.sums))
        self._query: StreamingQuery | None = None
        self._seconds: dict[int, float] = {}

    def start(self, executors: int) -> None:
        """Wait for this number of executors, and start the query."""
        spark = self.stage.session()
        self.stage.await_executors(executors)
        compute = riffle.arrow_function(
            make_function(self.feed.size.vector_bytes, self._marks), state=STATE, output=OUTPUT
        )
        self.job = riffle.Stateful(STORE, "key", compute, settings=self.settings).into(self._record_results)
        self.job.on_report = self.reports.append
        rows = spark.readStream.schema("key long, amount long").option("maxFilesPerTrigger", 1)
        writer = rows.parquet(str(self.feed.folder)).writeStream.foreachBatch(self.job)
        self._query = writer.option("checkpointLocation", str(self._checkpoint)).start()

    @property
    def run_id(self) -> str:
        """Spark's id of this run, which is also the group of its jobs."""
        assert self._query is not None, "start it first"
        return str(self._query.runId)

    def stop(self) -> None:
        """Stop the query after its current batch."""
        self._note_times()
        assert self._query is not None, "start it first"
        self._query.stop()

    def _record_results(self, rows: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark gives it
        """Keep the last count and sum of each key. A repeated batch changes nothing."""
        table = rows.toArrow()
        keys = table["key"].to_numpy()
        self._counted.counts[keys] = table["count"].to_numpy()
        self._counted.sums[keys] = table["total"].to_numpy()

    @property
    def difference(self) -> Difference:
        """The difference between the query's results and the ledger of the feed."""
        return compare(Ledger(self.feed.counts, self.feed.sums), self._counted)

    @property
    def done(self) -> int:
        """The number of completed batches."""
        return self.reports[-1].version + 1 if self.reports else 0

    def fill(self) -> Played:
        """Feed every key once, in batches without a pause. Return the batches."""
        first = self.done
        numbers = self.feed.fill()
        for number in numbers:
            self._await(lambda target=number - AHEAD: self.done > target)  # type: ignore[misc]
        return self.played_from(first)

    def play(self, batches: int, rows: int | None = None) -> Played:
        """Feed this number of steady batches, which run without a pause. Return the batches."""
        first = self.feed.batches
        for _ in range(batches):
            self.feed.steady(rows)
        return self.played_from(first)

    def play_until(self, is_reached: Callable[[list[BatchReport]], bool], rows: int | None = None) -> Played:
        """Feed steady batches without a pause, until ``is_reached`` returns true for their reports. Return the batches.

        Raises ``TimeoutError`` if that takes too long, and ``RuntimeError`` if the query fails.
        """
        first = self.feed.batches
        deadline = time.monotonic() + PLAY_SECONDS
        while not is_reached(self._reports_from(first)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.done - first} batches in {PLAY_SECONDS:g} s, not yet as wanted: {self._last}"
                )
            if self.feed.batches < self.done + AHEAD:
                self.feed.steady(rows)
            self._check()
            time.sleep(POLL_SECONDS)
        return self.played_from(first)

    def rest(self, rows: int) -> None:
        """Wait until upkeep has finished the work of all batches, then run a small batch that reports it."""
        self._await_upkeep()
        self.play(1, rows)
        self._await_upkeep()

    def _await_upkeep(self) -> None:
        running = self.job._running  # private: whether upkeep is through
        assert running is not None, "it has run a batch"
        rounds = running.driver._rounds  # private: the same
        wait_for("upkeep to be through", lambda: not rounds._running)  # private: the same

    def batch(self, rows: int | None = None) -> BatchReport:
        """Feed one batch and wait until it is completed. Return its report."""
        return self.play(1, rows).reports[0]

    def _reports_from(self, first: int) -> list[BatchReport]:
        return [report for report in self.reports if report.version >= first and report.decision == "run"]

    @property
    def _last(self) -> str:
        return self.reports[-1].to_json() if self.reports else "no batch"

    def played_from(self, first: int) -> Played:
        """Wait until all fed batches are completed. Return the batches from ``first`` on."""
        last = self.feed.batches
        self._await(lambda: self.done == last)
        self._await(lambda: self._is_timed(last - 1))
        return Played(self._reports_from(first), self._seconds)

    def _is_timed(self, number: int) -> bool:
        """Return whether Spark has reported the time of a batch, which it does shortly after the batch."""
        self._note_times()
        return number in self._seconds

    def _note_times(self) -> None:
        assert self._query is not None, "start it first"
        for progress in self._query.recentProgress:
            if progress["numInputRows"] > 0:
                self._seconds[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000

    def _await(self, is_reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_reached():
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {self.done} is not through after {WAIT_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _check(self) -> None:
        if self._query is not None and self._query.exception() is not None:
            raise RuntimeError(str(self._query.exception()))
