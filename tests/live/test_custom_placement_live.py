"""A user's assignor, pins, and live include and exclude filters decide placement on real executors, and ``where`` names
the executor that processes a key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, arrow_function
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine import inventory
from riffle_spark.worker.member_folders import executor_id
from tests.kit.streams.streaming import PATIENCE_SECONDS, CollectingSink, rest, settings_in

pytestmark = pytest.mark.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

MASTER = "local-cluster[2,1,600]"
KEYS = 24
EXECUTOR_OF_KEY = pa.schema([("k", pa.int64()), ("executor", pa.string())])
MOST_BATCHES = 20
MIB = 2**20


def output_executor(rows: pa.Table, _: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Output and store the executor that processed each key."""
    rows_with_executor = pa.table({"k": rows["k"], "executor": [executor_id()] * rows.num_rows}, schema=EXECUTOR_OF_KEY)
    return rows_with_executor, rows_with_executor


def assign_to_lowest_id(view: View, _: AssignSettings) -> Assignment:
    """Assign every task to the member with the lowest id, and ignore all requests."""
    return Assignment({task.id: min(member.id for member in view.members) for task in view.tasks})


class PlacedJob:
    """A job on two executors. Each batch has one row per key, and its sink keeps the output."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: object) -> None:
        job_settings = settings_in(
            folder, expected_executors=2, acceptable_recovery_lag=0, max_warmup_replicas=8, **settings
        )
        assert len(inventory.await_executors(spark, job_settings, expected=2)) == 2
        self._spark, self._kept, self._version = spark, CollectingSink(), -1
        compute = arrow_function(
            output_executor, state=pa.schema([EXECUTOR_OF_KEY.field("executor")]), output=EXECUTOR_OF_KEY
        )
        self.job: StatefulJob = Stateful("ran", "k", compute, settings=job_settings).into(self._kept)

    def feed(self) -> dict[object, str]:
        """Run one batch and return the executor that processed each key."""
        self._version += 1
        self.job(self._spark.range(KEYS).selectExpr("id k"), self._version)
        rest(self.job)
        newest = list(self._kept.deliveries.values())[-1]
        return {row["k"]: row["executor"] for row in newest}

    def feed_until(self, reached: Callable[[dict[object, str]], bool]) -> dict[object, str]:
        """Run batches until ``reached`` accepts one. Unless an owner moved, ``where`` predicted the executors of each
        batch.
        """
        for _ in range(MOST_BATCHES):
            predicted = {key: self.job.where(key).executor for key in range(KEYS)} if self._version >= 0 else {}
            executors = self.feed()
            if reached(executors):
                return executors
            moved = any(move["role"] == "owner" for move in self.job.reports[-1].moves)
            assert moved or not predicted or executors == predicted
        raise AssertionError(f"not in {MOST_BATCHES} batches; members {self.job.members()}")

    def check_where(self) -> None:
        """Check that ``where`` names the executor that the next batch uses, and the owner's executor and host."""
        places = {key: self.job.where(key) for key in range(KEYS)}
        assert self.feed() == {key: place.executor for key, place in places.items()}
        hosts = {member.id: (member.executor, member.host) for member in self.job.members()}
        assert all(hosts[place.owner] == (place.executor, place.host) for place in places.values())


@pytest.mark.long
def test_tasks_that_a_custom_assignor_gives_an_excluded_member_move(spark: SparkSession, tmp_path: Path) -> None:
    """A function as ``assignor`` decides the owners. If it assigns tasks to an excluded member, they go to another
    member.
    """
    placed_job = PlacedJob(spark, tmp_path, assignor=assign_to_lowest_id)
    with pytest.raises(ConfigError, match="not run a batch yet"):
        placed_job.job.where(0)
    first = min(_two_members(placed_job))
    placed_job.feed_until(lambda executors: set(executors.values()) == {_executor(placed_job, first)})
    placed_job.check_where()
    before = len(placed_job.job.reports)
    placed_job.job.reconfigure(exclude=f"id={first}")
    placed_job.feed_until(lambda executors: _executor(placed_job, first) not in executors.values())
    reports = list(placed_job.job.reports)[before:]
    assert any("RIFFLE-0771" in warning for report in reports for warning in report.warnings)
    assert sum(report.restores for report in reports) == 0, "key-groups move warm"
    placed_job.check_where()
    placed_job.job.reconfigure(exclude="")
    placed_job.feed_until(lambda executors: set(executors.values()) == {_executor(placed_job, first)})


@pytest.mark.long
def test_pins_hold_with_the_hash_assignor_and_filters_change_live(spark: SparkSession, tmp_path: Path) -> None:
    """A pinned key-group moves to its member with ``assignor="hash"``. A member that ``include`` leaves out keeps only
    its pinned key-group.
    """
    placed_job = PlacedJob(spark, tmp_path, assignor="hash", num_standbys=1)
    _two_members(placed_job)
    placed_job.check_where()
    place = placed_job.job.where(0)
    other = next(member for member in placed_job.job.members() if member.id != place.owner)
    assert place.standbys == (other.id,)
    placed_job.job.pin(place.key_group, other.id)
    assert placed_job.feed()[0] == other.executor
    assert placed_job.job.where(0).owner == other.id
    placed_job.job.reconfigure(include=f"id={place.owner}", num_standbys=0)
    executors = placed_job.feed()
    pinned = {key for key in range(KEYS) if placed_job.job.where(key).key_group == place.key_group}
    assert {key for key, executor in executors.items() if executor == other.executor} == pinned
    states = {member.id: member for member in placed_job.job.members()}
    assert states[place.owner].load > states[other.id].load > 0
    assert states[other.id].disk_used_share is not None
    memory = {state.id: (state.memory_bytes, state.memory_used_share) for state in states.values()}
    assert all(
        used_bytes and used_bytes > 10 * MIB and share and 0 < share < 1 for used_bytes, share in memory.values()
    ), memory


def _two_members(placed_job: PlacedJob) -> set[str]:
    """Run batches until both executors are members, and return the member ids."""
    for _ in range(int(PATIENCE_SECONDS)):
        placed_job.feed()
        members = {member.id for member in placed_job.job.members() if member.state == "live"}
        if len(members) == 2:
            return members
    raise AssertionError(placed_job.job.members())


def _executor(placed_job: PlacedJob, member: str) -> str:
    return next(state.executor for state in placed_job.job.members() if state.id == member)
