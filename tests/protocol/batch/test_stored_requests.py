"""Requests of operators survive the driver: they are stored in the record of the next batch, or of an idle query in a
record without a batch.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError, FencedError, UnavailableError
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.protocol.batch.mailbox import Answer
from riffle_spark.protocol.batch.stored_requests import (
    AwaitedMember,
    StoredRequests,
    apply_stored_settings,
    changed_settings,
    read_requests,
)
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import RecordedMember
from riffle_spark.state.objects.store import sent_since
from riffle_spark.testing import ManualClock
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import Crash
from tests.kit.state.drawn_records import JSON, MEMBERS, NAMES, NUMBERS, RESERVED
from tests.kit.state.faulty_store import Fault

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")
DELAY = 300
TASKS = st.builds(task, st.integers(0, 32_767), st.sampled_from(["query", "heavy"]))
BY_TASK = st.dictionaries(TASKS, NAMES, max_size=3)
OURS = ["drained", "pins", "slots", "settings", "awaited", "homes", "answers", "control"]
OTHERS = RESERVED.map(lambda drawn: {name: value for name, value in drawn.items() if name not in OURS})
AWAITED = st.lists(st.builds(AwaitedMember, NUMBERS, MEMBERS), max_size=3, unique_by=lambda wait: wait.member.id).map(
    lambda waits: tuple(sorted(waits, key=lambda wait: wait.member.id))
)
ANSWERS = st.lists(
    st.builds(
        Answer,
        NUMBERS,
        st.text(max_size=4),
        st.sampled_from(["applied", "refused", "expired", "superseded"]),
        NUMBERS,
        st.text(max_size=4),
        st.text(max_size=4),
    ),
    max_size=3,
).map(tuple)
WILLS = st.builds(
    StoredRequests, st.lists(NAMES, max_size=3, unique=True).map(lambda names: tuple(sorted(names))), BY_TASK,
    st.none() | st.integers(1, 64), RESERVED, AWAITED, BY_TASK, ANSWERS, st.booleans(), OTHERS,
)  # fmt: skip


class LateClock(ManualClock):
    """A clock that is three hours behind that of another driver."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the epoch by this clock."""
        return super().wall_ms() - 3 * 3_600_000


@given(WILLS)
def test_decoded_requests_equal_the_encoded_ones(will: StoredRequests) -> None:
    """Stored requests are equal after encoding and decoding, with fields of later versions. Without requests they take
    no bytes.
    """
    assert read_requests(will.to_json()) == will
    assert StoredRequests().to_json() == {}
    assert not will.differs_from(replace(will, prior_owners={}))


@given(st.sampled_from(OURS), JSON)
def test_any_stored_requests_are_read_unchanged_or_refused(name: str, drawn: object) -> None:
    """Any content of stored requests is either read and written back unchanged, or refused with CorruptStateError."""
    with contextlib.suppress(CorruptStateError):
        read = read_requests({name: drawn}).to_json()
        assert read.get(name, []) == (sorted(drawn) if isinstance(drawn, list) else drawn or [])


def test_only_changed_settings_are_stored_and_checked_when_read() -> None:
    """Only changed settings are stored, and they are checked when read. Settings that this version does not know or
    allow are kept, but not applied.
    """
    started = Settings(num_standbys=1, key_groups=4)
    now = started.but(num_standbys=2, rack_aware_assignment_tags=["zone"])
    stored = changed_settings(started, now)
    assert stored == {"num_standbys": 2, "rack_aware_assignment_tags": ["zone"]}
    assert apply_stored_settings(started, stored) == (now, {})
    strange = {"of_tomorrow": [1], "max_warmup_replicas": -1, "key_groups": 8}
    assert apply_stored_settings(started, {**stored, **strange}) == (now, strange)


def running(tmp_path: Path, executors: tuple[str, ...] = THREE, **changed: Any) -> Elastic:
    """Return a query after some batches."""
    world = Elastic(tmp_path, executors=executors, **{"retained_versions": 100, **changed})
    world.feed(4)
    return world


def test_a_new_driver_applies_the_requests_in_the_record_of_a_batch(tmp_path: Path) -> None:
    """Requests are stored in the record of a batch. The first batch of the next driver applies and reports them."""
    world = Elastic(tmp_path, executors=(), retained_versions=100)
    for name in THREE:
        world.cluster.add(name, cores=2)
    world.feed(4)
    operations, group = world.driver.operations, min(world.owned("2"))
    operations.drain("1")
    operations.pin(group, "3")
    operations.remove_worker()
    operations.reconfigure(world.driver.settings, {"num_standbys": 1})
    world.feed()
    before = len(world.memory.list(paths.LOG))
    world.start()
    report = world.feed()
    assert len(world.memory.list(paths.LOG)) - before == 2, "a claim and a batch"
    assert any("[RIFFLE-0803]" in warning and "num_standbys = 1" in warning for warning in report.warnings)
    assert (world.driver.settings.num_standbys, report.slots) == (1, 3)
    world.settle()
    assert world.holds("1") == (set(), set(), set())
    assert group in world.owned("3")
    assert {state.executor: state.state for state in world.driver.operations.members}["1"] == "draining"
    world.check_state()


def test_undone_requests_are_not_in_the_next_record(tmp_path: Path) -> None:
    """Requests that were undone are not in the next record, and the next driver has none."""
    world = running(tmp_path)
    driver_operations, started = world.driver.operations, world.driver.settings
    driver_operations.drain("1")
    driver_operations.pin(0, "2")
    driver_operations.reconfigure(started, {"num_standbys": 1})
    world.feed()
    world.start()
    world.feed()
    driver_operations = world.driver.operations
    driver_operations.undrain("1")
    driver_operations.unpin(0)
    driver_operations.reconfigure(world.driver.settings, {"num_standbys": started.num_standbys})
    world.feed()
    tail = world.log().tail
    assert tail is not None
    assert tail.orders == {}
    world.start()
    assert not [warning for warning in world.feed().warnings if "RIFFLE-0803" in warning]
    world.settle()
    assert len(world.owned("1")) == 2


def test_requests_between_batches_take_one_record_and_one_put(tmp_path: Path) -> None:
    """Without a batch, stored requests are one record of one put. A later look sends nothing."""
    world = running(tmp_path, retained_for=3600)
    world.rest(3)
    sent = dict(world.memory.requests)
    assert world.rest(3) == [False] * 3
    assert world.memory.requests == sent
    before = world.log().tail
    group = min(world.owned("2"))
    world.driver.operations.pin(group, "2")
    sent = dict(world.memory.requests)
    assert world.rest(3) == [True, False, False]
    assert sent_since(sent, world.memory.requests) == {"put": 1}
    tail = world.log().tail
    assert before is not None
    assert tail is not None
    assert (tail.kind, tail.epoch, tail.version) == ("orders", before.epoch, before.version)
    assert (tail.sequence, tail.orders) == (before.sequence + 1, {"pins": {str(group): world.member("2")}})
    world.start()
    world.feed()
    assert world.driver.operations.requests.pins == {task(group): world.member("2")}
    world.check_state()


def test_the_last_batch_is_a_repeat_after_a_record_of_requests(tmp_path: Path) -> None:
    """After a record of requests, the last batch is recognised as a repeat."""
    world = running(tmp_path, deliver_after_commit=True)
    world.driver.operations.drain("1")
    world.rest()
    calls = len(world.sinks["totals"].calls)
    world.start()
    report = world.batch(world.version, world.work._rows)  # private: the same rows
    assert report.decision == "repeat"
    assert len(world.sinks["totals"].calls) == calls + 1, "its output is delivered again"
    assert world.driver.operations.requests.drained
    world.settle()
    assert world.owned("1") == set()
    world.check_state()


@pytest.mark.parametrize("step", ["before requests", "after requests"])
def test_a_crash_at_a_record_of_requests_keeps_all_or_none(tmp_path: Path, step: str) -> None:
    """If the driver crashes at a record of requests, the next driver applies all or none of them."""
    world = running(tmp_path)
    owned = world.owned("1")
    world.driver.operations.drain("1")
    world.at_step = {step: lambda: (_ for _ in ()).throw(Crash(step))}
    with pytest.raises(Crash):
        world.rest()
    world.at_step = {}
    world.start()
    world.settle()
    assert world.owned("1") == (owned if step == "before requests" else set())
    world.check_state()


def test_a_fenced_driver_stores_no_requests(tmp_path: Path) -> None:
    """A fenced driver stores no requests, because the new driver's claim refuses its put."""
    world = running(tmp_path)
    old = world.driver
    world.start()
    world.feed()
    tail = world.log().tail
    old.operations.drain("1")
    world.clock.advance(1)
    with pytest.raises(FencedError):
        old.between_batches(world.cluster.executors())
    assert not old.between_batches(world.cluster.executors())
    assert world.log().tail == tail
    world.feed(2)
    world.check_state()


@pytest.mark.parametrize("kind", ["answer_lost", "unavailable"])
def test_an_unclear_record_of_requests_is_resolved_later(tmp_path: Path, kind: Any) -> None:
    """If the put of the record is unclear, later looks wait longer, and a look or batch finds out whether it was
    committed.
    """
    world = running(tmp_path)
    world.driver.operations.drain("1")
    world.store.script(Fault(kind, "put", paths.LOG, times=None), Fault("unavailable", "get", paths.LOG, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.rest()
    puts = world.store.calls.count(("put", paths.record_name(5)))
    world.rest(1, 0.5)
    assert world.store.calls.count(("put", paths.record_name(5))) == puts, "the put is not repeated at once"
    world.store.heal()
    if kind == "unavailable":
        world.rest(1, 2)
        assert not world.driver._log.is_unclear
    world.settle()
    assert world.owned("1") == set()
    kinds = [world.log().read(sequence).kind for sequence in range(5, 7)]
    assert kinds == ["orders", "batch"]
    world.check_state()


def test_a_new_driver_continues_the_wait_for_a_lost_member(tmp_path: Path) -> None:
    """A new driver waits for a lost member for the rest of the delay. No member warms up, and the member gets its tasks
    back.
    """
    world = running(tmp_path, scheduled_rebalance_max_delay=DELAY)
    owned, member = world.owned("1"), world.member("1")
    world.cluster.lose("1")
    world.feed()
    world.clock.advance(DELAY / 2)
    world.start()
    reports = [world.feed(), world.feed()]
    assert not world.ownership.placement.present.warmups
    assert {state.id: state.state for state in world.driver.operations.members}[member] == "awaited"
    assert [move for report in reports for move in report.moves] == []
    world.cluster.add("1b")
    reports = world.settle()
    assert (world.member("1b"), world.owned("1b")) == (member, owned)
    assert sum(report.restores + report.upkeep_restores for report in reports) == 0
    tail = world.log().tail
    assert tail is not None
    assert "awaited" not in tail.orders
    world.check_state()


def test_the_wait_for_a_lost_member_includes_time_without_a_driver(tmp_path: Path) -> None:
    """The time without a driver counts for the wait. When it is over, the lost tasks are distributed and forgotten."""
    world = running(tmp_path, scheduled_rebalance_max_delay=DELAY, num_standbys=1)
    world.cluster.lose("1")
    world.feed()
    world.clock.advance(DELAY)
    world.start()
    world.settle()
    assert {len(world.owned(executor)) for executor in ("2", "3")} == {3}
    assert {len(members) for members in world.ownership.placement.present.standbys.values()} == {1}
    assert not world.ownership.membership.lost


def test_a_driver_whose_clock_is_behind_waits_for_the_delay_only(tmp_path: Path) -> None:
    """A new driver whose clock is behind waits for the delay only."""
    world = running(tmp_path, scheduled_rebalance_max_delay=DELAY)
    world.cluster.lose("1")
    world.feed()
    world.clock = LateClock()
    world.start()
    world.feed()
    assert len(world.ownership.membership.lost) == 1
    world.clock.advance(DELAY)
    world.feed()
    assert not world.ownership.membership.lost


def test_a_restart_in_the_same_process_keeps_unrecorded_requests(tmp_path: Path) -> None:
    """If a query starts again in the same process, requests that this driver got since the last record stay in effect.
    If another driver ran in between, its record applies.
    """
    world = running(tmp_path)
    world.driver.operations.drain("1")
    world.feed()
    first, member = world.driver, world.member("1")
    first.operations.undrain("1")
    world.run_id = "again"
    world.feed()
    assert first.operations.requests.drained == frozenset()
    world.start()
    world.feed()
    world.driver.operations.drain("2")
    world.feed()
    world.driver, world.run_id = first, "once more"
    world.feed()
    assert first.operations.requests.drained == {world.member("2")} != {member}


def test_a_full_record_has_all_stored_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full record has all members, standbys, drains and pins."""
    full_record_every(4, monkeypatch)
    world = running(tmp_path, num_standbys=1)
    world.driver.operations.drain("1")
    world.feed()
    world.settle()
    world.feed(4)
    log = world.log()
    assert log.tail is not None
    full = log.read(log.tail.full)
    assert sorted(member.executor for member in full.members) == list(THREE)
    assert full.orders == {"drained": [world.member("1")]}
    assert set(full.standbys) == {str(group) for group in range(6)}


def files(tmp_path: Path, version: int) -> str:
    """Return a checkpoint with the batches of the query up to ``version``."""
    checkpoint = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
        for batch in range(version + 1):
            (checkpoint / folder / str(batch)).write_text(f"offsets-{batch}")
    (checkpoint / "metadata").write_text('{"id": "query"}')
    return str(checkpoint)


def test_a_rollback_keeps_the_newest_requests(tmp_path: Path) -> None:
    """A rollback keeps the newest requests, because no batch made them."""
    world = running(tmp_path, root=f"file://{tmp_path}/root")
    fed = dict(world.fed)
    world.feed(2)
    world.driver.operations.drain("1")
    world.rest()
    rollback(world.home.root, 3, files(tmp_path, world.version), execute=True)
    world.version, world.fed = 3, fed
    world.start()
    world.settle()
    assert world.owned("1") == set()
    world.check_state()


def test_a_changed_dispatch_removes_pins_and_keeps_drains(tmp_path: Path) -> None:
    """A change of the dispatch removes pins, because the key-groups have other keys, and keeps drains. A rollback does
    not restore the pins.
    """
    world = running(tmp_path, root=f"file://{tmp_path}/root")
    member = world.member("1")
    world.driver.operations.drain("1")
    world.driver.operations.pin(0, "2")
    world.rest()
    checkpoint = files(tmp_path, world.version)
    switch_dispatch(world.home.root, "key_group", key_groups=8, execute=True)
    tail = world.log().tail
    assert tail is not None
    assert (tail.total, tail.orders) == (8, {"drained": [member]})
    world.settings = world.settings.but(key_groups=8)
    world.start()
    world.batch(world.version + 1, world.work._rows)  # private: any rows
    world.driver.operations.pin(7, "2")
    world.rest()
    rollback(world.home.root, "record:4", checkpoint, execute=True)
    tail = world.log().tail
    assert tail is not None
    assert (tail.total, tail.orders) == (6, {"drained": [member]})


def test_unreadable_stored_requests_are_refused_before_the_claim(tmp_path: Path) -> None:
    """Stored requests that this version cannot read are refused with a remedy, before the claim. So a newer version is
    not fenced.
    """
    world = running(tmp_path)
    log = world.log()
    assert log.tail is not None
    log.append(replace(log.tail, kind="orders", commit_id="x", orders={"drained": 7}), log.manifest)
    world.start()
    before = world.memory.list("")
    with pytest.raises(CorruptStateError, match="RIFFLE-0227"):
        world.feed()
    assert world.memory.list("") == before


def test_requests_of_a_later_version_are_stored_unchanged(tmp_path: Path) -> None:
    """Requests of a later version are stored unchanged and not applied. A warning lists its settings."""
    world = running(tmp_path)
    log, later = world.log(), {"include": {"zone": ["a"]}, "settings": {"of_tomorrow": [1], "num_standbys": 1}}
    assert log.tail is not None
    log.append(replace(log.tail, kind="orders", commit_id="x", orders=later), log.manifest)
    world.start()
    assert any("of_tomorrow = [1] (unknown to this version)" in warning for warning in world.feed().warnings)
    assert world.driver.settings.num_standbys == 1
    world.driver.operations.drain("1")
    world.feed()
    tail = world.log().tail
    assert tail is not None
    assert tail.orders == {**later, "drained": [world.member("1")]}


def test_a_member_is_only_awaited_under_its_own_name() -> None:
    """A record in which a lost member is awaited under another name is refused."""
    member = RecordedMember("m2", "2", "host", 1, None, {}, {})
    read = read_requests({"awaited": {"m2": [0, member.to_json()]}})
    assert [waiting.member.id for waiting in read.awaited] == ["m2"]
    with pytest.raises(CorruptStateError, match="RIFFLE-0227"):
        read_requests({"awaited": {"m1": [0, member.to_json()]}})
