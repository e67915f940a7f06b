"""Operations on a running query: pause and resume, clean up, slots, listeners, and refused requests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark import RebalanceListener, Stateful, StatefulJob, aggregate, count, read_state, sum_
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import CollectingSink, Feed, rest, running, settings_in, start

pytestmark = pytest.mark.spark
SOON = 60.0


class RecordingListener(RebalanceListener):
    """A listener that records its calls, and may fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fails = False

    def on_revoked(self, moves: Sequence[object]) -> None:
        """Record the call."""
        self.calls.append(("revoked", len(moves)))

    def on_assigned(self, moves: Sequence[object]) -> None:
        """Record the call, or fail."""
        self.calls.append(("assigned", len(moves)))
        if self.fails:
            raise ValueError("the listener's own trouble")


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """A feed with one batch."""
    made = Feed(tmp_path / "in", "k string, v long")
    made.add([{"k": key, "v": 1} for key in "abcdefgh"])
    return made


@pytest.fixture
def kept() -> CollectingSink:
    """A sink that keeps its deliveries."""
    return CollectingSink()


@pytest.fixture
def job(tmp_path: Path, kept: CollectingSink) -> StatefulJob:
    """A job that has not run yet."""
    return Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings_in(tmp_path)).into(kept)


@pytest.fixture
def query(spark: SparkSession, feed: Feed, job: StatefulJob, tmp_path: Path) -> Iterator[StreamingQuery]:
    """The job's query, after its first batch."""
    running = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    wait_for(lambda: len(job.reports) == 1, running)
    yield running
    running.stop()


def wait_for(reached: Callable[[], object], query: StreamingQuery) -> None:
    """Wait until ``reached`` returns a true value. Raise the query's error if it fails."""
    deadline = time.monotonic() + SOON
    while not reached():
        assert time.monotonic() < deadline
        query.awaitTermination(0.1)  # type: ignore[arg-type]


def test_a_paused_query_runs_no_batch_and_continues_its_state(
    feed: Feed, job: StatefulJob, query: StreamingQuery, kept: CollectingSink
) -> None:
    """A paused query stays alive and runs no batch. Its copies can be removed, and the next batch has the state."""
    job.pause()
    job.pause()
    feed.add([{"k": "a", "v": 5}])
    query.awaitTermination(1.5)  # type: ignore[arg-type]
    assert (query.isActive, job.paused, len(job.reports)) == (True, True, 1)
    job.clean_up()
    assert job.settings is not None
    local = Path(job.settings.local_dir or "")
    assert not list(local.glob("*/*/stacks/*/*"))
    job.resume()
    job.resume()
    wait_for(lambda: len(job.reports) == 2, query)
    assert kept.latest("k")["a"] == {"rows": 2, "total": 6}
    assert job.reports[-1].restores == 1


def test_slots_are_added_and_removed_without_moving_key_groups(
    feed: Feed, job: StatefulJob, query: StreamingQuery
) -> None:
    """Slots are removed and added, between one and the number of cores, and no key-group moves."""
    assert job.reports[-1].slots == 2
    assert job.remove_worker() == 1
    feed.add([{"k": "a", "v": 5}])
    wait_for(lambda: len(job.reports) == 2, query)
    assert (job.reports[-1].slots, job.reports[-1].moves) == (1, ())
    with pytest.raises(ConfigError, match="RIFFLE-0754"):
        job.remove_worker()
    assert job.add_worker() == 2
    with pytest.raises(ConfigError, match="RIFFLE-0754"):
        job.add_worker()


def test_an_error_of_a_listener_does_not_stop_the_batch(
    spark: SparkSession, feed: Feed, job: StatefulJob, tmp_path: Path
) -> None:
    """A listener is called before the batch. Its error is in the report, and the batch is committed."""
    heard = RecordingListener()
    heard.fails, job.listener = True, heard
    running = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="100 milliseconds")
    wait_for(lambda: len(job.reports) == 1, running)
    running.stop()
    assert heard.calls == [("assigned", 8)]
    assert "on_assigned of the rebalance listener failed: ValueError" in " ".join(job.reports[0].warnings)


def test_impossible_requests_are_refused_with_a_remedy(job: StatefulJob, query: StreamingQuery) -> None:
    """Each refusal names what is wrong and what to do instead."""
    with pytest.raises(ConfigError, match="RIFFLE-0372"):
        job.clean_up()
    with pytest.raises(ConfigError, match="RIFFLE-0756"):
        job.drain("nobody")
    with pytest.raises(ConfigError, match="RIFFLE-0751"):
        job.drain(job.members()[0].id)
    with pytest.raises(ConfigError, match="RIFFLE-0757"):
        job.pin(8, job.members()[0].id)
    with pytest.raises(ConfigError, match="RIFFLE-0755"):
        job.reconfigure(key_groups=16)
    with pytest.raises(ConfigError, match="num_standbys"):
        job.reconfigure(num_standbys=-1)
    assert job.reconfigure(num_standbys=1).num_standbys == 1
    assert {member.host for member in job.members()} == {socket.gethostname()}
    query.stop()
    for ask in (job.request_rebalance, lambda: job.drain("driver"), lambda: job.pin(0, job.members()[0].id)):
        with pytest.raises(ConfigError, match="RIFFLE-0374"):
            ask()


def test_where_names_the_key_group_in_which_a_key_is_stored(spark: SparkSession, job: StatefulJob) -> None:
    """``where`` names the key-group in which the state of a key is stored. Before the first batch it is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0376"):
        job.where("a")
    job(spark.createDataFrame([(key, 1) for key in "abcd"], "k string, v long"), 0)
    assert job.settings is not None
    stored = read_state(str(job.settings.root)).read_all()
    places = {key: job.where(key) for key in "abcd"}
    assert {key: place.key_group for key, place in places.items()} == dict(
        zip(stored["k"].to_pylist(), stored["key_group"].to_pylist(), strict=True)
    )
    assert {place.owner for place in places.values()} == {job.members()[0].id}


def test_a_stop_warns_of_upkeep_that_hangs(
    spark: SparkSession, job: StatefulJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop that cannot wait for the end of upkeep warns that the application should be ended."""
    job(spark.createDataFrame([("a", 1)], "k string, v long"), 0)
    rest(job)
    began, ends = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        ends.wait(SOON)

    running(job)._background.submit(hang)
    assert began.wait(SOON)
    monkeypatch.setattr("riffle_spark.spark.job._STOP_SECONDS", 0.05)
    running(job).stop()
    ends.set()
    (warned,) = [message for message in caplog.messages if "RIFFLE-0308" in message]
    assert "end the application" in warned


def test_requests_before_the_first_batch_are_refused(job: StatefulJob) -> None:
    """Requests on a job are refused before its first batch."""
    for ask in (job.request_rebalance, job.add_worker, job.clean_up, lambda: job.drain("1")):
        with pytest.raises(ConfigError, match="RIFFLE-0373"):
            ask()
    assert (job.members(), job.readiness(), job.paused) == ((), (), False)
