"""A query on a standalone cluster whose workers are hosts of their own, batch by batch, with a ledger."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from apps.demo.servers import StandaloneCluster
from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.assign.model import Assignment
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.upkeep.upkeep import follow_orders
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory
from tests.kit.streams.streaming import PATIENCE_SECONDS, Kept, rest, running, wait_for

__all__ = [
    "CONF",
    "LiveQuery",
    "Roles",
    "await_executors",
    "executor_ids",
    "executors_of",
    "master_of",
    "run_workers",
    "wait_for",
]

CONF = {
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
}
"""What sessions on such a cluster have in common: executors of one core."""
KEYS_A_GROUP = 40
BATCH_AND_A_HALF = KEYS_A_GROUP * 3 // 2
"""A copy that is one batch behind is warm, one that is two behind is not."""
STORE = "totals"

Roles = tuple[set[int], set[int], set[int]]
"""The key-groups that a member owns, keeps as standby and warms up."""


class LiveQuery:
    """Running totals that a test feeds. Every batch touches every key, so each state is checked with each batch."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        usual: dict[str, Any] = {
            "root": f"file://{folder}/state",
            "key_groups": 8,
            "acceptable_recovery_lag": BATCH_AND_A_HALF,
        }
        self.settings = Settings(**{**usual, "probing_rebalance_interval": 0.001, "expected_executors": 2, **settings})
        self._spark = spark
        self.kept = Kept()
        self.job: StatefulJob = Stateful(
            STORE, "k", aggregate(rows=count(), total=sum_("v")), settings=self.settings
        ).into(self.kept)
        self.keys = KEYS_A_GROUP * self.settings.key_groups
        self.version = -1
        self.steps: list[str] = []
        self.job._reached = self.steps.append  # private: made to be listened to

    def restart(self) -> None:
        """Begin again as a new driver would: with nothing but what the log and the folders hold."""
        running(self.job).stop()
        self.job = StatefulJob(self.job.parts, self.settings)
        self.job._reached = self.steps.append  # private: made to be listened to

    def is_running_slots(self) -> bool:
        """Tell, from any thread, whether a batch's slots run."""
        in_run = self.steps[-1:] == ["before run"]
        return in_run and bool(self._spark.sparkContext.statusTracker().getActiveStageIds())

    def rows(self) -> DataFrame:
        """Return the next batch's rows: one a key."""
        return self._spark.range(self.keys).selectExpr("id as k", f"id + {self.version} as v")

    def feed(self, batches: int = 1) -> BatchReport:
        """Run the next batches, check the ledger, and return the last report."""
        for _ in range(batches):
            self.version += 1
            self.job(self.rows(), self.version)
            self._check_ledger()
        return self.job.reports[-1]

    def _check_ledger(self) -> None:
        """Compare the newest delivery, which has every key, with what was fed; each batch has made one."""
        seen, sums = self.version + 1, sum(range(self.version + 1))
        newest = {row["k"]: (row["rows"], row["total"]) for row in list(self.kept.deliveries.values())[-1]}
        assert newest == {key: (seen, key * seen + sums) for key in range(self.keys)}
        assert [len(rows) for rows in self.kept.deliveries.values()] == [self.keys] * seen

    def feed_until(self, reached: Callable[[], object], why: str, *, resting: bool = True) -> list[BatchReport]:
        """Feed until ``reached`` says so; return the reports. Where it is not ``resting``, batches follow at once upon
        each other, whatever runs beside them.
        """
        deadline, reports = time.monotonic() + PATIENCE_SECONDS, [self.feed()]
        while not reached():
            assert time.monotonic() < deadline, f"not in {PATIENCE_SECONDS:g} s: {why}; members {self.job.members()}"
            if resting:
                self.rest()
            reports.append(self.feed())
        return reports

    def rest(self) -> None:
        """Wait until nothing runs beside the batches: neither upkeep nor a census."""
        rest(self.job)

    @property
    def ownership(self) -> Ownership:
        """The driver's living members."""
        return running(self.job).driver.ownership

    def settled(self) -> bool:
        """Tell whether nothing is on its way any more and every standby is warm."""
        present = self.ownership.placement.present
        return not present.needs_probe and not present.warmups and all(r.warm for r in self.job.readiness())

    def catch_up(self) -> list[BatchReport]:
        """Wait until every standby and warm-up holds what the last batch committed.

        A plan that an executor could not go through is given up until the next batch: then one is fed. Their reports
        are returned.
        """
        reports, deadline = [], time.monotonic() + PATIENCE_SECONDS
        while not self._level():
            assert time.monotonic() < deadline, f"copies do not follow: {self.job.reports[-1].warnings}"
            reports.append(self.feed())
        return reports

    def _level(self) -> bool:
        """Wait for what runs beside the batches; tell whether it left no copy behind."""
        self.rest()
        driver = running(self.job).driver
        driver._upkeep.gather(driver.ownership)  # private: upkeep goes on between batches
        return not follow_orders(driver.ownership, driver._log.manifest, [STORE])  # private: what the driver holds

    @contextmanager
    def stalled(self, cluster: StandaloneCluster) -> Iterator[None]:
        """Keep upkeep out of every member's folder, as a piece does that hangs: copies beside the owners' lag."""
        folders = [cluster.local_folder(index) for index in range(len(cluster.hosts))]
        with ExitStack() as held:
            for lock in (lock for folder in folders for m in self.job.members() for lock in _locks(folder, m.id)):
                fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX)
            yield

    def arrange(self, wanted: Mapping[str, tuple[set[int], set[int]]], **settings: Any) -> None:
        """Make what members, by host, own and keep what is ``wanted``, and go on with these settings.

        Everybody has to hold everything before; then only what is wanted counts.
        """
        assert self.settled(), self.holds()
        self.catch_up()
        self.job.reconfigure(**settings, state_cleanup_delay=0)
        ids = {member.host: member.id for member in self.job.members()}
        owners = {task(group): ids[host] for host, (owned, _) in wanted.items() for group in owned}
        keepers = [(task(group), ids[host]) for host, (_, kept) in wanted.items() for group in kept]
        self.ownership.placement.present = Assignment(
            owners, {t: tuple(m for of, m in keepers if of == t) for t, _ in keepers}
        )
        self.ownership.placement.forget_layout()
        self.feed()
        self.catch_up()
        self.job.reconfigure(state_cleanup_delay=self.settings.state_cleanup_delay)
        assert self.holds() == {host: (*roles, set()) for host, roles in wanted.items()}

    def holds(self) -> dict[str, Roles]:
        """Return what each live member owns, keeps and warms up, by host."""
        return {member.host: self._roles(member.id) for member in self.job.members() if member.state != "awaited"}

    def _roles(self, member: str) -> Roles:
        present = self.ownership.placement.present
        return (
            {t.key_group for t, owner in present.owners.items() if owner == member},
            {t.key_group for t, members in present.standbys.items() if member in members},
            {t.key_group for t, members in present.warmups.items() if member in members},
        )

    def owned(self) -> dict[str, int]:
        """Return how many key-groups each live member owns, by executor."""
        return {member.executor: member.owned for member in self.job.members() if member.state != "awaited"}

    def owner_of(self, key_group: int) -> str:
        """Return the member that owns a key-group."""
        return self.ownership.placement.present.owners[task(key_group)]


def _locks(folder: Path, member: str) -> list[Path]:
    """Return what a member's pieces of upkeep lock, one at a time, if it lies in this folder."""
    return [found / "upkeep" for found in folder.glob(f"*/{member}")]


def executors_of(cluster: StandaloneCluster, worker: int) -> list[int]:
    """Return the process ids of the executors that a worker runs, its own left out."""
    return [pid for pid in cluster._workers[worker].pids() if _is_executor(pid)]  # private: which process is whose


def _is_executor(pid: int) -> bool:
    with suppress(OSError):
        return b"--executor-id" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def master_of(cluster: StandaloneCluster) -> str:
    """Return a cluster's address for a session, whose workers then find the packages that the cluster's find."""
    os.environ.update({name: value for name, value in cluster.environment.items() if name == "PYTHONPATH"})
    return cluster.url


def executor_ids(spark: SparkSession) -> set[str]:
    """Return the ids of the executors that Spark gives tasks to."""
    return {executor.id for executor in inventory.executors(spark)}


def await_executors(spark: SparkSession, number: int) -> None:
    """Wait until Spark gives tasks to so many executors: it notices who comes and who goes a little later."""
    wait_for(lambda: len(executor_ids(spark)) == number, f"{number} executors")


def run_workers(spark: SparkSession, cluster: StandaloneCluster, number: int) -> None:
    """Let the first ``number`` workers run, and no others, and wait for their executors."""
    for index in range(max(number, len(cluster.hosts))):
        ended = index in cluster._ended  # private: whom a test has ended
        if index >= number and not ended:
            cluster.stop_worker(index)
        elif index == len(cluster.hosts):
            cluster.add_worker()
        elif index < number and ended:
            cluster.return_worker(index)
    await_executors(spark, number)
