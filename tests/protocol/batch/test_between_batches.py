"""An idle query completes drains, moves, probes and waits without a batch, and sends no requests if nothing is due."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from riffle_spark import RebalanceListener
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")
DELAY = 300


def idle(tmp_path: Path, executors: tuple[str, ...] = THREE, **changed: Any) -> Elastic:
    """Return an idle query that has completed all work of its last batch."""
    world = Elastic(tmp_path, executors=executors, **{"retained_versions": 100, **changed})
    world.feed(4)
    assert not any(world.rest(4)[2:])
    return world


class RecordingListener(RebalanceListener):
    """Records the calls of a listener."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[object], set[object]]] = []

    def on_revoked(self, moves: Sequence[Any]) -> None:
        """Record the revoked moves."""
        self.calls.append(("revoked", {m["from_executor"] for m in moves}, {m["key_group"] for m in moves}))

    def on_lost(self, moves: Sequence[Any]) -> None:
        """Record the moves of lost owners."""
        self.calls.append(("lost", {m["from_executor"] for m in moves}, {m["key_group"] for m in moves}))


def test_a_query_that_has_not_started_rests_without_state(tmp_path: Path) -> None:
    """Before its first batch a query has no state and nothing to do between batches."""
    world = World(tmp_path)
    assert world.driver.stored_rows() == {}
    assert world.rest(3) == [False, False, False]
    assert world.memory.list("") == []


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_drain_completes_between_batches(tmp_path: Path, standbys: int) -> None:
    """Without a batch, a drained member loses all tasks, other members get the copies, and the listener gets each move.
    The next batch restores nothing.
    """
    world = idle(tmp_path, num_standbys=standbys, max_warmup_replicas=1, state_cleanup_delay=60)
    world.ownership.placement.listener = heard = RecordingListener()
    owned = world.owned("1")
    world.driver.operations.drain("1")
    world.rest(20)
    assert world.holds("1") == (set(), set(), set())
    assert world.owned("2") | world.owned("3") == set(range(6))
    states = {state.executor: state for state in world.driver.operations.members}
    assert (states["1"].state, states["1"].owned, states["1"].standbys, states["1"].warmups) == ("draining", 0, 0, 0)
    assert {(name, *who) for name, who, _ in heard.calls} == {("revoked", "1")}
    assert set().union(*(groups for _, _, groups in heard.calls)) == owned
    assert not any(world.rest(5)), "the drain is complete"
    assert world.copies_of("1")
    world.rest(5, 20)
    assert world.copies_of("1") == set(), "unused copies are removed after the clean-up delay"
    report = world.feed()
    assert {move["key_group"] for move in report.moves if move["role"] == "owner"} == owned
    assert (report.restores, report.fetched_bytes) == (0, 0)
    world.check_state()


def test_a_lost_member_is_awaited_and_replaced_between_batches(tmp_path: Path) -> None:
    """Without a batch, standbys of a lost member become owners, and the log has the wait. After the wait new standbys
    warm up.
    """
    world = idle(tmp_path, num_standbys=1, scheduled_rebalance_max_delay=DELAY)
    lost, member = world.owned("1"), world.member("1")
    world.ownership.placement.listener = heard = RecordingListener()
    world.cluster.lose("1")
    world.rest(3)
    assert world.owned("2") | world.owned("3") == set(range(6))
    assert [call for call in heard.calls if call[0] == "lost"] == [("lost", {"1"}, lost)]
    assert {state.id: state.state for state in world.driver.operations.members}[member] == "awaited"
    tail = world.log().tail
    assert tail is not None
    requests = read_requests(tail.orders)
    assert (tail.kind, [wait.member.id for wait in requests.awaited]) == ("orders", [member])
    assert requests.prior_owners == dict.fromkeys(map(task, lost), member)
    world.clock.advance(DELAY)
    world.rest(10)
    assert {len(members) for members in world.ownership.placement.present.standbys.values()} == {1}
    assert all(copy.warm for copy in world.ownership.copies.readiness)
    tail = world.log().tail
    assert tail is not None
    assert tail.orders == {}
    report = world.feed()
    assert (report.restores, report.fetched_snapshot_bytes) == (0, 0)
    world.check_state()


def test_a_new_member_owns_its_share_between_batches(tmp_path: Path) -> None:
    """Without a batch, a new member warms up and owns its share. The next batch fetches nothing."""
    world = idle(tmp_path, executors=("1", "2"))
    world.cluster.add("3")
    world.rest(20)
    assert [len(world.owned(executor)) for executor in THREE] == [2, 2, 2]
    report = world.feed()
    assert (report.restores, report.fetched_bytes) == (0, 0)
    world.check_state()


def test_changed_settings_apply_between_batches(tmp_path: Path) -> None:
    """Without a batch, a changed `num_standbys` creates the standbys."""
    world = idle(tmp_path)
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 1})
    world.rest(10)
    assert {len(members) for members in world.ownership.placement.present.standbys.values()} == {1}
    assert sum(len(world.copies_of(executor)) for executor in THREE) == 12
    world.feed()
    world.check_state()


def test_an_idle_query_sends_no_request_and_starts_no_task(tmp_path: Path) -> None:
    """An idle query sends no request and starts no task. Later batches run as usual."""
    world = idle(tmp_path, num_standbys=1)
    calls: list[str] = []
    upkeep, census = world.cluster.upkeep, world.cluster.census
    world.cluster.upkeep = lambda orders: calls.append("upkeep") or upkeep(orders)  # type: ignore[method-assign, func-returns-value]
    world.cluster.census = lambda *arguments: calls.append("census") or census(*arguments)  # type: ignore[method-assign, func-returns-value]
    sent = dict(world.memory.requests)
    assert world.rest(50, 1000) == [False] * 50
    assert (world.memory.requests, calls) == (sent, [])
    world.feed()
    world.check_state()


def test_frequent_batches_store_operator_requests_in_their_records(tmp_path: Path) -> None:
    """While batches follow each other, requests of operators are stored in the records of batches only."""
    world = idle(tmp_path)
    world.feed()
    world.driver.operations.drain("1")
    assert world.rest(1, 0.9) == [False]
    world.feed()
    log = world.log()
    assert log.tail is not None
    kinds = [log.read(sequence).kind for sequence in range(log.tail.sequence + 1)]
    assert kinds == ["claim", *["batch"] * 6]


def test_failed_upkeep_is_repeated_between_batches(tmp_path: Path) -> None:
    """A standby that could not follow the last batch follows the log without another batch, once its executor works."""
    world = idle(tmp_path, num_standbys=1)
    world.cluster.stalled = set(THREE)
    world.feed()
    world.rest(3)
    world.cluster.stalled = set()
    assert not all(copy.lag_records == 0 for copy in world.ownership.copies.readiness)
    world.rest(5, 10)
    assert all(copy.lag_records == 0 for copy in world.ownership.copies.readiness)
    assert not any(world.rest(3))


def test_a_record_of_requests_lists_new_snapshots(tmp_path: Path) -> None:
    """A record of operator requests lists the snapshots that were taken, so that they are not deleted as orphans."""
    world = idle(tmp_path, snapshot_chain_links=6, retained_for=0)
    world.start(background := InlineBackground(deferred=True))
    world.feed(4)
    background.run()
    world.driver.operations.pin(0, world.owners()[0])
    world.rest(2)
    taken = {name for name in world.memory.list("") if "/snapshot/" in name}
    assert taken
    tail = world.log().tail
    assert tail is not None
    assert tail.kind == "orders"
    assert {name for name in world.log().manifest.object_names() if "/snapshot/" in name} == taken
    world.feed(20)
    world.check_state()


def test_cleaned_up_copies_stay_absent_until_the_next_batch(tmp_path: Path) -> None:
    """Local copies that an operator removed stay absent until the next batch."""
    world = idle(tmp_path, num_standbys=1)
    world.driver.clean_up()
    assert world.rest(5) == [False] * 5
    assert not any(world.copies_of(executor) for executor in THREE)
    world.feed()
    world.rest(5)
    assert sum(len(world.copies_of(executor)) for executor in THREE) == 12
    world.check_state()


def test_nothing_runs_before_the_first_batch_or_after_a_failed_one(tmp_path: Path) -> None:
    """Before the first batch and after a failed one, the query does nothing between batches."""
    world = Elastic(tmp_path)
    assert world.rest(2) == [False, False]
    world.feed()
    with pytest.raises(ZeroDivisionError):
        world.batch(1, world.work._rows, lambda _: 1 / 0)  # private: any rows
    world.cluster.lose("1")
    assert world.rest(2) == [False, False]


def test_nothing_runs_without_live_executors(tmp_path: Path) -> None:
    """Without live executors the query does nothing. New executors on the old folders own the same key-groups."""
    world = idle(tmp_path)
    owned = world.owned("1")
    for executor in THREE:
        world.cluster.lose(executor)
    assert world.rest(3) == [False] * 3
    for executor in ("4", "5", "6"):
        world.cluster.add(executor)
    world.rest(10)
    assert owned in [world.owned(executor) for executor in ("4", "5", "6")]
    report = world.feed()
    assert report.restores == 0
    world.check_state()
