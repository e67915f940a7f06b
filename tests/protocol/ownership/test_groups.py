"""With several co-location groups, a key-group has an owner in each group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.ownership.groups import GROUP, parse_task, task, task_name
from riffle_spark.settings import Settings
from tests.kit.simulated.elastic_world import Elastic
from tests.kit.simulated.world import World, one_row, totals

HEAVY: Mapping[str, str] = {"models": "heavy"}
NAMES = st.sampled_from([GROUP, "heavy", "7"])


def in_groups(folder: Path, groups: Mapping[str, str] = HEAVY, **settings: Any) -> Elastic:
    """Return a query of two stores in two groups on two executors, with five key-groups."""
    operators = [totals(), totals("models")]
    return Elastic(folder, operators=operators, key_groups=5, store_groups=dict(groups), **settings)


def owners(world: Elastic) -> dict[str, dict[int, str]]:
    """Return the owners by group."""
    return {group: world.owners(group) for group in world.ownership.placement.groups.names}


def restart(world: Elastic, **changes: object) -> None:
    """Start the query again with other settings."""
    world.settings = world.settings.but(**changes)
    world.start()


def check_states(world: Elastic) -> None:
    """Check both stores against the fed rows."""
    assert world.state("totals") == world.state("models") == world.fed


@given(st.builds(task, st.integers(0, 32_767), NAMES))
def test_a_task_is_parsed_from_its_name(task_id: TaskId) -> None:
    """A task is parsed from its name, also if its group is named like a number. Names of the default group are
    key-group numbers.
    """
    assert parse_task(task_name(task_id)) == task_id
    assert parse_task(str(task_id.key_group)) == task(task_id.key_group)


@pytest.mark.parametrize("name", ["", "01", "-1", "²", "/3", "heavy/x", "query/3"])
def test_an_invalid_task_name_is_refused(name: str) -> None:
    """Any other text is refused, so each task has one name."""
    with pytest.raises(ValueError, match="not a key-group"):
        parse_task(name)


@pytest.mark.parametrize("setting", ["models", {"models": "a/b"}, {"models": ""}, ["models=a", "models=b"]])
def test_invalid_group_settings_are_refused(setting: object) -> None:
    """A group name has no slash and is not empty, and a store has one group."""
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings(store_groups=setting)  # type: ignore[arg-type]


@pytest.mark.usefixtures("names_in_order")
def test_each_co_location_group_is_balanced_separately(tmp_path: Path) -> None:
    """Each group is balanced alone, so both members own five tasks in total. Rows go to the owners of their store's
    group, also after a loss, and one record commits both stores.
    """
    world = in_groups(tmp_path)
    world.feed(3)
    task_owners = owners(world)
    assert [sorted(map(list(of.values()).count, set(of.values()))) for of in task_owners.values()] == [[2, 3], [2, 3]]
    assert sorted(state.owned for state in world.ownership.member_states()) == [5, 5]
    assert [kg for kg in range(5) if task_owners[GROUP][kg] != task_owners["heavy"][kg]]
    world.ran.clear()
    before = world.log().tail
    world.feed()
    ran = {(ran.store, kg): world.member(ran.executor) for ran in world.ran for kg in ran.key_groups}
    group_of = {"totals": GROUP, "models": "heavy"}
    assert ran == {(store, kg): task_owners[group][kg] for store, group in group_of.items() for kg in range(5)}
    tail = world.log().tail
    assert before is not None
    assert tail is not None
    assert (tail.kind, tail.sequence) == ("batch", before.sequence + 1)
    world.cluster.lose("1", disk=True)
    report = world.feed()
    assert report.restores == 5, "only tasks of the lost member are restored, of both groups"
    world.clock.advance(400)
    world.cluster.add("3")
    world.settle()
    assert sorted(state.owned for state in world.ownership.member_states() if state.state == "live") == [5, 5]
    check_states(world)


def test_a_change_of_the_groups_restores_nothing(tmp_path: Path) -> None:
    """Copies do not depend on groups, so a change of the groups restores nothing."""
    world = in_groups(tmp_path, {})
    world.feed(3)
    before = owners(world)[GROUP]
    restart(world, store_groups=dict(HEAVY))
    assert world.feed().restores == 0
    assert owners(world) == {GROUP: before, "heavy": before}
    reports = world.settle()
    assert sorted(state.owned for state in world.ownership.member_states()) == [5, 5]
    assert not any(report.restores + report.misplaced_runs for report in reports)
    apart = owners(world)
    restart(world)
    assert world.feed().restores == 0
    assert owners(world) == apart, "the record has the owners of both groups"
    restart(world, store_groups=())
    world.feed()
    assert owners(world).keys() == {GROUP}
    check_states(world)


@pytest.mark.usefixtures("names_in_order")
def test_a_pin_applies_to_one_group_and_survives_the_driver(tmp_path: Path) -> None:
    """A pin applies to the key-group of one store's group. A missing or unknown store is refused."""
    world = in_groups(tmp_path)
    world.feed(3)
    before = owners(world)
    (target,) = {world.member("1"), world.member("2")} - {before["heavy"][0]}
    one_of = world.ownership.placement.task_of(0, "models")
    assert one_of == task(0, "heavy")
    for store, message in ((None, "RIFFLE-0236"), ("modles", "models")):
        with pytest.raises(ConfigError, match=message):
            world.ownership.placement.task_of(0, store)
    world.driver.operations.pin(0, target, "heavy")
    moves = [move for report in world.settle() for move in report.moves if move["role"] == "owner"]
    assert owners(world)["heavy"][0] == target
    assert {(move.get("group"), move["key_group"]) for move in moves} >= {("heavy", 0)}
    world.start()
    world.feed()
    place = world.ownership.placement.place_of(one_of)
    assert place is not None
    assert (place.owner, place.group) == (target, "heavy")
    assert world.driver.operations.requests.pins == {one_of: target}
    restart(world, store_groups=())
    report = world.feed()
    assert any("[RIFFLE-0802] Dropped the pins heavy/0" in text for text in report.warnings)
    world.driver.operations.drain(target)
    check_states(world)


def test_a_return_to_one_group_removes_weights_of_the_others(tmp_path: Path) -> None:
    """After a return to one group, no weights of the other groups are stored."""
    world = in_groups(tmp_path, {"totals": "a", "models": "b"})
    with pytest.raises(ConfigError, match="RIFFLE-0758"):
        world.driver.operations.pin(0, "1", world.ownership.placement.task_of(0, "models").group)
    world.feed(2)
    world.ownership.placement.weights.use_measured()
    world.feed()
    assert "a/0" in str(world.log().weights)
    restart(world, store_groups=())
    world.feed()
    assert "a/0" not in str(world.log().weights)
    assert world.log().weights.get("assigned", {}) == {}
    check_states(world)


@pytest.mark.parametrize("groups", [{"totals": "heavy"}, {"models": "heavy"}, {"totals": "a", "models": "b"}])
def test_a_store_that_joins_during_a_run_gets_its_own_group(tmp_path: Path, groups: Mapping[str, str]) -> None:
    """A group has owners, slots and snapshots from the first batch of its store on. If the store pauses for a batch,
    owners stay the same.
    """
    world = in_groups(tmp_path, groups, accept=["models"])
    late = world.operators.pop()
    world.feed(2)
    missed = dict(world.fed)
    world.operators.append(late)
    world.feed(2)
    world.settle()
    group = groups.get("models", GROUP)
    world.ran.clear()
    world.feed()
    ran = {kg: world.member(ran.executor) for ran in world.ran for kg in ran.key_groups if ran.store == "models"}
    assert ran == owners(world)[group]
    world.feed(5)
    entries = [entry for (store, _), entry in world.log().manifest.entries.items() if store == "models"]
    assert len(entries) == 5
    assert all(entry.snapshot and len(entry.chain) <= 6 for entry in entries)
    since = {key: (n - missed[key][0], total - missed[key][1]) for key, (n, total) in world.fed.items()}
    assert world.state("models") == {key: state_of_key for key, state_of_key in since.items() if state_of_key[0]}
    before = owners(world)
    world.operators.remove(late)
    world.feed()
    assert owners(world) == before
    world.operators.append(late)
    assert world.feed().restores == 0
    assert owners(world) == before
    assert world.state("totals") == world.fed


def test_the_owner_in_the_group_of_a_store_takes_its_snapshots(tmp_path: Path) -> None:
    """The owner in the store's group takes its snapshots, so no other member restores a copy for them."""
    world = in_groups(tmp_path)
    world.settle()
    upkeep, snapshots = world.cluster.upkeep, set[tuple[str, int, str]]()

    def noted(orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        for executor, order in orders.items():
            snapshots.update((each.store, each.key_group, world.member(executor)) for each in order.snapshots)
        return upkeep(orders)

    world.cluster.upkeep = noted  # type: ignore[method-assign]
    reports = [world.feed() for _ in range(12)]
    by_store = {"totals": owners(world)[GROUP], "models": owners(world)["heavy"]}
    apart = {kg for kg in range(5) if len({by_store[store][kg] for store in by_store}) > 1}
    assert {(store, kg) for store, kg, _ in snapshots} == {(store, kg) for store in by_store for kg in range(5)}
    assert apart, "the groups have different owners"
    assert {(store, kg): member for store, kg, member in snapshots} == {
        (store, kg): by_store[store][kg] for store in by_store for kg in range(5)
    }
    assert sum(report.upkeep_restores for report in reports) == 0
    check_states(world)


def test_groups_are_refused_with_hashed_dispatch(tmp_path: Path) -> None:
    """Groups are refused with hashed dispatch, because owners depend on the members only."""
    world = World(tmp_path, dispatch="hashed", store_groups={"totals": "a"})
    with pytest.raises(ConfigError, match="RIFFLE-0216"):
        world.batch(0, one_row(1))
