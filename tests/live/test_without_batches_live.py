"""What goes on with executors while no batch comes, and what outlives a driver: on real executors, on an idle topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark import RebalanceListener, Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.readiness import MemberState
from tests.kit.streams.streaming import Feed, Kept, records, running, settings_in, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long]
MASTER = "local-cluster[2,1,600]"
KEYS = [f"key-{n}" for n in range(80)]


class Heard(RebalanceListener):
    """Remembers whose key-groups went, and why."""

    def __init__(self) -> None:
        self.lost: list[Any] = []
        self.revoked: list[Any] = []

    def on_lost(self, moves: Sequence[Any]) -> None:
        """Hear whose owner is gone."""
        self.lost += moves

    def on_revoked(self, moves: Sequence[Any]) -> None:
        """Hear what a living owner gives up."""
        self.revoked += moves


class Idle:
    """A query on two executors, whose topic is idle after each batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.feed = Feed(folder / "in", "k string, v long")
        self.settings = settings_in(folder, expected_executors=2, acceptable_recovery_lag=0)
        self.kept = Kept()
        self.fed = 0

    def start(self) -> StreamingQuery:
        """Start a driver on it that knows nothing, and run a batch."""
        compute = aggregate(rows=count(), total=sum_("v"))
        self.job: StatefulJob = Stateful("totals", "k", compute, settings=self.settings).into(self.kept)
        self.job.listener = self.heard = Heard()
        stream, checkpoint = self.feed.stream(self._spark), self._folder / "checkpoint"
        self.query = start(stream, self.job, checkpoint, processingTime="100 milliseconds")
        self.batch()
        return self.query

    def batch(self) -> None:
        """Feed a batch, and check what comes of it."""
        self.feed.add([{"k": key, "v": 1} for key in KEYS])
        self.fed += 1
        self.wait(lambda: len(self.kept.deliveries) == self.fed and self.batches(), "a batch")
        assert self.kept.latest("k") == {key: {"rows": self.fed, "total": self.fed} for key in KEYS}

    def batches(self) -> int:
        """Return how many batches this driver has run."""
        return len(self.job.reports)

    def wait(self, reached: Any, why: str) -> None:
        """Wait until something is so, or raise what the query failed with."""

        def looked() -> bool:
            assert self.query.exception() is None
            return bool(reached())

        wait_for(looked, why)

    def member(self, name: str) -> MemberState:
        """Return a member by its folder's name."""
        return next(member for member in self.job.members() if member.id == name)

    def owned(self) -> dict[str, int]:
        """Return how many key-groups each live member owns."""
        return {member.id: member.owned for member in self.job.members() if member.state != "awaited"}

    def stop(self) -> None:
        """Stop the query, and wait for what looks after it: nobody ends that but itself."""
        self.query.stop()
        assert running(self.job)._pulse.ended(30)  # private: the thread that must go
        assert "riffle-pulse" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def idle(spark: SparkSession, tmp_path: Path) -> Iterator[Idle]:
    """A query after its first batch."""
    made = Idle(spark, tmp_path)
    query = made.start()
    yield made
    query.stop()
    made.query.stop()


def test_a_drain_and_a_pin_need_no_batch_and_outlive_the_driver(idle: Idle) -> None:
    """Warm, by two tasks beside no batch: the drained member is empty, and stays so under the next driver, as the
    pinned key-group stays where it is.
    """
    leaving, staying = sorted(idle.owned())
    group = next(
        t.key_group for t, m in running(idle.job).driver.ownership.placement.present.owners.items() if m == leaving
    )
    idle.job.pin(group, staying)
    idle.job.drain(leaving)
    idle.wait(lambda: idle.owned() == {leaving: 0, staying: 8}, "the drained member is empty")
    gone = idle.member(leaving)
    assert (gone.state, gone.standbys, gone.warmups, idle.batches()) == ("draining", 0, 0, 1)
    assert {move["from"] for move in idle.heard.revoked} == {leaving}
    assert len(idle.heard.revoked) == 4
    asked = {"drained": [leaving], "pins": {str(group): staying}}
    told = records(idle.settings.root or "")
    assert [record.kind for record in told] == ["claim", "batch", "orders"]
    assert told[-1].orders == asked
    idle.stop()
    idle.start()
    report = idle.job.reports[-1]
    assert [warning for warning in report.warnings if f"drained: {leaving}; pinned: {group} to {staying}" in warning]
    assert (idle.owned(), idle.member(leaving).state) == ({leaving: 0, staying: 8}, "draining")
    assert report.fetched_bytes == 0
    assert running(idle.job).driver.operations.requests.pins == {task(group): staying}
    assert records(idle.settings.root or "")[-1].orders == asked
    idle.job.undrain(leaving)
    idle.wait(lambda: sorted(idle.owned().values()) == [4, 4], "it has its share again")
    idle.batch()
    idle.stop()
