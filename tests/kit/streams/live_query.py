"""A query on a standalone cluster, each of whose workers is a separate host, and a ledger of its expected output."""

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
from tests.kit.streams.streaming import PATIENCE_SECONDS, CollectingSink, rest, running, wait_for

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
"""Configuration of all sessions on such a cluster. Executors have one core."""
KEYS_A_GROUP = 40
BATCH_AND_A_HALF = KEYS_A_GROUP * 3 // 2
"""The acceptable lag. A copy that is one batch behind is warm, and one that is two batches behind is not."""
STORE = "totals"

Roles = tuple[set[int], set[int], set[int]]
"""The key-groups that a member owns, keeps as standby, and warms up."""


class LiveQuery:
    """Running totals whose input a test controls.

    Every batch changes every key, so it also checks every key's state.
    """

    def __init__(self, spark: SparkSession, folder: Path, **settings: Any) -> None:
        usual: dict[str, Any] = {
            "root": f"file://{folder}/state",
            "key_groups": 8,
            "acceptable_recovery_lag": BATCH_AND_A_HALF,
        }
        self.settings = Settings(**{**usual, "probing_rebalance_interval": 0.001, "expected_executors": 2, **settings})
        self._spark = spark
        self.kept = CollectingSink()
        self.job: StatefulJob = Stateful(
            STORE, "k", aggregate(rows=count(), total=sum_("v")), settings=self.settings
        ).into(self.kept)
        self.keys = KEYS_A_GROUP * self.settings.key_groups
        self.version = -1
        self.steps: list[str] = []
        self.job._reached = self.steps.append  # private: tests may set it

    def restart(self) -> None:
        """Replace the driver by a new one, which knows only the log and the members' folders."""
        running(self.job).stop()
        self.job = StatefulJob(self.job.parts, self.settings)
        self.job._reached = self.steps.append  # private: tests may set it

    def is_running_slots(self) -> bool:
        """Return, on any thread, whether slots of a batch are running."""
        in_run = self.steps[-1:] == ["before run"]
        return in_run and bool(self._spark.sparkContext.statusTracker().getActiveStageIds())

    def rows(self) -> DataFrame:
        """Return the rows of the next batch, one per key."""
        return self._spark.range(self.keys).selectExpr("id as k", f"id + {self.version} as v")

    def feed(self, batches: int = 1) -> BatchReport:
        """Run the next batches, check the ledger, and return the last report."""
        for _ in range(batches):
            self.version += 1
            self.job(self.rows(), self.version)
            self._check_ledger()
        return self.job.reports[-1]

    def _check_ledger(self) -> None:
        """Compare the newest delivery, which has every key, with the input, and check that each batch made one
        delivery.
        """
        seen, sums = self.version + 1, sum(range(self.version + 1))
        newest = {row["k"]: (row["rows"], row["total"]) for row in list(self.kept.deliveries.values())[-1]}
        assert newest == {key: (seen, key * seen + sums) for key in range(self.keys)}
        assert [len(rows) for rows in self.kept.deliveries.values()] == [self.keys] * seen

    def feed_until(self, reached: Callable[[], object], description: str, *, resting: bool = True) -> list[BatchReport]:
        """Run batches until ``reached`` returns true, and return the reports.

        If ``resting`` is not set, batches do not wait for background work.
        """
        deadline, reports = time.monotonic() + PATIENCE_SECONDS, [self.feed()]
        while not reached():
            assert time.monotonic() < deadline, (
                f"not in {PATIENCE_SECONDS:g} s: {description}; members {self.job.members()}"
            )
            if resting:
                self.rest()
            reports.append(self.feed())
        return reports

    def rest(self) -> None:
        """Wait until no background work runs: neither upkeep nor a census."""
        rest(self.job)

    @property
    def ownership(self) -> Ownership:
        """The members that the driver knows, and their tasks."""
        return running(self.job).driver.ownership

    def settled(self) -> bool:
        """Return whether the assignment is stable and every standby is warm."""
        present = self.ownership.placement.present
        return not present.needs_probe and not present.warmups and all(r.warm for r in self.job.readiness())

    def catch_up(self) -> list[BatchReport]:
        """Wait until every standby and warm-up has the state of the last batch.

        If an executor could not complete an upkeep plan, the plan is repeated only after a batch. Then a batch is run,
        whose report is returned.
        """
        reports, deadline = [], time.monotonic() + PATIENCE_SECONDS
        while not self._level():
            assert time.monotonic() < deadline, f"copies are not up to date: {self.job.reports[-1].warnings}"
            reports.append(self.feed())
        return reports

    def _level(self) -> bool:
        """Wait for background work, and return whether all copies are up to date."""
        self.rest()
        driver = running(self.job).driver
        driver._upkeep.gather(driver.ownership)  # private: upkeep continues between batches
        return not follow_orders(driver.ownership, driver._log.manifest, [STORE])  # private: the log of the driver

    @contextmanager
    def stalled(self, cluster: StandaloneCluster) -> Iterator[None]:
        """Block upkeep in every member's folder, as a piece that hangs does.

        Copies that are not of owners fall behind.
        """
        folders = [cluster.local_folder(index) for index in range(len(cluster.hosts))]
        with ExitStack() as locks:
            for lock in (lock for folder in folders for m in self.job.members() for lock in _locks(folder, m.id)):
                fcntl.flock(locks.enter_context(lock.open("a")), fcntl.LOCK_EX)
            yield

    def arrange(self, target_roles: Mapping[str, tuple[set[int], set[int]]], **settings: Any) -> None:
        """Make members own and keep as standby the key-groups of ``target_roles``, by host, and apply these settings.

        Before, each member must have a copy of each of its key-groups.
        """
        assert self.settled(), self.holds()
        self.catch_up()
        self.job.reconfigure(**settings, state_cleanup_delay=0)
        ids = {member.host: member.id for member in self.job.members()}
        owners = {task(group): ids[host] for host, (owned, _) in target_roles.items() for group in owned}
        keepers = [(task(group), ids[host]) for host, (_, standbys) in target_roles.items() for group in standbys]
        self.ownership.placement.present = Assignment(
            owners, {t: tuple(m for of, m in keepers if of == t) for t, _ in keepers}
        )
        self.ownership.placement.forget_layout()
        self.feed()
        self.catch_up()
        self.job.reconfigure(state_cleanup_delay=self.settings.state_cleanup_delay)
        assert self.holds() == {host: (*roles, set()) for host, roles in target_roles.items()}

    def holds(self) -> dict[str, Roles]:
        """Return the key-groups that each live member owns, keeps as standby, and warms up, by host."""
        return {member.host: self._roles(member.id) for member in self.job.members() if member.state != "awaited"}

    def _roles(self, member: str) -> Roles:
        present = self.ownership.placement.present
        return (
            {t.key_group for t, owner in present.owners.items() if owner == member},
            {t.key_group for t, members in present.standbys.items() if member in members},
            {t.key_group for t, members in present.warmups.items() if member in members},
        )

    def owned(self) -> dict[str, int]:
        """Return the number of key-groups that each live member owns, by executor."""
        return {member.executor: member.owned for member in self.job.members() if member.state != "awaited"}

    def owner_of(self, key_group: int) -> str:
        """Return the member that owns a key-group."""
        return self.ownership.placement.present.owners[task(key_group)]


def _locks(folder: Path, member: str) -> list[Path]:
    """Return the lock files that serialize a member's upkeep, if the member is in this folder."""
    return [member_folder / "upkeep" for member_folder in folder.glob(f"*/{member}")]


def executors_of(cluster: StandaloneCluster, worker: int) -> list[int]:
    """Return the process ids of the executors of a worker, without the worker's own processes."""
    return [pid for pid in cluster._workers[worker].pids() if _is_executor(pid)]  # private: a worker's processes


def _is_executor(pid: int) -> bool:
    with suppress(OSError):
        return b"--executor-id" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def master_of(cluster: StandaloneCluster) -> str:
    """Return the URL of a cluster for a session. Its Python workers find the packages that the cluster finds."""
    os.environ.update({name: value for name, value in cluster.environment.items() if name == "PYTHONPATH"})
    return cluster.url


def executor_ids(spark: SparkSession) -> set[str]:
    """Return the ids of the executors to which Spark gives tasks."""
    return {executor.id for executor in inventory.executors(spark)}


def await_executors(spark: SparkSession, number: int) -> None:
    """Wait until Spark gives tasks to ``number`` executors. Spark notices new and lost executors with a delay."""
    wait_for(lambda: len(executor_ids(spark)) == number, f"{number} executors")


def run_workers(spark: SparkSession, cluster: StandaloneCluster, number: int) -> None:
    """Run only the first ``number`` workers, and wait for their executors."""
    for index in range(max(number, len(cluster.hosts))):
        ended = index in cluster._ended  # private: the workers that a test has stopped
        if index >= number and not ended:
            cluster.stop_worker(index)
        elif index == len(cluster.hosts):
            cluster.add_worker()
        elif index < number and ended:
            cluster.return_worker(index)
    await_executors(spark, number)
