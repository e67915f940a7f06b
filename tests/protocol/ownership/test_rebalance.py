"""Owners change only between batches. No task has two owners, and listeners are called first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.rebalance import MoveFields, RebalanceListener, check_listener
from tests.kit.simulated.elastic_world import Elastic

pytestmark = pytest.mark.usefixtures("names_in_order")


class RecordingListener(RebalanceListener):
    """Records the calls of a listener."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[int, ...]]] = []

    def on_lost(self, moves: Sequence[MoveFields]) -> None:
        """Record lost tasks."""
        self._note("lost", moves)

    def on_revoked(self, moves: Sequence[MoveFields]) -> None:
        """Record revoked tasks."""
        self._note("revoked", moves)

    def on_assigned(self, moves: Sequence[MoveFields]) -> None:
        """Record assigned tasks."""
        self._note("assigned", moves)

    def _note(self, what: str, moves: Sequence[MoveFields]) -> None:
        self.heard.append((what, tuple(sorted(int(move["key_group"]) for move in moves))))


class FailingListener(RebalanceListener):
    """Raises an error in `on_assigned`."""

    def on_assigned(self, moves: Sequence[MoveFields]) -> None:
        """Raise an error."""
        raise RuntimeError(f"cannot hear of {len(moves)} moves")


def busy_life(world: Elastic) -> None:
    """Let executors join, be drained, be lost and return."""
    world.feed(3)
    world.cluster.add("3")
    world.settle()
    world.driver.operations.drain("1")
    world.settle()
    world.driver.operations.undrain("1")
    world.settle()
    world.cluster.lose("2")
    world.feed(2)
    world.cluster.add("2b")
    world.settle()


@pytest.mark.parametrize("standbys", [0, 1])
def test_no_task_is_ever_owned_twice(tmp_path: Path, standbys: int) -> None:
    """In every batch each key-group runs once."""
    world = Elastic(tmp_path, num_standbys=standbys)
    busy_life(world)
    by_batch: dict[int, Counter[int]] = {}
    for ran in world.ran:
        by_batch.setdefault(ran.version, Counter()).update(ran.key_groups)
    assert all(counts == Counter(range(world.settings.key_groups)) for counts in by_batch.values())
    assert len(by_batch) == world.version + 1
    world.check_state()


def test_listeners_get_on_revoked_and_on_assigned_before_the_batch(tmp_path: Path) -> None:
    """For a move of a live owner, `on_revoked` and then `on_assigned` are called before the batch runs on the new
    owner.
    """
    world, scribe = Elastic(tmp_path), RecordingListener()
    world.ownership.placement.listener = scribe
    world.at_step = {"before run": lambda: scribe.heard.append(("batch", ()))}
    world.feed()
    assert scribe.heard == [("batch", ()), ("assigned", tuple(range(6)))]
    scribe.heard.clear()
    world.cluster.add("3")
    reports = world.settle()
    moved = tuple(sorted(m["key_group"] for r in reports for m in r.moves if m["role"] == "owner"))
    events = [event for event in scribe.heard if event[0] != "batch"]
    assert events == [("revoked", moved), ("assigned", moved)]
    assert {ran.executor for ran in world.ran if ran.version == world.version and set(ran.key_groups) & set(moved)} == {
        "3"
    }


def test_listeners_get_on_lost_for_tasks_of_a_lost_owner(tmp_path: Path) -> None:
    """For tasks of a lost owner, `on_lost` and then `on_assigned` are called."""
    world, scribe = Elastic(tmp_path, executors=("1", "2", "3"), num_standbys=1), RecordingListener()
    world.feed(3)
    world.ownership.placement.listener = scribe
    lost = tuple(sorted(world.owned("1")))
    world.cluster.lose("1")
    world.feed()
    assert scribe.heard == [("lost", lost), ("assigned", lost)]


def test_a_failing_listener_is_a_warning(tmp_path: Path) -> None:
    """If a listener fails, the report has a warning, and the batch runs."""
    world = Elastic(tmp_path)
    world.ownership.placement.listener = FailingListener()
    report = world.feed()
    assert any(
        "on_assigned of the rebalance listener failed" in warning and "cannot hear of 6 moves" in warning
        for warning in report.warnings
    )
    assert world.feed().warnings == ()
    world.check_state()


def test_a_query_without_triggers_computes_no_assignment(tmp_path: Path) -> None:
    """Without a trigger no assignment is computed."""
    world = Elastic(tmp_path, num_standbys=1)
    world.settle()
    layout, present = world.ownership.placement.layout, world.ownership.placement.present
    for _ in range(12):
        world.feed()
    assert world.ownership.placement.layout is layout
    assert world.ownership.placement.present is present


class PartialListener:
    """Has only one method of a listener."""

    def on_assigned(self, moves: Sequence[MoveFields]) -> None:
        """Do nothing."""


@pytest.mark.parametrize("listener", [PartialListener(), print, RecordingListener])
def test_an_invalid_listener_is_refused_when_it_is_set(listener: object) -> None:
    """An object that is no listener is refused when it is set, not with the first batch."""
    with pytest.raises(ConfigError, match="RIFFLE-0238"):
        check_listener(listener)
    check_listener(None)
    check_listener(RecordingListener())
