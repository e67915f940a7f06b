"""Properties of every assignment: valid, balanced, sticky, convergent, stable, deterministic and cheapest."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.counts import Bounds, Demand, balance_counts
from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.explain import spread_per_slot
from riffle_spark.assign.model import Assignment, AssignSettings, Member, Task, TaskId, Traffic, View
from riffle_spark.assign.racks import rack_cost
from riffle_spark.assign.validity import find_violations
from riffle_spark.simulate.group import Group, Phase
from riffle_spark.simulate.group import _settle_group as settle  # private: one event at a time
from riffle_spark.simulate.scenario import Event
from tests.kit.assign_views import WHOLE, caught_up, task, view
from tests.kit.assign_views import settled as settled_view
from tests.kit.folders import CHECKOUT

RACKS = ("r1", "r2", "r3")


@st.composite
def groups(draw: st.DrawFn, *, uniform: bool = True, stores: int = 3) -> Group:
    """Return a group with random owners, some of them missing, and random copies."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    members = {
        f"m{n}": Member(f"m{n}", 1 if uniform else chance.randint(1, 4), chance.choice(RACKS))
        for n in range(draw(st.integers(1, 7)))
    }
    tasks = tuple(
        Task(
            task(n, f"s{n % draw(st.integers(1, stores))}"),
            size=WHOLE,
            owner_traffic=Traffic(1, dict.fromkeys(chance.sample(RACKS, 2), 1)),
            standby_traffic=Traffic(1, dict.fromkeys(chance.sample(RACKS, 2), 1)),
        )
        for n in range(draw(st.integers(1, 24)))
    )
    owners = {each.id: chance.choice(sorted(members)) for each in tasks if chance.random() < 0.9}
    lags: dict[str, dict[TaskId, int | None]] = {name: {} for name in members}
    for owned, owner in owners.items():
        lags[owner][owned] = 0
    for each in tasks:
        for name in sorted(members):
            if chance.random() < 0.15:
                lags[name].setdefault(each.id, chance.choice([0, 5_000, 40_000, None]))
    return Group(tasks, members, owners, lags=lags)


def configured(strategy: str = "none", **changes: int | str) -> AssignSettings:
    """Return settings with small bounds."""
    return replace(AssignSettings(rack_aware_assignment_strategy=strategy), **changes)  # type: ignore[arg-type]


def settled(group: Group, settings: AssignSettings) -> Phase:
    """Assign until nothing moves. Note the history, which Hypothesis prints if the test fails."""
    phase = settle(group, None, settings, True, assign)
    note("replay: " + repr(group.view()))
    for number, each in enumerate(phase.rounds, 1):
        note(
            f"round {number}: " + "; ".join(f"{m.task} {m.role} {m.source}->{m.target}" for m in each.assignment.moves)
        )
    return phase


@pytest.mark.parametrize("strategy", ["none", "min_cost", "balance_subtopology"])
@given(group=groups(), standbys=st.integers(0, 2), warmups=st.integers(1, 4))
def test_every_group_converges_to_a_valid_balanced_stable_assignment(
    strategy: str, group: Group, standbys: int, warmups: int
) -> None:
    """Each round is valid and each new owner is caught up. At the end, owners are balanced and nothing moves."""
    settings = configured(strategy, num_standbys=standbys, max_warmup_replicas=warmups)
    phase = settled(group, settings)
    assert phase.converged
    assert phase.stable
    for each in phase.rounds:
        assert not find_violations(each.before.view(), each.assignment, settings)
    last = phase.rounds[-1].assignment
    assert spread_per_slot(group.view(), last.owners.values()) <= 1


@given(group=groups(), standbys=st.integers(1, 2), warmups=st.integers(1, 2), data=st.data())
def test_pointer_standbys_converge_without_warm_ups(
    group: Group, standbys: int, warmups: int, data: st.DataObject
) -> None:
    """If standbys are snapshot pointers, no standby warms up, whatever copies exist at the start. A task can move to a
    member that has a pointer.
    """
    settings = configured(num_standbys=standbys, max_warmup_replicas=warmups, standby_mode="snapshot_pointer")
    before = group.view()
    drawn_lags = {m.id: data.draw(st.sampled_from([0, 0, 10, None]), m.id) for m in before.members}
    extra = {m: lag for m, lag in drawn_lags.items() if lag is not None}
    lags = {each: {**extra, **before.lags.get(each, {})} for each in before.owners}
    drawn = {each: (data.draw(st.sampled_from(before.members)).id,) for each in before.owners}
    present = {
        each: standbys_of_task
        for each, standbys_of_task in drawn.items()
        if before.owners[each] not in standbys_of_task
    }
    before = replace(before, lags=lags, standbys=present)
    for _ in range(4 + 4 * len(before.tasks)):
        done = assign(before, settings)
        assert not find_violations(before, done, settings)
        before = caught_up(before, done, points=True)
        if not done.needs_probe:
            break
    second_assignment = assign(before, settings)
    assert not done.needs_probe
    assert (
        second_assignment.owners,
        second_assignment.standbys,
        second_assignment.warmups,
        second_assignment.moves,
    ) == (done.owners, done.standbys, {}, ())


def test_drains_of_stateless_tasks_leave_room_for_warm_ups() -> None:
    """Tasks without state leave a drained member without a copy. Their moves leave room for the tasks that must warm up
    first.
    """
    members = tuple(Member(name, slots=slots) for name, slots in (("a", 2), ("b", 2), ("c", 2), ("gone", 1)))
    sizes = {task(number, "state"): size for number, size in enumerate([1, 2, 2, 0, 7, 3])}
    sizes |= {task(number, group): 0 for group in ("cache", "query") for number in range(6)}
    now = dict(zip(sizes, "aaacac" + "abbcac", strict=False)) | dict(zip(list(sizes)[12:], "gbbcgc", strict=True))
    owners = {each: {"g": "gone"}.get(member, member) for each, member in now.items()}
    to = dict(zip(sizes, "abbcac" * 3, strict=True))
    lags = {each: {owner: 0} for each, owner in owners.items()}
    for number in (1, 2):
        lags[task(number, "state")]["b"] = 3
    before = View(
        members, tuple(Task(each, size=size) for each, size in sizes.items()), owners, lags=lags, target=to,
        drained=frozenset({"gone"}),
    )  # fmt: skip
    settings = AssignSettings(acceptable_recovery_lag=1, exclude=(("id", "gone"),))
    done = assign(before, settings)
    assert done.warmups == {task(1, "state"): ("b",), task(2, "state"): ("b",)}
    assert done.needs_probe
    assert "gone" not in settled_view(before, settings).owners.values()


@given(group=groups(uniform=False), standbys=st.integers(0, 1))
def test_tasks_per_slot_differ_by_at_most_one_for_unequal_members(group: Group, standbys: int) -> None:
    """With unequal numbers of slots, the owned tasks per slot differ by at most one."""
    phase = settled(group, configured(num_standbys=standbys, max_warmup_replicas=4))
    assert phase.converged
    assert phase.stable
    assert spread_per_slot(group.view(), phase.rounds[-1].assignment.owners.values()) <= 1


@given(group=groups(stores=1))
def test_adding_a_member_moves_tasks_only_to_it(group: Group) -> None:
    """A new member gets tasks, and the existing members exchange none."""
    before = settled(group, configured(max_warmup_replicas=50)).after
    after = settled(
        replace(before, members={**before.members, "new": Member("new", rack="r1")}),
        configured(max_warmup_replicas=50),
    ).after
    assert {owner for each, owner in after.owners.items() if owner != before.owners[each]} <= {"new"}


@given(group=groups(stores=1), standbys=st.integers(0, 1))
def test_removing_a_member_moves_only_its_tasks(group: Group, standbys: int) -> None:
    """Only the tasks of the removed member get another owner. A standby in sync may also take over a task, if that
    completes the balance.
    """
    settings = configured(max_warmup_replicas=50, num_standbys=standbys)
    before = settled(replace(group, lags={m: {} for m in group.members}), settings).after
    removed_member = sorted(before.members)[0]
    if len(before.members) == 1:
        return
    view = before.apply_event(Event(drop=(removed_member,))).view()
    first = assign(view, settings)
    moved = {each for each, owner in first.owners.items() if owner != before.owners[each]}
    lost = {each for each, owner in before.owners.items() if owner == removed_member}
    assert lost <= moved
    assert all(first.owners[each] in view.standbys.get(each, ()) for each in moved - lost)
    assert moved == lost or first.owners == first.target


@given(group=groups(), standbys=st.integers(0, 1))
def test_nothing_moves_in_a_balanced_group(group: Group, standbys: int) -> None:
    """A balanced group stays unchanged, even if the previous target is unknown."""
    settings = configured(max_warmup_replicas=50, num_standbys=standbys)
    after = settled(group, settings).after
    second_assignment = assign(replace(after.view(), target={}), settings)
    assert not second_assignment.moves
    assert not second_assignment.needs_probe


@given(group=groups(), seed=st.integers(0, 1000))
def test_the_order_of_the_input_does_not_matter(group: Group, seed: int) -> None:
    """Members, tasks and mappings in another order give the same assignment."""
    settings = configured("min_cost", num_standbys=1)
    before = group.view()
    shuffled = replace(
        before,
        members=_shuffled(before.members, seed),
        tasks=_shuffled(before.tasks, seed),
        owners=dict(_shuffled(tuple(before.owners.items()), seed)),
        lags={
            each: dict(_shuffled(tuple(lag_by_member.items()), seed))
            for each, lag_by_member in _shuffled(tuple(before.lags.items()), seed)
        },
    )
    assert repr(assign(before, settings)) == repr(assign(shuffled, settings))


def _shuffled(values: tuple, seed: int) -> tuple:  # type: ignore[type-arg]
    mixed = list(values)
    random.Random(seed).shuffle(mixed)
    return tuple(mixed)


SCRIPT = """
from riffle_spark.simulate.scenario import Event
from tests.kit.assign_views import view
from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings
print(assign(view("a:0-9 b:10-12 c:", group="counts"), AssignSettings(num_standbys=1)))
"""


def test_two_hash_seeds_give_the_same_bytes() -> None:
    """Python's hash seed does not change an assignment."""
    paths = os.pathsep.join(path for path in (str(CHECKOUT), *sys.path) if path)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "4711")
    }
    assert len(outputs) == 1
    assert next(iter(outputs))


def _cheapest(group: Group, settings: AssignSettings) -> int:
    """Return the lowest cost of all balanced placements."""
    names = sorted(group.members)
    tasks = [each.id for each in group.tasks]
    low, high = fair_range(len(tasks), [1] * len(names))
    best = None
    for places in itertools.product(names, repeat=len(tasks)):
        counts = [places.count(name) for name in names]
        if all(least <= count <= most for least, count, most in zip(low, counts, high, strict=True)):
            cost = _cost(group, dict(zip(tasks, places, strict=True)), settings)
            best = cost if best is None else min(best, cost)
    assert best is not None
    return best


def _cost(group: Group, owners: Mapping[TaskId, str], settings: AssignSettings) -> int:
    moved = sum(group.owners[each] != owners[each] for each in group.owners)
    stay = settings.rack_aware_assignment_non_overlap_cost
    racks = {each.id: group.members[owners[each.id]].rack for each in group.tasks}
    return sum(rack_cost(each.owner_traffic, racks[each.id], settings) for each in group.tasks) + stay * moved


@given(group=groups(stores=1))
def test_the_target_costs_no_more_than_a_brute_force_search_finds(group: Group) -> None:
    """In small groups, no balanced placement is cheaper than the target."""
    names = sorted(group.members)[:3]
    small = Group(
        group.tasks[:6],
        {name: group.members[name] for name in names},
        {each.id: names[n % len(names)] for n, each in enumerate(group.tasks[:6])},
    )
    small = replace(small, lags={m: {each: 0 for each, owner in small.owners.items() if owner == m} for m in names})
    settings = configured("min_cost", max_warmup_replicas=50)
    target = assign(small.view(), settings).target
    assert _cost(small, target, settings) == _cheapest(small, settings)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32))
def test_counts_are_balanced_with_the_fewest_moves(rows: int, members: int, seed: int) -> None:
    """The counts are within their ranges, and no other counts within them keep more tasks at their owners."""
    chance = np.random.default_rng(seed)
    owned = chance.integers(0, 3, (rows, members))
    ranges = [fair_range(int(total), [1] * members) for total in owned.sum(axis=1)]
    low, high = np.array([each[0] for each in ranges]), np.array([each[1] for each in ranges])
    least, most = fair_range(int(owned.sum()), [1] * members)
    zero = np.zeros_like(owned)
    balanced_counts = balance_counts(
        Demand(
            owned, zero, zero, owned.sum(axis=1) * 0, np.ones_like(owned, bool),
            Bounds(low, high, np.array(least), np.array(most)), owned.sum(axis=0) * 0,
            np.ones(members, np.int64), 55, 4500,
        )
    )  # fmt: skip
    kept = int(np.minimum(balanced_counts, owned).sum())
    best = 0
    for cells in itertools.product(*(range(a, b + 1) for a, b in zip(low.ravel(), high.ravel(), strict=True))):
        other = np.array(cells).reshape(rows, members)
        total = other.sum(axis=0)
        if (other.sum(axis=1) == owned.sum(axis=1)).all() and (total >= least).all() and (total <= most).all():
            best = max(best, int(np.minimum(other, owned).sum()))
    assert kept == best


def test_a_view_without_tasks_gets_an_empty_assignment() -> None:
    """A view without tasks gets an empty assignment."""
    assert assign(view("a:"), AssignSettings()) == Assignment({}, target={})


def test_the_assignor_does_not_change_its_view() -> None:
    """The assignor does not change its input."""
    given_view = view("a:0-7 b: c:")
    before = repr(given_view)
    assign(given_view, AssignSettings(num_standbys=1))
    assert repr(given_view) == before
