"""Pins, drains, filters, user costs and ordered goals, under the built-in and custom assignors."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riffle_spark.assign.assignor import assign, assign_settings
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, Member, Task, Traffic, View
from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from tests.kit.assign_views import WHOLE, caught_up, settled, task, view

SETTINGS = AssignSettings(max_warmup_replicas=100)


def stubborn(before: View, _: AssignSettings) -> Assignment:
    """Keep all owners, even drained ones. Give other tasks to the first member."""
    first = min(member.id for member in before.members)
    return Assignment({each.id: before.owners.get(each.id, first) for each in before.tasks})


def wrapped(before: View, settings: AssignSettings) -> Assignment:
    """Return the default assignment, without balancing by weights."""
    return assign(before, replace(settings, assignor="high_availability", balance_band=1.0))


def deaf(before: View, settings: AssignSettings) -> Assignment:
    """Return the default assignment as if no member was drained."""
    return assign(before, replace(settings, assignor="high_availability", exclude=()))


@pytest.mark.parametrize("assignor", ["high_availability", "sticky", "hash", stubborn, wrapped, deaf])
@given(seed=st.integers(0, 2**32))
def test_every_assignor_obeys_pins_and_drains_in_the_end(assignor: str | Assignor, seed: int) -> None:
    """Property: under every assignor, pinned tasks end on their pinned members, and drained members have no tasks."""
    chance = random.Random(seed)
    names = [f"m{n}" for n in range(chance.randint(2, 4))]
    tasks = tuple(Task(task(n), size=WHOLE) for n in range(chance.randint(1, 12)))
    owners = {each.id: chance.choice(names) for each in tasks if chance.random() < 0.9}
    drained = frozenset(chance.sample(names, chance.randint(0, len(names) - 1)))
    left = [name for name in names if name not in drained]
    pins = {each.id: chance.choice(left) for each in tasks if chance.random() < 0.3}
    before = View(
        tuple(Member(name) for name in names), tasks, owners, pins=pins, drained=drained,
        lags={of: {owner: 0} for of, owner in owners.items()},
    )  # fmt: skip
    exclude = tuple(("id", name) for name in sorted(drained))
    standbys = chance.randint(0, 1)
    done = settled(before, replace(SETTINGS, assignor=assignor, exclude=exclude, num_standbys=standbys))
    assert {each: done.owners[each] for each in pins} == pins
    assert not drained & set(done.owners.values())
    assert not drained & {member for holders in done.standbys.values() for member in holders}


def test_warm_ups_of_drains_and_of_a_custom_assignor_share_one_limit() -> None:
    """The warm-ups of a custom assignor and those of drains share one limit. A drain waits until the custom warm-ups
    complete.
    """
    before = view("a:0-1 b:2 c:")

    def warming(seen: View, _: AssignSettings) -> Assignment:
        return Assignment(dict(seen.owners), warmups={task(0): ("c",)}, target={**seen.owners, task(0): "c"})

    settings = replace(SETTINGS, assignor=warming, exclude=(("id", "b"),), max_warmup_replicas=1)
    done = assign(before, settings)
    assert (dict(done.warmups), done.owners[task(2)], done.needs_probe) == ({task(0): ("c",)}, "b", True)
    assert sum(map(len, assign(before, replace(settings, max_warmup_replicas=2)).warmups.values())) == 2


def test_no_probe_is_scheduled_for_tasks_wanted_on_a_drained_member() -> None:
    """If an assignor wants tasks on a drained member, no probe is scheduled for them."""
    before = view("a:0-3 b:4-7 c:")
    done = settled(before, replace(SETTINGS, assignor=deaf, exclude=(("id", "c"),)))
    assert done.owners == before.owners
    assert done.warnings


def test_the_sticky_assignor_balances_around_pinned_tasks() -> None:
    """With the sticky assignor, a member with pinned tasks gets fewer other tasks."""
    pins = {task(n): "b" for n in range(3)}
    done = assign(replace(view("a:0-8 b: c:"), pins=pins), replace(SETTINGS, assignor="sticky"))
    assert Counter(done.owners.values()) == {"a": 3, "b": 3, "c": 3}
    assert {done.owners[each] for each in pins} == {"b"}


def test_moves_at_once_does_not_limit_a_drain() -> None:
    """`moves_at_once` limits voluntary moves only. A drain starts all its moves at once."""
    small = view("a:0-5 b:6-8 c:")
    small = replace(small, tasks=tuple(replace(each, size=5) for each in small.tasks))
    limited = replace(SETTINGS, moves_at_once=1)
    assert sum(move.role == "owner" for move in assign(small, limited).moves) == 1
    done = assign(small, replace(limited, exclude=(("id", "b"),)))
    assert "b" not in done.owners.values()


@pytest.mark.parametrize("filters", [{"include": (("disk", "ssd"),)}, {"exclude": (("id", "a"), ("id", "b"))}])
def test_filters_that_exclude_every_member_are_ignored_with_a_warning(filters: dict[str, object]) -> None:
    """If filters exclude every member, a warning names the filter, and every task still has an owner."""
    done = assign(view("a:0-1 b:2-3"), replace(SETTINGS, **filters))  # type: ignore[arg-type]
    assert Counter(done.owners.values()) == {"a": 2, "b": 2}
    assert f"[RIFFLE-0777] {next(iter(filters))} = " in done.warnings[0]


def test_a_warning_counts_standbys_that_forced_awareness_leaves_unassigned() -> None:
    """Standbys stay unassigned while a forced tag value has no member, and a warning counts them. Another warning names
    a tag that no member has.
    """
    members = tuple(Member(f"m{n}", tags={"zone": "z0"}) for n in range(3))
    before = View(members, tuple(Task(task(n), size=WHOLE) for n in range(6)))
    settings = replace(SETTINGS, num_standbys=1, forced_awareness={"zone": ("z0", "z1")})
    assert "[RIFFLE-0780] 6 standbys" in assign(before, settings).warnings[0]
    assert "zone = z1" in assign(before, settings).warnings[0]
    nobodys = replace(settings, forced_awareness={"room": ("r0", "r1")})
    assert assign(before, nobodys).standbys
    assert "RIFFLE-0778" in assign(before, nobodys).warnings[0]


def cost_of(answer: Callable[[Task, Member], object]) -> AssignSettings:
    """Return settings with a user cost function."""
    return replace(SETTINGS, user_cost=answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [lambda *_: 1 // 0, lambda *_: 0.5, lambda *_: "dear"])
def test_a_failing_user_cost_is_ignored_with_a_warning(answer: Callable[..., object]) -> None:
    """If a user cost function fails, owners are as without it, and a warning has the error."""
    before = view("a:0-3 b:")
    done = assign(before, cost_of(answer))
    assert done.warmups == assign(before, SETTINGS).warmups
    assert "RIFFLE-0772" in done.warnings[0]


def test_a_task_forbidden_on_every_member_is_still_placed_with_a_warning() -> None:
    """A task that the user cost forbids on every member still gets an owner, and a warning names it. The cost applies
    to all other tasks.
    """
    done = settled(
        view("a:0-1 b:2-3"), cost_of(lambda each, member: None if each.id.key_group == 0 or member.id == "b" else 0)
    )
    assert {done.owners[task(n)] for n in range(1, 4)} == {"a"}
    assert "[RIFFLE-0773]" in done.warnings[0]


def tenants_apart(member: Member, tasks: tuple[Task, ...]) -> int:
    """Return by how many tasks a member exceeds its limit of two tasks of the first tenant."""
    assert member.id
    return max(sum(each.id.key_group < 4 for each in tasks) - 2, 0)


def test_a_user_goal_is_met_without_breaking_earlier_goals() -> None:
    """A user goal after balance exchanges tasks and keeps the balance. The moves name the goal, and a goal that is met
    causes no more moves.
    """
    before = view("a:0-5 b:6-11 c:12-17")
    settings = replace(SETTINGS, goals=("balance", tenants_apart))
    first = assign(before, settings)
    goals = {move.goal for move in first.moves}
    done = settled(before, settings)
    assert Counter(done.owners.values()) == {"a": 6, "b": 6, "c": 6}
    assert max(Counter(done.owners[task(n)] for n in range(4)).values()) == 2
    assert "tenants_apart" in goals
    assert sum(done.owners[each] != owner for each, owner in before.owners.items()) == 4, "two exchanges"
    assert not assign(caught_up(before, done), settings).moves


def test_an_earlier_goal_takes_priority_over_a_later_one() -> None:
    """If the rack goal is first, owners are local and unbalanced. If balance is first, owners are balanced."""
    tasks = tuple(Task(task(n), size=WHOLE, owner_traffic=Traffic(1, {"r1": 1})) for n in range(6))
    owners = {each.id: "ab"[n % 2] for n, each in enumerate(tasks)}
    lags = {of: {owner: 0} for of, owner in owners.items()}
    before = View((Member("a", rack="r1"), Member("b", rack="r2")), tasks, owners, lags=lags)
    racks = replace(SETTINGS, rack_aware_assignment_strategy="min_cost")
    cheap = settled(before, replace(racks, goals=("rack", "balance")))
    assert Counter(cheap.owners.values()) == {"a": 6}
    level = settled(before, replace(racks, goals=("balance", "rack")))
    assert Counter(level.owners.values()) == {"a": 3, "b": 3}


def hopeless(_: Member, tasks: tuple[Task, ...]) -> int:
    """Return one violation for each task."""
    return len(tasks)


def test_a_hard_goal_that_cannot_be_met_stops_every_voluntary_move() -> None:
    """A soft goal that cannot be met becomes a warning, and moves continue. A hard goal also stops every voluntary
    move.
    """
    before = view("a:0-3 b:")
    soft = assign(before, replace(SETTINGS, goals=("balance", hopeless)))
    assert soft.warmups
    assert "[RIFFLE-0783] The goal hopeless is missed by 4" in soft.warnings[0]
    hard = assign(before, replace(SETTINGS, goals=("balance", hopeless), hard_goals=("hopeless",)))
    assert (hard.owners, hard.warmups) == (before.owners, {})
    assert "[RIFFLE-0782] The hard goal hopeless" in hard.warnings[0]
    lost = replace(before, members=before.members[1:], owners={}, lags={})
    assert set(assign(lost, replace(SETTINGS, goals=(hopeless,), hard_goals=("hopeless",))).owners.values()) == {"b"}


def test_a_failing_goal_is_ignored_with_a_warning() -> None:
    """If a goal fails, owners are as without it, and a warning has the error."""
    done = assign(view("a:0-3 b:"), replace(SETTINGS, goals=(lambda *_: 1 // 0,)))
    assert done.warmups == assign(view("a:0-3 b:"), SETTINGS).warmups
    assert "ZeroDivisionError" in done.warnings[0]


@pytest.mark.parametrize("name", ["stickie", "no.such"])
def test_an_unknown_assignor_is_refused(name: str) -> None:
    """A query with an unknown assignor does not start."""
    with pytest.raises(ConfigError, match="RIFFLE-0109"):
        assign_settings(Settings(assignor=name))


@pytest.mark.parametrize(
    ("goals", "hard_goals", "near"),
    [(("ballance",), (), "'balance'"), (("balance", "rack"), ("racks",), "'rack'"),
     ((), ("balance",), "RIFFLE-0480")],
)  # fmt: skip
def test_an_unknown_goal_is_refused_with_the_nearest_name(
    goals: tuple[str, ...], hard_goals: tuple[str, ...], near: str
) -> None:
    """An unknown goal is an error that suggests the nearest name."""
    with pytest.raises(ConfigError, match=near):
        assign(view("a:0-3 b:"), replace(SETTINGS, goals=goals, hard_goals=hard_goals))


@given(seed=st.integers(0, 2**32))
@example(seed=0)
def test_the_target_of_goals_stays_the_same_until_it_is_reached(seed: int) -> None:
    """Property: with few warm-ups at once, the target stays the same until it is reached."""
    chance = random.Random(seed)
    members = tuple(Member(f"m{n}", rack=f"r{n % 2}") for n in range(chance.randint(2, 5)))
    read = Traffic(1, {"r0": 1})
    tasks = tuple(Task(task(n), size=WHOLE, owner_traffic=read) for n in range(chance.randint(4, 12)))
    owners = {each.id: chance.choice(members).id for each in tasks}
    before = View(members, tasks, owners, lags={of: {owner: 0} for of, owner in owners.items()})
    goals = chance.choice([(tenants_apart,), ("balance", tenants_apart), ("rack", tenants_apart, "balance")])
    settings = AssignSettings(max_warmup_replicas=3, rack_aware_assignment_strategy="min_cost", goals=goals)
    first = assign(before, settings)
    done = settled(before, settings)
    assert done.owners == first.target


def test_nothing_warms_up_if_moves_at_once_is_zero() -> None:
    """With `moves_at_once = 0` nothing warms up, except for a drain."""
    before = view("a:0-7 b:")
    before = replace(before, tasks=tuple(replace(each, size=WHOLE) for each in before.tasks))
    none = replace(SETTINGS, moves_at_once=0)
    done = assign(before, none)
    assert (done.warmups, done.needs_probe) == ({}, False)
    assert assign(before, replace(none, exclude=(("id", "a"),))).warmups


def test_unknown_tags_and_unplaced_standbys_are_warnings() -> None:
    """A warning names each setting with a tag that no member has. If there are too few members for all standbys,
    another warning says so.
    """
    before = view("a:0-1 b:2-3")
    before = replace(before, tasks=tuple(replace(each, size=WHOLE) for each in before.tasks))
    odd = replace(SETTINGS, exclude=(("rak", "c"),), rack_aware_assignment_tags=("zne",), num_standbys=2)
    warning_text = "\n".join(assign(before, odd).warnings)
    assert "[RIFFLE-0778] exclude has no effect for the tag rak, because no member has it." in warning_text
    assert "rack_aware_assignment_tags has no effect for the tag zne" in warning_text
    assert "[RIFFLE-0779] num_standbys = 2" in warning_text
    assert (
        assign(before, replace(odd, exclude=(("id", "z"),), rack_aware_assignment_tags=(), num_standbys=1)).warnings
        == ()
    )
