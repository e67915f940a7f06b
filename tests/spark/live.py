"""A query on a standalone cluster whose workers are hosts of their own, batch by batch, with a ledger. Knows processes.
Does not know what a test expects.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from streaming import Kept

from apps.demo.servers import StandaloneCluster
from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.protocol.report import BatchReport
from riffle_spark.protocol.view import task
from riffle_spark.settings import Settings
from riffle_spark.spark import inventory

__all__ = ["KEYS_A_GROUP", "LiveQuery", "executors_of", "wait_for"]

KEYS_A_GROUP = 40
PATIENCE_SECONDS = 90.0
POLL_SECONDS = 0.1


class LiveQuery:
    """Running totals that a test feeds. Every batch touches every key, so each state is checked with each batch."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: object) -> None:
        usual = {"root": f"file://{folder}/state", "key_groups": 8, "acceptable_recovery_lag": KEYS_A_GROUP * 3}
        self.settings = Settings(**{**usual, "probing_rebalance_interval": 0.001, "expected_executors": 2, **settings})
        self._spark = spark
        self.kept = Kept()
        self.job: StatefulJob = Stateful(
            "totals", "k", aggregate(rows=count(), total=sum_("v")), settings=self.settings
        ).into(self.kept)
        self.keys = KEYS_A_GROUP * self.settings.key_groups
        self.version = -1

    def restart(self) -> None:
        """Begin again as a new driver would: with nothing but what the log and the folders hold."""
        parts = self.job.parts
        self.job = StatefulJob(parts, self.settings)

    def rows(self) -> DataFrame:
        """Return the next batch's rows: one a key."""
        return self._spark.range(self.keys).selectExpr("id as k", f"id + {self.version} as v")

    def feed(self, batches: int = 1) -> BatchReport:
        """Run the next batches, check the ledger, and return the last report."""
        for _ in range(batches):
            self.version += 1
            self.job(self.rows(), self.version)
        seen, sums = self.version + 1, sum(range(self.version + 1))
        wanted = {key: {"rows": seen, "total": key * seen + sums} for key in range(self.keys)}
        assert self.kept.latest("k") == wanted
        assert [len(rows) for rows in self.kept.deliveries.values()] == [self.keys] * seen
        return self.job.reports[-1]

    def feed_until(self, reached: Callable[[], object], why: str) -> list[BatchReport]:
        """Feed until ``reached`` says so; return the reports."""
        deadline, reports = time.monotonic() + PATIENCE_SECONDS, [self.feed()]
        while not reached():
            assert time.monotonic() < deadline, f"not in {PATIENCE_SECONDS:g} s: {why}; members {self.job.members()}"
            reports.append(self.feed())
        return reports

    def settled(self) -> bool:
        """Tell whether nothing is on its way any more and every standby is warm."""
        seating = self.job._running.driver.seating
        return (
            not seating.present.needs_probe
            and not seating.present.warmups
            and all(r.warm for r in self.job.readiness())
        )

    def catch_up(self) -> None:
        """Wait until upkeep has nothing left to do: every standby holds what the last batch committed."""
        rounds = self.job._running.driver._rounds
        wait_for(lambda: not rounds._running, "upkeep is through with its plan")

    def owned(self) -> dict[str, int]:
        """Return how many key-groups each live member owns, by executor."""
        return {member.executor: member.owned for member in self.job.members() if member.state != "awaited"}

    def owner_of(self, key_group: int) -> str:
        """Return the member that owns a key-group."""
        return self.job._running.driver.seating.present.owners[task(key_group)]


def executors_of(cluster: StandaloneCluster, worker: int) -> list[int]:
    """Return the process ids of the executors that a worker runs, its own left out."""
    return [pid for pid in cluster._workers[worker].pids() if _is_executor(pid)]


def _is_executor(pid: int) -> bool:
    with suppress(OSError):
        return b"--executor-id" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def wait_for(reached: Callable[[], object], why: str) -> None:
    """Wait until ``reached`` says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not in {PATIENCE_SECONDS:g} s: {why}"
        time.sleep(POLL_SECONDS)


def live(spark: SparkSession) -> set[str]:
    """Return the ids of the executors that Spark gives tasks to."""
    return {executor.id for executor in inventory.executors(spark)}
