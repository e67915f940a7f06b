"""A Python worker that is stopped in the middle of a piece of upkeep: the deadline passes, and everything goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.protocol.upkeep import setbacks
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import PATIENCE_SECONDS, Kept, rest, running, settings_in

pytestmark = [pytest.mark.cluster, pytest.mark.long]

MASTER = "local-cluster[2,1,600]"
KEYS = 400
TIMEOUT_SECONDS = 2


def frozen_in_a_piece(job: StatefulJob, folder: Path, feed: Callable[[], None]) -> int:
    """Stop, by SIGSTOP, a process that holds the lock of a piece of upkeep; return its id."""
    locks = {path.stat().st_ino: path for path in folder.glob("local/*/*/upkeep")}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        feed()
        while running(job)._background.busy():  # private: batches go on meanwhile
            pid = _holder(locks)
            if pid is None:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                if _holder(locks) == pid:
                    return pid
                os.kill(pid, signal.SIGCONT)
    raise AssertionError("no piece of upkeep was met")


def _holder(locks: dict[int, Path]) -> int | None:
    """Return the id of a process that holds one of these files under an exclusive lock."""
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1:2] == ["FLOCK"] and words[3] == "WRITE" and int(words[5].rsplit(":", 1)[1]) in locks:
            return int(words[4])
    return None


def test_a_stopped_worker_does_not_stop_upkeep(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are right and go on, the piece is given up at its deadline and told of, the next ones come to their end,
    and what was stopped does no harm.
    """
    monkeypatch.setattr(setbacks, "_OVERDUE_SECONDS", 1)  # private: sooner
    settings = settings_in(
        tmp_path, num_standbys=1, upkeep_timeout=TIMEOUT_SECONDS, snapshot_chain_links=3, acceptable_recovery_lag=KEYS
    )
    assert len(inventory.await_executors(spark, settings, expected=2)) == 2
    kept = Kept()
    job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(kept)
    batches = 0

    def feed() -> None:
        nonlocal batches
        job(spark.range(KEYS).selectExpr("id k", "id v"), batches)
        batches += 1
        assert kept.latest("k") == {k: {"rows": batches, "total": batches * k} for k in range(KEYS)}

    for _ in range(2):
        feed()
        rest(job)
    pid = frozen_in_a_piece(job, tmp_path, feed)
    try:
        feed_until(lambda: told(job, "had not ended after"), feed)
        told_of, taken = len(job.reports), sum(report.snapshots for report in job.reports)
        feed_until(lambda: sum(report.snapshots for report in job.reports) > taken, feed, job)
    finally:
        with suppress(ProcessLookupError):  # Spark has killed it, unless it could not
            os.kill(pid, signal.SIGCONT)
    feed_until(lambda: all(copy.warm for copy in job.readiness()) and not job.reports[-1].warnings, feed, job)
    assert len(job.reports) > told_of
    assert [report.runs for report in job.reports] == [1] * len(job.reports)


def feed_until(reached: Callable[[], object], feed: Callable[[], None], job: StatefulJob | None = None) -> None:
    """Run batches until it is so, each after what runs beside the one before if there is a job to rest."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline
        feed()
        if job is not None:
            rest(job)


def told(job: StatefulJob, text: str) -> bool:
    """Tell whether a report has a warning with this text."""
    return any(text in warning for report in job.reports for warning in report.warnings)
