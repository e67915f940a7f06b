"""Requests to a running query: live filters, custom assignors, the location of keys, loads and lags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from riffle_spark import RebalanceListener
from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Task, View
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Part, Receipt
from riffle_spark.protocol.ownership import placement
from riffle_spark.protocol.ownership.groups import ONE_GROUP, task
from riffle_spark.protocol.ownership.rebalance import MoveFields
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.state.log.manifest import Manifest
from tests.kit.simulated.elastic_world import TOUCHED, Elastic
from tests.kit.simulated.partitioned_query import BY_PARTITION, of_partition, offsets
from tests.kit.simulated.world import World, one_row, totals

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")


def reconfigured(world: Elastic, **changes: object) -> None:
    """Change live settings and run batches until the query settles."""
    world.driver.operations.reconfigure(world.driver.settings, changes)
    world.settle()


def test_members_are_excluded_and_included_live(tmp_path: Path) -> None:
    """Members are excluded and included by attributes without a restore. Drained members stay drained."""
    world = Elastic(tmp_path, executors=THREE)
    world.feed(4)
    before = world.version
    reconfigured(world, exclude=f"id={world.member('1')}")
    assert [len(world.owned(name)) for name in THREE] == [0, 3, 3]
    world.driver.operations.drain("2")
    world.settle()
    assert [len(world.owned(name)) for name in THREE] == [0, 0, 6]
    world.driver.operations.undrain("2")
    reconfigured(world, exclude="", include=f"id={world.member('1')}, id={world.member('2')}")
    assert [len(world.owned(name)) for name in THREE] == [3, 3, 0]
    reconfigured(world, include="")
    assert [len(world.owned(name)) for name in THREE] == [2, 2, 2]
    assert world.version > before
    world.check_state()


def test_rebalancing_is_switched_off_and_on_live(tmp_path: Path) -> None:
    """With `rebalance_enable = none` a new member gets nothing. A custom assignor can limit the moves to one."""

    def one_at_once(view: View, settings: AssignSettings) -> Assignment:
        return assign(view, replace(settings, assignor="high_availability", moves_at_once=1))

    world = Elastic(tmp_path, executors=("1", "2"), acceptable_recovery_lag=1_000_000, assignor=one_at_once)
    world.feed(3)
    reconfigured(world, rebalance_enable="none")
    world.cluster.add("3")
    world.feed(2)
    assert world.owned("3") == set()
    world.driver.operations.reconfigure(world.driver.settings, {"rebalance_enable": "all"})
    assert len(world.feed().moves) == 1
    world.settle()
    assert len(world.owned("3")) == 2
    world.check_state()


class Tenants:
    """An assignor that counts its instances and records the tasks."""

    made = 0

    def __init__(self) -> None:
        Tenants.made += 1
        self.seen: list[tuple[Task, ...]] = []

    def __call__(self, before: View, settings: AssignSettings) -> Assignment:
        """Return the default assignment and record the tasks."""
        self.seen.append(before.tasks)
        return assign(before, replace(settings, assignor="high_availability"))


def test_each_query_has_one_assignor_instance(tmp_path: Path) -> None:
    """Each query has one instance of the assignor class, which computes all its assignments."""
    Tenants.made = 0
    worlds = [Elastic(tmp_path / name, assignor=f"{__name__}.Tenants") for name in ("one", "two")]
    for world in worlds:
        world.feed(2)
        world.cluster.add("3")
        world.settle()
    assert Tenants.made == 2
    assignors = [world.driver.settings.assignor for world in worlds]
    assert assignors[0] is not assignors[1]
    assert all(len(used_assignor.seen) > 1 for used_assignor in assignors if isinstance(used_assignor, Tenants))


class RecordingListener(RebalanceListener):
    """Records the assigned moves."""

    def __init__(self) -> None:
        self.heard: list[MoveFields] = []

    def on_assigned(self, moves: Sequence[MoveFields]) -> None:
        """Record the moves."""
        self.heard += moves


@pytest.mark.parametrize("dispatch", BY_PARTITION)
def test_listeners_and_assignors_get_topics_and_partitions(tmp_path: Path, dispatch: str) -> None:
    """With partition and hashed dispatch, listeners and assignors get topics and partitions."""
    seen = Tenants()
    world, listener = World(tmp_path, dispatch=dispatch, key_groups=16, assignor=seen), RecordingListener()
    world.driver.ownership.placement.listener = listener
    report = world.batch(0, of_partition(one_row(1), 2), offsets=offsets(0, 0, 1))
    partitions = {("events", 0), ("events", 1), ("events", 2)}
    assert {(move["topic"], move["partition"]) for move in listener.heard} <= partitions
    assert ("events", 2) in {(move["topic"], move["partition"]) for move in listener.heard}
    assert not any("key_group" in move for move in listener.heard)
    assert all("key_group" in move and "topic" in move for move in report.moves)
    if dispatch == "partition":
        assert {(each.topic, each.partition) for each in seen.seen[-1]} >= {("events", 2)}
    place = world.driver.ownership.placement.place_of(task(0))
    assert place is not None
    assert (place.topic, place.partition) in partitions
    assert place.topic is not None
    assert place.partition is not None
    assert world.driver.ownership.placement.task_of((place.topic, place.partition), None) == task(0)
    with pytest.raises(ConfigError, match="RIFFLE-0239"):
        world.driver.ownership.placement.task_of(("orders", 0), None)


def test_the_location_of_a_key_names_the_executor_that_ran_it(tmp_path: Path) -> None:
    """The location of a key has the key-group, owner, executor, host and standbys. It is unknown before the first
    assignment.
    """
    world = Elastic(tmp_path, executors=THREE, num_standbys=1)
    assert world.ownership.placement.place_of(task(0)) is None
    world.feed(6)
    (operator,) = world.operators
    for group in range(6):
        key = world.keys[group][0]
        assert operator.key_group_of(key, 6) == group
        place = world.ownership.placement.place_of(task(group))
        assert place is not None
        world.ran.clear()
        world.feed(keys=[key])
        (ran,) = {ran.executor for ran in world.ran if group in ran.key_groups}
        assert (place.executor, place.owner, place.host) == (ran, world.member(ran), f"host-{ran}")
        assert [name for name in THREE if world.member(name) in place.standbys] == [
            name for name in THREE if group in world.holds(name)[1]
        ]


@pytest.mark.parametrize("key", [7, ("a", "b"), {"other": "a"}, {"k": 7}])
def test_an_invalid_key_is_refused_with_the_key_columns(key: object) -> None:
    """A key must be a value, or for several columns a tuple or mapping."""
    with pytest.raises(ConfigError, match="RIFFLE-0232"):
        totals().key_group_of(key, 6)


def test_members_report_their_load_and_lag_growth(tmp_path: Path) -> None:
    """The load of a member is its rows per batch. If copies of a member do not follow the log, its lag grows."""
    world = Elastic(tmp_path, num_standbys=1, acceptable_recovery_lag=1_000_000)
    world.feed(4)
    states = {state.executor: state for state in world.ownership.member_states()}
    loads = {name: TOUCHED * len(world.owned(name)) for name in ("1", "2")}
    assert all(states[name].load >= loads[name] for name in loads), states
    assert (states["1"].lag_trend, states["1"].disk_used_share is not None) == (0, True)
    world.cluster.stalled = {"2"}
    report = world.feed(4)
    states = {state.executor: state for state in world.ownership.member_states()}
    assert states["2"].lag_records > 0
    assert states["2"].lag_trend > 0
    assert report.lag_records == {state.executor: state.lag_records for state in states.values()}
    assert report.lag_trends == {state.executor: state.lag_trend for state in states.values()}
    assert report.executor_seconds.keys() == report.ran_on.keys()
    assert abs(sum(report.executor_seconds.values()) - sum(report.slot_seconds.values())) < 1e-6
    steps = {name: sum(seconds.values()) for name, seconds in report.executor_steps.items()}
    assert steps == pytest.approx(report.executor_seconds)
    assert {tuple(seconds) for seconds in report.executor_steps.values()} == {
        ("decode", "user_code", "state", "commit")
    }
    assert states["1"].lag_trend == 0


def test_the_work_of_a_key_group_is_summed_over_all_stores() -> None:
    """The measured work of a key-group is that of all stores together."""
    weights, part = Weights(), Part(3, 0, 0, 0, rows=10)
    receipts = [Receipt(store, 0, "", 0, "", "", parts=(part,)) for store in ("totals", "models")]
    weights.record_batch(receipts, Manifest({}), ONE_GROUP)
    assert weights.measured == {task(3): 10 + 10}


@pytest.mark.parametrize("odd", [True, "3"])
def test_only_integers_can_be_pinned(tmp_path: Path, odd: object) -> None:
    """Only integers, also of NumPy, can be pinned, because records must be readable."""
    world = Elastic(tmp_path)
    world.feed()
    with pytest.raises(ConfigError, match="RIFFLE-0242"):
        world.ownership.placement.task_of(odd, None)  # type: ignore[arg-type]
    assert world.ownership.placement.task_of(np.int64(2), None) == task(2)  # type: ignore[arg-type]


def test_a_shard_of_an_unknown_partition_cannot_be_pinned(tmp_path: Path) -> None:
    """With `partition` dispatch only numbers of known partitions can be pinned."""
    world = World(tmp_path, dispatch="partition", key_groups=16)
    world.batch(0, of_partition(one_row(1), 2), offsets=offsets(0, 0, 1))
    read = len(world.driver.ownership.placement.shards or ())
    assert world.driver.ownership.placement.task_of(read - 1, None) == task(read - 1)
    with pytest.raises(ConfigError, match="RIFFLE-0239"):
        world.driver.ownership.placement.task_of(read, None)


def test_excluded_members_do_not_count_for_balance(tmp_path: Path) -> None:
    """Excluded members do not count as unbalanced, and cause neither moves nor warnings."""
    world = Elastic(tmp_path, executors=THREE, num_standbys=0)
    world.feed(2)
    reconfigured(world, exclude=f"id={world.member('1')}")
    reports = [world.feed() for _ in range(8)]
    assert world.owned("1") == set()
    assert not [warning for report in reports for warning in report.warnings]
    assert not [move for report in reports for move in report.moves]


def test_a_request_made_during_an_assignment_is_still_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request from another thread during an assignment stays pending for the next one."""
    world = Elastic(tmp_path, key_groups=4)
    world.feed()
    operations = world.driver.operations

    def assign_meanwhile(*arguments: Any) -> Any:
        operations.request_rebalance()
        return assign(*arguments)

    operations.request_rebalance()
    with monkeypatch.context() as patch:
        patch.setattr(placement, "assign", assign_meanwhile)
        world.feed()
    assert world.driver.ownership.placement.has_pending_request()
    world.feed()
    assert not world.driver.ownership.placement.has_pending_request()
