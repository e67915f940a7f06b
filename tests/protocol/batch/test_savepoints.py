"""Nothing that a savepoint needs is deleted while the query runs, until the savepoint is deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import CorruptStateError, RiffleError, UnavailableError
from riffle_spark.protocol.batch.mailbox import MailboxRequest, add_request, last_number
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.upkeep.claim_work import run_to_end
from riffle_spark.protocol.upkeep.scan import scan
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.recorded_savepoints import SAVEPOINTS_MAX, RecordedSavepoint
from riffle_spark.state.log.savepoints import NewSavepoint, put_savepoint, read_savepoint, savepoint_objects
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import Crash, World, rows_of, totals
from tests.kit.state.faulty_store import Fault, FaultyStore
from tests.kit.state.interrupted_store import InterruptedStore

HOUR_MS = 3_600_000
pytestmark = pytest.mark.usefixtures("short_cycles")


def keys(version: int, count: int = 6) -> Sequence[tuple[str, int, int]]:
    """Return a row for each of ``count`` keys."""
    return [(f"k{n}", version, version * 100 + n) for n in range(count)]


class Query(World):
    """A query that reads requests. ``history`` checks the log after each batch."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, operators=[totals()], control="on", **settings)
        self.history: History | None = None
        self.requested = 0

    def feed(self, first: int, last: int) -> list[str]:
        """Run the batches from ``first`` to ``last`` and return their warnings."""
        warnings: list[str] = []
        for version in range(first, last + 1):
            warnings += self.batch(version, rows_of(*keys(version))).warnings
            if self.history:
                self.history.look()
        return warnings

    def ask(self, command: str, **arguments: object) -> None:
        """Make a request."""
        self.requested += 1
        now_ms = self.clock.wall_ms()
        request = MailboxRequest(
            0, f"id-{self.requested}", command, arguments, "ann", "laptop", now_ms, now_ms + HOUR_MS
        )
        add_request(self.memory, request, lambda: last_number(read_requests(self.tail.orders).answers))

    @property
    def tail(self) -> Record:
        """Return the newest record."""
        tail = self.log().tail
        assert tail is not None
        return tail

    def answers(self) -> list[tuple[str, str]]:
        """Return the state and the error id of each answer."""
        return [(answer.state, answer.error_id) for answer in read_requests(self.tail.orders).answers]

    def missing(self) -> list[str]:
        """Return the missing objects of the savepoints in the newest record, and of that record."""
        needed = self.log().manifest.object_names()
        for savepoint in self.tail.savepoints:
            needed |= savepoint_objects(read_savepoint(self.memory, savepoint))
            needed.add(paths.savepoint_name(savepoint.id))
        return sorted(needed - {*self.memory.list("")})


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Return a query after four batches, which retains two records."""
    world = Query(tmp_path, snapshot_chain_links=2)
    world.history = History(world)
    world.feed(0, 3)
    return world


def test_a_savepoint_keeps_its_batch_over_later_batches(query: Query) -> None:
    """The next record lists the savepoint. Twelve batches later its objects exist, and the records around it are
    deleted.
    """
    query.ask("create_savepoint", name="before-release")
    query.feed(4, 4)
    (savepoint,) = query.tail.savepoints
    assert (savepoint.name, savepoint.version, savepoint.user) == ("before-release", 3, "ann@laptop")
    for version in range(5, 17):
        query.feed(version, version)
        query.clock.advance(3600)
    assert query.missing() == []
    assert not query.memory.exists(paths.record_name(savepoint.sequence))
    record = read_savepoint(query.memory, savepoint)
    assert (record.version, record.offsets, record.previous_offsets) == (3, "offsets-3", "offsets-2")


def test_the_answers_to_savepoint_requests_have_the_batch(query: Query) -> None:
    """The answers of both requests have the batch."""
    query.ask("create_savepoint", name="a")
    query.feed(4, 4)
    query.ask("delete_savepoint", name="a")
    query.feed(5, 5)
    texts = [answer.text for answer in read_requests(query.tail.orders).answers]
    assert texts == ["The savepoint keeps batch 3.", "The savepoint no longer keeps batch 3."]


def test_a_savepoint_of_a_retained_batch_succeeds_and_others_fail(query: Query) -> None:
    """A retained batch can be kept. A batch before the promise, a missing one and one of another log are refused."""
    promised = query.tail.promised
    kept = query.log().read(promised)
    query.ask("create_savepoint", name="old", sequence=promised, commit_id=kept.commit_id)
    query.ask(
        "create_savepoint", name="gone", sequence=promised - 1, commit_id=query.log().read(promised - 1).commit_id
    )
    query.ask("create_savepoint", name="never", sequence=10**6, commit_id="x")
    query.ask("create_savepoint", name="other", sequence=promised, commit_id="that of another log")
    query.feed(4, 14)
    assert [savepoint.name for savepoint in query.tail.savepoints] == ["old"]
    assert query.answers() == [
        ("applied", ""),
        ("refused", "RIFFLE-1575"),
        ("refused", "RIFFLE-1579"),
        ("refused", "RIFFLE-1579"),
    ]
    assert query.missing() == []


@pytest.mark.parametrize(
    ("arguments", "error_id"),
    [
        ({"name": "taken"}, "RIFFLE-1572"),
        ({"name": "../log"}, "RIFFLE-1570"),
        ({"name": ""}, "RIFFLE-1570"),
        ({"name": "a", "sequence": "1", "commit_id": "x"}, "RIFFLE-1356"),
        ({"name": 7}, "RIFFLE-1356"),
        ({"name": "a", "sequence": 1}, "RIFFLE-1356"),
    ],
)
@pytest.mark.sample(step=3)
def test_refused_savepoint_requests_write_no_object(query: Query, arguments: dict[str, object], error_id: str) -> None:
    """A refused request has an error id in its answer and leaves no object."""
    query.ask("create_savepoint", name="taken")
    query.feed(4, 4)
    before = query.memory.list(paths.SAVEPOINTS)
    query.ask("create_savepoint", **arguments)
    query.feed(5, 5)
    assert query.answers()[-1] == ("refused", error_id)
    assert query.memory.list(paths.SAVEPOINTS) == before


def test_the_number_of_savepoints_per_query_is_limited(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query has a maximum number of savepoints, because each record lists all of them."""
    monkeypatch.setattr("riffle_spark.state.log.savepoints.SAVEPOINTS_MAX", 2)
    for name in "abc":
        query.ask("create_savepoint", name=name)
    query.feed(4, 4)
    assert [state for state, _ in query.answers()] == ["applied", "applied", "refused"]
    assert SAVEPOINTS_MAX >= 32


def test_the_objects_of_a_deleted_savepoint_are_deleted(query: Query) -> None:
    """After a savepoint is deleted, a scan is due at once. Only objects of retained records stay."""
    query.ask("create_savepoint", name="a")
    query.feed(4, 16)
    kept = savepoint_objects(read_savepoint(query.memory, query.tail.savepoints[0]))
    assert kept <= {*query.memory.list("")}
    query.ask("delete_savepoint", name="a")
    query.feed(17, 20)
    assert query.tail.savepoints == ()
    left = {name for name in query.memory.list("") if not name.startswith(paths.LOG)} - {paths.MAILBOX}
    log = query.log()
    records = [log.read(sequence) for sequence in range(log.first, query.tail.sequence + 1)]
    listed = set[str]().union(*log.listed_objects(records, log.first))
    assert left <= listed, sorted(left - listed)
    query.ask("delete_savepoint", name="a")
    query.feed(21, 21)
    assert query.answers()[-1] == ("refused", "RIFFLE-1571")


def test_an_idle_query_creates_a_savepoint_in_a_separate_record(query: Query) -> None:
    """An idle query creates a savepoint in a record without a batch."""
    query.ask("create_savepoint", name="a")
    query.rest(2)
    assert query.tail.kind == "orders"
    assert query.tail.savepoints[0].version == 3


def test_a_savepoint_adds_no_store_requests_to_later_batches(tmp_path: Path) -> None:
    """Batches send the same requests with and without savepoints."""
    counts = []
    for names in ((), ("a", "b")):
        query = Query(tmp_path / f"{len(names)}", retained_versions=1000)
        query.feed(0, 3)
        for name in names:
            query.ask("create_savepoint", name=name)
        query.feed(4, 4)
        before = dict(query.store.requests)
        query.feed(5, 9)
        counts.append({kind: count - before[kind] for kind, count in query.store.requests.items()})
    assert counts[0] == counts[1]


def test_a_savepoint_request_waits_for_an_unclear_append(query: Query) -> None:
    """While an append is unclear, a request for a savepoint waits until the driver knows whether the record exists."""
    query.driver.operations.pin(0, "1")
    query.store.script(*[Fault("unavailable", method, paths.LOG, times=None) for method in ("put", "get")])
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        query.rest(2)
    query.ask("create_savepoint", name="a")
    with pytest.raises(UnavailableError):
        query.rest(1, 700)
    query.store.heal()
    query.rest(3, 700)
    query.feed(4, 14)
    assert (("applied", "") in query.answers()) == bool(query.tail.savepoints)
    assert query.missing() == []


def test_no_savepoint_is_created_while_an_append_is_unclear(query: Query) -> None:
    """While an append is unclear, no savepoint is created, because the new record may have a later promise."""
    store = FaultyStore(query.memory, sleep=lambda _: None)
    log = Log(store, "")
    tail = log.open()
    assert tail is not None
    store.script(*[Fault("unavailable", method, paths.LOG, times=None) for method in ("put", "get")])
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        log.append(tail, log.manifest)
    with pytest.raises(UnavailableError, match="RIFFLE-1574"):
        put_savepoint(store, log, tail, NewSavepoint("a", "0" * 32, 0, "ann"), tail.epoch)
    assert query.memory.list(paths.SAVEPOINTS) == []


@pytest.mark.parametrize("step", ["before run", "after seal", "after sink", "before requests", "after record"])
@pytest.mark.sample(step=2)
def test_a_crash_at_any_step_loses_neither_the_request_nor_the_savepoint(query: Query, step: str) -> None:
    """After a crash the next driver applies each request without an answer. The unused object of the first driver is
    deleted.
    """
    query.ask("create_savepoint", name="a")
    query.crash_at = step
    for _ in range(2):
        try:
            if step == "before requests":
                query.rest(2)
            query.feed(4, 4)
        except Crash:
            query.start()
            if query.tail.version == 4:
                break
    query.start()
    query.feed(5, 9)
    (savepoint,) = query.tail.savepoints
    assert savepoint.version in (3, 4, 5), "a driver reads requests from its second batch on"
    assert query.missing() == []
    query.clock.advance(2 * 86_400)
    query.feed(10, 14)
    assert query.memory.list(paths.SAVEPOINTS) == [paths.savepoint_name(savepoint.id)]


def test_a_failed_batch_does_not_lose_an_applied_savepoint(query: Query) -> None:
    """If the batch after a savepoint fails and the process starts again, its claim lists the savepoint."""
    query.ask("create_savepoint", name="a")

    def fail(_: object) -> object:
        raise ValueError("a user's error")

    with pytest.raises(ValueError, match="user's"):
        query.batch(4, rows_of(*keys(4)), fail)
    query.run_id = "run-again"
    query.feed(4, 14)
    assert [savepoint.version for savepoint in query.tail.savepoints] == [3]
    assert query.missing() == []


def test_a_damaged_savepoint_stops_deletes_but_not_the_query(query: Query) -> None:
    """If a savepoint is damaged, nothing is deleted until the savepoint is deleted. The query runs."""
    query.ask("create_savepoint", name="a")
    query.feed(4, 4)
    query.memory.delete([paths.savepoint_name(query.tail.savepoints[0].id)])
    before = {*query.memory.list("delta/")}
    query.history = None  # it would fail too
    warnings = query.feed(5, 14)
    assert before <= {*query.memory.list("delta/")}
    assert any("RIFFLE-1577" in warning for warning in warnings)
    with pytest.raises(CorruptStateError, match="RIFFLE-1577"):
        read_savepoint(query.memory, query.tail.savepoints[0])
    query.ask("delete_savepoint", name="a")
    query.feed(15, 22)
    assert not before & {*query.memory.list("delta/")} - query.log().manifest.object_names()


@pytest.mark.parametrize("points", [1, pytest.param(60, marks=pytest.mark.long)])
def test_concurrent_deletes_and_scans_keep_a_new_savepoint(tmp_path: Path, points: int) -> None:
    """If a batch commits a savepoint at any request of the waiting deletes and scans, no object of the savepoint is
    deleted.
    """
    accepted = 0
    calls = QueryWithPendingWork(tmp_path / "counted", 0).work(-1)
    assert calls > 20
    for back in (0, 2, 5):
        for index in range(0, calls, max(1, calls // points)):
            waiting = QueryWithPendingWork(tmp_path / f"{back}-{index}", back)
            waiting.work(index)
            assert waiting.query.missing() == [], f"record {back} before the newest, at request {index} of {calls}"
            accepted += bool(waiting.query.tail.savepoints)
    assert accepted >= points, "too few savepoints were accepted to show anything"


class QueryWithPendingWork:
    """A query after some batches whose deletes and scans are waiting, and an operator who requests a savepoint."""

    def __init__(self, folder: Path, back: int) -> None:
        self.back = back
        self.query = Query(folder, snapshot_chain_links=2, retained_versions=6)
        self.store = InterruptedStore(self.query.memory)
        self.query.upkeep_store = self.store  # type: ignore[assignment]
        self.query.start(InlineBackground(deferred=True))
        self.pieces: list[Callable[[], object]] = []
        for version in range(12):
            self.query.batch(version, rows_of(*keys(version)))
            self.pieces += self.query.work_but_deletes()

    def work(self, at: int) -> int:
        """Run the deletes and scans, and create the savepoint at their request ``at``. Return the number of their
        requests.
        """
        self.store.calls, self.store.stop_at, self.store.at_call = 0, at, self.create
        for piece in self.pieces:
            piece()
        self.query.background.run()
        calls = self.store.calls
        self.query.background.run()
        return calls

    def create(self) -> None:
        """Request a savepoint of an earlier record, and run a batch that commits it."""
        record = self.query.log().find(self.query.tail.sequence - self.back)
        if record is not None:
            self.query.ask("create_savepoint", name="a", sequence=record.sequence, commit_id=record.commit_id)
        self.query.feed(12, 12)


def test_a_repeated_scan_keeps_newer_savepoints(tmp_path: Path) -> None:
    """A repeated scan of an old record reads the later records, and so keeps newer savepoints."""
    query = Query(tmp_path, snapshot_chain_links=2)
    query.start(InlineBackground(deferred=True))
    query.feed(0, 3)
    query.ask("create_savepoint", name="a")
    query.feed(4, 4)
    old = query.tail
    for version in range(5, 12):
        query.feed(version, version)
        query.work_but_deletes()
    (savepoint,) = query.tail.savepoints
    query.memory.delete([paths.record_name(n) for n in range(savepoint.sequence + 1)])
    without = Log(query.memory, "").read(savepoint.sequence + 1)
    assert isinstance(savepoint, RecordedSavepoint)
    for tail in (without, old):
        run_to_end(scan(query.memory, tail, 2, 0))
    assert query.missing() == []


def test_a_fenced_driver_keeps_savepoints_of_the_next_driver(tmp_path: Path) -> None:
    """Deletes and scans of a fenced driver keep a savepoint that another driver has created."""
    waiting = QueryWithPendingWork(tmp_path, 0)
    query = waiting.query
    background = query.background
    query.start()
    query.feed(12, 13)
    query.ask("create_savepoint", name="a")
    query.feed(14, 26)
    for piece in waiting.pieces:
        with suppress(RiffleError):  # the driver is fenced, or records are deleted
            piece()
    background.run()
    assert [savepoint.version for savepoint in query.tail.savepoints] == [13]
    assert query.missing() == []
