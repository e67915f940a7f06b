"""Operators drain, pin, pause and resume a query on real executors, while it is idle, busy or paused, and across
drivers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.ownership.readiness import MemberState
from riffle_spark.state.log.record import Record
from tests.kit.folders import CHECKOUT
from tests.kit.streams.streaming import CollectingSink, Feed, records, running, settings_in, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.newer_spark]
MASTER = "local-cluster[2,1,600]"
KEYS = [f"key-{n}" for n in range(80)]


class SteeredQuery:
    """A query on two executors that reads requests, and the commands of an operator."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: object) -> None:
        self._spark = spark
        self._folder = folder
        self.feed = Feed(folder / "in", "k string, v long")
        options = {"expected_executors": 2, "acceptable_recovery_lag": 0, "control": "on", **settings}
        self.settings = settings_in(folder, **options)
        self.conf_file = folder / "riffle.toml"
        self.conf_file.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
        self.kept = CollectingSink()
        compute = aggregate(rows=count(), total=sum_("v"))
        self.job: StatefulJob = Stateful("totals", "k", compute, settings=self.settings).into(self.kept)
        self.query: StreamingQuery

    @property
    def root(self) -> str:
        """Return the root."""
        assert self.settings.root is not None
        return self.settings.root

    def start(self) -> None:
        """Start the query and run its first batch."""
        self.restart()
        self.add()
        self.wait(lambda: self.job.reports, "the first batch")

    def restart(self) -> None:
        """Start the query on a source that is idle after each batch."""
        stream = self.feed.stream(self._spark)
        self.query = start(stream, self.job, self._folder / "checkpoint", processingTime="100 milliseconds")

    def start_busy(self) -> None:
        """Start the query on a source that always has rows, so that batches follow each other without a pause."""
        rows = self._spark.readStream.format("rate").option("rowsPerSecond", 200).load()
        stream = rows.selectExpr("concat('key-', value % 80) as k", "value as v")
        self.query = start(stream, self.job, self._folder / "checkpoint", processingTime="0 seconds")
        self.wait(lambda: len(self.job.reports) >= 3, "three batches")

    def add(self) -> None:
        """Feed a batch."""
        self.feed.add([{"k": key, "v": 1} for key in KEYS])

    def wait(self, reached: object, description: str) -> None:
        """Wait until ``reached`` returns a true value. Fail if the query fails."""

        def looked() -> bool:
            assert self.query.exception() is None
            return bool(reached())  # type: ignore[operator]

        wait_for(looked, description)

    def start_command(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a riffle command in a new process that waits for the driver's answer."""
        words = [sys.executable, "-m", "riffle_spark", command, self.root, *arguments, "--wait", "--json"]
        words += ["--conf-file", str(self.conf_file)]
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, cwd=self._folder,
        )  # fmt: skip

    def run(self, command: str, *arguments: str) -> dict[str, object]:
        """Run a riffle command in a new process and return the driver's answer."""
        output, errors = self.start_command(command, *arguments).communicate(timeout=120)
        assert output, errors
        answer: dict[str, object] = json.loads(output)
        return answer

    def record_of(self, answer: dict[str, object]) -> tuple[Record, int]:
        """Return the first record with this answer, and the number of batches that were committed since its request."""
        batches = 0
        for record in records(self.root):
            batches += record.kind == "batch" and record.written_ms > int(str(answer["time_ms"]))
            if any(each.id == answer["id"] for each in read_requests(record.orders).answers):
                return record, batches
        raise AssertionError(f"no record answers {answer}")

    def owned(self) -> dict[str, int]:
        """Return the number of key-groups that each live executor owns."""
        return {member.executor: member.owned for member in self.job.members() if member.state != "awaited"}


@pytest.fixture
def steered(spark: SparkSession, tmp_path: Path) -> Iterator[SteeredQuery]:
    """A query that is not yet started."""
    query = SteeredQuery(spark, tmp_path)
    yield query
    query.query.stop()


def latency(answer: dict[str, object]) -> float:
    """Return the seconds between the request and its answer. Both times are of the same machine."""
    return (int(str(answer["answered_ms"])) - int(str(answer["time_ms"]))) / 1000


def test_a_drain_and_a_pin_reach_a_busy_query(steered: SteeredQuery, capsys: pytest.CaptureFixture[str]) -> None:
    """A busy query answers a pin and a drain with the second batch after the request at the latest."""
    steered.start_busy()
    first, second = sorted(steered.owned())
    pinned = steered.run("pin", "0", first)
    drained = steered.run("drain", second)
    for answer in (pinned, drained):
        record, batches = steered.record_of(answer)
        assert (answer["state"], record.kind) == ("applied", "batch")
        assert batches <= 2
    steered.wait(lambda: steered.owned()[second] == 0, "the drained executor is empty")
    seconds = [report.seconds["total"] for report in steered.job.reports]
    with capsys.disabled():
        print(
            f"\nbusy: {len(seconds)} batches of {sum(seconds) / len(seconds):.2f} s; to the answer: pin "
            f"{latency(pinned):.2f} s ({steered.record_of(pinned)[1]} batches), drain {latency(drained):.2f} s "
            f"({steered.record_of(drained)[1]} batches)"
        )


def test_a_paused_query_holds_its_next_batch_until_it_is_resumed(steered: SteeredQuery) -> None:
    """A paused query holds its next batch until it is resumed. Live settings can be changed meanwhile.

    Spark shows an active batch during the pause. A paused query can be stopped, and a restarted query is not paused.
    """
    steered.start()
    assert steered.run("pause")["state"] == "applied"
    steered.add()
    steered.wait(lambda: steered.query.status["isTriggerActive"], "the next batch waits")
    assert steered.run("set", "num_standbys=1")["state"] == "applied"
    assert (steered.job.paused, len(steered.job.reports)) == (True, 1)
    assert steered.query.status["message"] == "Processing new data"
    assert steered.run("resume")["state"] == "applied"
    steered.wait(lambda: len(steered.job.reports) == 2, "the batch that waited")
    assert running(steered.job).driver.settings.num_standbys == 1
    assert steered.kept.latest("k") == {key: {"rows": 2, "total": 2} for key in KEYS}
    assert steered.run("pause")["state"] == "applied"
    steered.add()
    steered.wait(lambda: steered.query.status["isTriggerActive"], "the third batch waits")
    steered.query.stop()
    assert steered.query.exception() is None
    assert len(steered.job.reports) == 2
    steered.restart()
    steered.wait(lambda: len(steered.job.reports) == 3, "the restarted query is not paused")


def test_a_drain_and_a_pin_need_no_batch_and_outlive_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """An idle query drains a member and pins a key-group without a batch, and the next driver keeps both.

    Two upkeep tasks move the copies, so nothing is restored.
    """
    first = SteeredQuery(spark, tmp_path, control="off")
    first.start()
    leaving, staying = sorted(member.id for member in first.job.members())
    owners = running(first.job).driver.ownership.placement.present.owners
    group = next(t.key_group for t, owner in owners.items() if owner == leaving)
    first.job.pin(group, staying)
    first.job.drain(leaving)
    requests: dict[str, object] = {"drained": [leaving], "pins": {str(group): staying}}
    check_drained(first, leaving, requests)
    assert len(first.job.reports) == 1
    assert [record.kind for record in records(first.root)] == ["claim", "batch", "orders"]
    first.query.stop()
    assert running(first.job)._pulse.ended(30)  # private: the thread that must go
    second = SteeredQuery(spark, tmp_path, control="off")
    second.start()
    check_drained(second, leaving, requests)
    report = second.job.reports[-1]
    assert [warning for warning in report.warnings if f"drained: {leaving}, pinned: {group} to {staying}" in warning]
    assert report.fetched_bytes == 0
    assert second.kept.latest("k") == {key: {"rows": 2, "total": 2} for key in KEYS}
    second.job.undrain(leaving)
    second.wait(lambda: [member.owned for member in second.job.members()] == [4, 4], "the member has its share again")
    second.query.stop()


def check_drained(query: SteeredQuery, member: str, requests: dict[str, object]) -> None:
    """Wait until the member is empty, and check that the newest record lists the operator requests."""
    query.wait(lambda: of_member(query, member).owned == 0, "the drained member is empty")
    drained = of_member(query, member)
    assert (drained.state, drained.standbys, drained.warmups) == ("draining", 0, 0)
    assert records(query.root)[-1].orders == requests


def of_member(query: SteeredQuery, name: str) -> MemberState:
    """Return the state of the member with this id."""
    return next(member for member in query.job.members() if member.id == name)
