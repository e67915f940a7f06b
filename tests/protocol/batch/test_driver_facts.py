"""The driver facts have the owner, standbys and warm-ups of each key-group."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.protocol.ownership.groups import GROUP, task
from tests.kit.simulated.elastic_world import Elastic

OF_EXECUTOR = "executor_seconds/"


def placement(facts: DriverFacts) -> list[tuple[str, set[str], set[str]]]:
    """Return the owner, standbys and warm-ups of each key-group in the facts."""
    names = [member.id for member in facts.members]
    (group,) = facts.groups
    return [
        (names[owner] if owner >= 0 else "", {names[n] for n in standbys}, {names[n] for n in warmups})
        for owner, standbys, warmups in zip(group.owners, group.standbys, group.warmups, strict=True)
    ]


def expected(world: Elastic) -> list[tuple[str, set[str], set[str]]]:
    """Return the owner, standbys and warm-ups of each key-group in the current assignment, without members that have
    left.
    """
    present = world.ownership.placement.present
    member_ids = {member.id for member in world.driver.operations.members}
    tasks = [task(key_group, GROUP) for key_group in range(world.settings.key_groups)]
    return [
        (
            str(present.owners.get(t, "")) if present.owners.get(t) in member_ids else "",
            {*present.standbys.get(t, ())} & member_ids,
            {*present.warmups.get(t, ())} & member_ids,
        )
        for t in tasks
    ]


@pytest.mark.parametrize("key_groups", [1, 6])
def test_member_positions_stay_correct_while_executors_join_and_leave(tmp_path: Path, key_groups: int) -> None:
    """A member that joins or leaves shifts the positions of others, also if no key-group moves."""
    world = Elastic(tmp_path, executors=("1", "2"), key_groups=key_groups, num_standbys=1)
    world.feed(2)
    assert placement(world.driver.facts()) == expected(world)
    seen_members = {tuple(member.id for member in world.driver.facts().members)}
    for name in map(str, range(3, 9)):
        world.cluster.add(name)
        world.feed()
        facts = world.driver.facts()
        seen_members.add(tuple(member.id for member in facts.members))
        assert placement(facts) == expected(world)
    for name in ("3", "5", "4"):
        world.cluster.lose(name)
        for _ in range(3):
            world.feed()
            assert placement(world.driver.facts()) == expected(world)
        world.rest(2, 400)
        assert placement(world.driver.facts()) == expected(world)
    assert len(seen_members) > 4


def test_counters_of_executors_that_left_are_removed(tmp_path: Path) -> None:
    """Executors that have left have no counters, so that the number of counters is bounded."""
    world = Elastic(tmp_path, executors=("1", "2"), scheduled_rebalance_max_delay=0)
    world.feed(2)
    counted_before = {name.rpartition("/")[2] for name in world.driver.facts().counters if name.startswith(OF_EXECUTOR)}
    assert counted_before == {"1", "2"}
    for name in map(str, range(3, 9)):
        world.cluster.add(name)
        world.feed(2)
        world.cluster.lose(str(int(name) - 2))
        world.feed(2)
    counters = world.driver.facts().counters
    counted = {name.rpartition("/")[2] for name in counters if name.startswith(OF_EXECUTOR)}
    assert counted
    assert counted <= {"7", "8"}
