"""Each rule of the assignor alone and at its boundary, so that a test fails if the rule is removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, Task, TaskId, Traffic, View
from riffle_spark.protocol.ownership.triggers import Patience, Probes
from tests.kit.assign_views import WHOLE, caught_up, settled, task, view

ACCEPTABLE = AssignSettings().acceptable_recovery_lag


def owner_moves(done: Assignment) -> set[int]:
    """Return the key-groups that get another owner."""
    return {move.task.key_group for move in done.moves if move.role == "owner"}


def warm_on(before: View, member: str) -> View:
    """Return the view with a copy in sync of every task on a member."""
    lags = {each.id: {**before.lags.get(each.id, {}), member: 0} for each in before.tasks}
    return replace(before, lags=lags)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("standbys", [0, 1])
def test_the_allowed_number_of_warm_ups_runs_and_no_more(most: int, standbys: int) -> None:
    """Two new members need more warm-ups than allowed. Only the allowed number runs, with or without standbys."""
    settings = AssignSettings(max_warmup_replicas=most, num_standbys=standbys)
    before = view("a:0-11 b:12-23")
    before = caught_up(before, settled(before, settings))
    done = assign(replace(before, members=(*before.members, Member("c"), Member("d"))), settings)
    assert sum(map(len, done.warmups.values())) == most


def test_the_only_warm_up_is_for_a_standby_if_no_owner_needs_one() -> None:
    """Owners are balanced, but one member has most standbys. The only warm-up is for a standby on another member."""
    settings = AssignSettings(max_warmup_replicas=1, num_standbys=1)
    before = view("a:0-1 b:2-3 c:4-5")
    standbys = {each.id: ("b",) if before.owners[each.id] != "b" else ("a",) for each in before.tasks}
    lags = {name: {**before.lags[name], **dict.fromkeys(members, 0)} for name, members in standbys.items()}
    done = assign(replace(before, standbys=standbys, lags=lags), settings)
    assert owner_moves(done) == set()
    assert [members for members in done.warmups.values() if members] == [("c",)]


@pytest.mark.parametrize(("lag", "moves"), [(ACCEPTABLE, {0}), (ACCEPTABLE + 1, set())])
def test_a_copy_counts_as_caught_up_up_to_the_acceptable_lag(lag: int, moves: set[int]) -> None:
    """A task moves at once to a pinned member whose lag is acceptable. With one more changed record, that member warms
    up first.
    """
    before = view("a:0-2 b:3")
    pinned = replace(before, pins={task(0): "b"}, lags={**before.lags, task(0): {"a": 0, "b": lag}})
    done = assign(pinned, AssignSettings())
    assert owner_moves(done) & {0} == moves
    assert (task(0) in done.warmups) == (not moves)


@pytest.mark.parametrize(("size", "warms"), [(ACCEPTABLE, False), (ACCEPTABLE + 1, True)])
def test_state_up_to_the_acceptable_lag_needs_no_warm_up(size: int, warms: bool) -> None:
    """An empty member lags by the size of the whole state. It owns a task at once up to the acceptable lag."""
    before = view("a:0-1 b:")
    done = assign(replace(before, tasks=tuple(replace(each, size=size) for each in before.tasks)), AssignSettings())
    assert bool(done.warmups) == warms
    assert bool(owner_moves(done)) != warms


@pytest.mark.parametrize(("lag", "due"), [(ACCEPTABLE, True), (ACCEPTABLE + 1, False)])
def test_a_probe_is_due_once_a_warm_up_is_at_the_acceptable_lag(lag: int, due: bool) -> None:
    """A probe is due when the lag of a warm-up is at most the acceptable lag."""
    waiting = Assignment({task(0): "a"}, needs_probe=True)
    assert Probes().is_due(waiting, [lag], (ACCEPTABLE, 600.0), 0.0) is due


def in_racks(before: View, local: Mapping[TaskId, str], role: str) -> View:
    """Return the view with each member in a rack of its name. Each task reads from one given rack."""
    members = tuple(replace(member, rack=member.id) for member in before.members)
    tasks = tuple(
        replace(each, **{f"{role}_traffic": Traffic(1, {local[each.id]: 1})})  # type: ignore[arg-type]
        for each in before.tasks
    )
    return replace(before, members=members, tasks=tasks)


@pytest.mark.parametrize(("non_overlap", "exchanged"), [(1, True), (9, True), (11, False)])
def test_a_move_is_made_for_racks_if_it_saves_more_than_it_costs(non_overlap: int, exchanged: bool) -> None:
    """Reading a task across racks costs 10. Two tasks are exchanged if a move costs less than that."""
    before = in_racks(view("a:0 b:1"), {task(0): "b", task(1): "a"}, "owner")
    settings = AssignSettings(rack_aware_assignment_strategy="min_cost")
    done = assign(before, replace(settings, rack_aware_assignment_non_overlap_cost=non_overlap))
    assert dict(done.target) == {task(0): "b" if exchanged else "a", task(1): "a" if exchanged else "b"}


def test_the_sticky_assignor_follows_racks_with_a_rack_strategy() -> None:
    """With a rack strategy, the sticky assignor exchanges owners that would read across racks."""
    before = in_racks(view("a:0 b:1"), {task(0): "b", task(1): "a"}, "owner")
    sticky = AssignSettings(assignor="sticky", rack_aware_assignment_non_overlap_cost=1)
    assert assign(before, sticky).owners == before.owners
    done = assign(before, replace(sticky, rack_aware_assignment_strategy="min_cost"))
    assert dict(done.owners) == {task(0): "b", task(1): "a"}


def test_a_pointer_of_a_member_that_has_left_is_ignored() -> None:
    """A task whose snapshot pointer was on a member that has left is placed as if there were no pointer."""
    before = view("a:0-3 b:4-5")
    gone = replace(before, pointers={task(0): ("gone",), task(1): ("gone", "b")})
    left = replace(before, pointers={task(1): ("b",)})
    assert assign(gone, AssignSettings()).target == assign(left, AssignSettings()).target


@pytest.mark.parametrize(("strategy", "kept"), [("none", "bca"), ("min_cost", "cab")])
def test_standbys_follow_racks_only_with_a_rack_strategy(strategy: Any, kept: str) -> None:
    """Standbys move to the racks that their tasks read from only with a rack strategy."""
    before = view("a:0-1 b:2-3 c:4-5")
    local = {task(number): "cab"[number // 2] for number in range(6)}
    present = {task(number): ("bca"[number // 2],) for number in range(6)}
    racked = in_racks(replace(before, standbys=present), local, "standby")
    racked = replace(racked, lags={each: {**held, present[each][0]: 0} for each, held in before.lags.items()})
    done = settled(racked, AssignSettings(num_standbys=1, rack_aware_assignment_strategy=strategy))
    assert {each.key_group: members for each, members in done.standbys.items()} == {
        number: (kept[number // 2],) for number in range(6)
    }
    assert done.owners == before.owners


@pytest.mark.parametrize(("most", "moved"), [(1, 1), (2, 2), (None, 4)])
def test_moves_at_once_limits_the_moves_of_each_assignment(most: int | None, moved: int) -> None:
    """All four tasks are ready to move. `moves_at_once` limits the moves per assignment, and all move in the end."""
    before = warm_on(view("a:0-7 b:"), "b")
    settings = AssignSettings(moves_at_once=most, max_warmup_replicas=8)
    assert len(owner_moves(assign(before, settings))) == moved
    assert sorted(Counter(settled(before, settings).owners.values()).items()) == [("a", 4), ("b", 4)]


@pytest.mark.parametrize(("allowed", "moved"), [("all_owned", {8}), ("always", {0, 1, 2, 8})])
def test_tasks_without_an_owner_block_other_moves_by_default(allowed: Any, moved: set[int]) -> None:
    """By default only the task without an owner is placed. With `always` the others are balanced too."""
    before = warm_on(view("a:0-7 b:", total=9), "b")
    moves = owner_moves(assign(before, AssignSettings(allow_rebalance=allowed)))
    assert 8 in moves
    assert len(moves) == len(moved)


def two_stores(layout: Mapping[str, str]) -> View:
    """Return a view of members a and b. Each letter of a layout is the owner of the next task of a store."""
    owners = {task(n, store): owner for store, held in layout.items() for n, owner in enumerate(held)}
    tasks = tuple(Task(each, size=WHOLE) for each in owners)
    return View((Member("a"), Member("b")), tasks, owners, lags={each: {owner: 0} for each, owner in owners.items()})


@pytest.mark.parametrize(("weight", "moves"), [(0.55, 2), (0.0, 0)])
def test_stores_are_spread_unless_store_balance_is_off(weight: float, moves: int) -> None:
    """Each of two members owns all tasks of one store. Tasks move only if `store_balance` is above 0."""
    before = two_stores({"x": "aa", "y": "bb"})
    done = assign(before, AssignSettings(store_balance=weight))
    assert sum(done.target[each] != owner for each, owner in before.owners.items()) == moves


@pytest.mark.parametrize(("weight", "moves"), [(0.45, 2), (0.0, 0)])
def test_members_are_balanced_unless_instance_balance_is_off(weight: float, moves: int) -> None:
    """One member owns all four stores of one task each. Tasks move only if `instance_balance` is above 0."""
    before = two_stores(dict.fromkeys("wxyz", "a"))
    done = assign(before, AssignSettings(instance_balance=weight))
    assert sum(done.target[each] != owner for each, owner in before.owners.items()) == moves


def test_a_standby_falls_behind_only_if_its_lag_grows_ten_times_in_a_row() -> None:
    """A standby falls behind if its lag grows in ten checks in a row. One check without growth restarts the count."""
    copy = (task(0), "b")
    grows = Patience()
    assert [bool(grows.count_growing_lags({copy: lag})) for lag in range(12)] == [False] * 10 + [True] * 2
    for pause in (4, 5):
        stays = Patience()
        lags = [0, 1, 2, 3, 4, 5, pause, *range(6, 15)]
        assert not any(stays.count_growing_lags({copy: lag}) for lag in lags)
        assert stays.count_growing_lags({copy: 15})
