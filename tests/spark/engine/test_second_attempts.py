"""Spark's speculation starts a second attempt of a slow task on another executor, and kills the attempt that ends last.

``tests/live/test_speculation.py`` has tests on a cluster.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from riffle_spark.settings import Settings
from riffle_spark.spark.engine import task
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.spark_batch import Sinks, SparkWork
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR
from tests.kit.module_time import replace_time
from tests.kit.worker.slot_member import Member, kept_last


@pytest.mark.parametrize(("attempt", "planned", "waits"), [(0, "1", False), (1, LOCAL_EXECUTOR, False), (1, "1", True)])
def test_only_a_second_attempt_on_another_executor_waits(
    attempt: int, planned: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt of upkeep waits on another executor than planned, because the first one may still run."""
    context = SimpleNamespace(attemptNumber=lambda: attempt)
    waited: list[float] = []
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    replace_time(monkeypatch, task, sleep=waited.append)
    batches = [pa.record_batch({"slot": [4]})]
    assert [*task.leaving_time_to_first_attempts(lambda passed: passed, {4: planned})(iter(batches))] == batches
    assert bool(waited) == waits


@pytest.mark.parametrize("has_speculation", [False, True])
def test_with_speculation_no_slot_stops_because_a_standby_has_the_copy(has_speculation: bool, tmp_path: Path) -> None:
    """With speculation, slots restore a copy that a standby has. If the second attempt stopped, the first would be
    killed.
    """
    member = Member(tmp_path, kept_last(), standbys={0: ("m0",)})
    batch: Any = SimpleNamespace(sparkSession=None)
    frames = PlacedFrames()
    frames.has_speculation = has_speculation
    work = SparkWork(batch, [member.operator], Sinks({}), frames, member.home, Settings())
    sent = work._work(member.order(), None).order
    assert sent.standbys == ({} if has_speculation else {0: ("m0",)})
