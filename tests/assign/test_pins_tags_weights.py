"""Pins, drains, tags, weights, memory limits, rebalance switches and the other assignors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, Task, TaskId, Traffic, View
from riffle_spark.assign.validity import find_violations
from riffle_spark.errors import ConfigError
from tests.kit.assign_views import WHOLE, caught_up, settled, task, view

SETTINGS = AssignSettings(max_warmup_replicas=100)


def test_an_assignment_without_members_is_an_error_with_a_remedy() -> None:
    """Without a member, the assignor raises RIFFLE-0107."""
    with pytest.raises(ConfigError, match="RIFFLE-0107"):
        assign(replace(view("a:0-3"), members=()), SETTINGS)


def test_an_owner_keeps_its_task_until_the_new_member_is_warm() -> None:
    """A new member warms up before it owns a task."""
    first = assign(view("a:0-3 b:"), SETTINGS)
    assert set(first.owners.values()) == {"a"}
    assert sorted(len(members) for members in first.warmups.values()) == [1, 1]
    assert first.needs_probe
    assert all(move.goal == "balance" for move in first.moves)
    assert Counter(settled(view("a:0-3 b:"), SETTINGS).owners.values()) == {"a": 2, "b": 2}


def test_an_empty_member_is_caught_up_on_a_small_task() -> None:
    """A new member owns a task at once if the whole task is smaller than the acceptable lag."""
    small = view("a:0-3 b:")
    small = replace(small, tasks=tuple(replace(each, size=5) for each in small.tasks))
    assert Counter(assign(small, SETTINGS).owners.values()) == {"a": 2, "b": 2}


def test_owners_and_standbys_are_in_different_zones_if_possible() -> None:
    """The owner and the standbys of a task are in different zones while enough zones have members (KIP-708)."""
    members = tuple(Member(f"m{n}", tags={"zone": f"z{n % 3}"}) for n in range(6))
    before = View(members, tuple(Task(task(n), size=WHOLE) for n in range(24)))
    settings = replace(SETTINGS, num_standbys=2, rack_aware_assignment_tags=("zone",))
    done = settled(before, settings)
    zones = {member.id: member.tags["zone"] for member in members}
    for each, owner in done.owners.items():
        assert len({zones[m] for m in (owner, *done.standbys[each])}) == 3


def test_forced_awareness_reserves_standbys_for_an_absent_zone() -> None:
    """If only one of two forced zones has members, no standby is placed in it."""
    members = tuple(Member(f"m{n}", tags={"zone": "z0"}) for n in range(3))
    before = View(members, tuple(Task(task(n), size=WHOLE) for n in range(6)))
    settings = replace(SETTINGS, num_standbys=1, forced_awareness={"zone": ("z0", "z1")})
    assert not assign(before, settings).standbys


def test_forced_awareness_prefers_an_empty_zone_to_a_warm_copy() -> None:
    """With forced values, a standby is created in the zone without a copy, even if a warm copy exists elsewhere."""
    members = tuple(Member(name, tags={"zone": zone}) for name, zone in (("a", "z0"), ("b", "z0"), ("c", "z1")))
    before = replace(view("a:0 b: c:"), members=members, standbys={task(0): ("b",)})
    before = replace(before, lags={task(0): {"a": 0, "b": 0}}, pins={task(0): "a"})
    settings = replace(SETTINGS, num_standbys=1)
    assert assign(before, settings).standbys == {task(0): ("b",)}
    forced = replace(settings, forced_awareness={"zone": ("z0", "z1")})
    assert assign(before, forced).standbys == {task(0): ("c",)}


@pytest.mark.parametrize("enabled", ["none", "standbys"])
def test_rebalancing_can_be_switched_off(enabled: str) -> None:
    """Owners stay where they are, but a task without an owner still gets one."""
    settings = replace(SETTINGS, rebalance_enable=enabled)  # type: ignore[arg-type]
    done = assign(view("a:0-6 b:", total=8), settings)
    assert [done.owners[task(n)] for n in range(7)] == ["a"] * 7
    assert done.owners[task(7)] in ("a", "b")


def test_nothing_is_rebalanced_while_a_task_has_no_owner() -> None:
    """By default, tasks without an owner are placed before others are rebalanced. With `always` both happen at once."""
    lost = view("a:0-6 b:", total=8)
    first = assign(lost, SETTINGS)
    assert not first.warmups
    assert first.needs_probe
    assert assign(lost, replace(SETTINGS, allow_rebalance="always")).warmups


def test_moves_at_once_limits_voluntary_moves_only() -> None:
    """`moves_at_once = 1` allows one voluntary move per assignment. All tasks without an owner are still placed."""
    small = view("a:0-7 b:")
    small = replace(small, tasks=tuple(replace(each, size=5) for each in small.tasks))
    limited = replace(SETTINGS, moves_at_once=1)
    assert Counter(assign(small, limited).owners.values()) == {"a": 7, "b": 1}
    assert len(assign(view("a: b:", total=8), limited).owners) == 8


def test_tasks_move_only_if_weights_exceed_the_balance_band() -> None:
    """Tasks move only if the weights exceed the balance band. Afterwards the work is within the band."""
    before = view("a:0-3 b:4-7")

    def weighed(heavy: int) -> View:
        weights = [heavy if n < 2 else 10 for n in range(8)]
        return replace(before, tasks=tuple(replace(each, weight=weights[n]) for n, each in enumerate(before.tasks)))

    assert not assign(weighed(12), SETTINGS).moves
    done = settled(weighed(30), SETTINGS)
    work = Counter[str]()
    for number in range(8):
        work[done.owners[task(number)]] += 30 if number < 2 else 10
    assert max(work.values()) <= 1.2 * 60


@pytest.mark.parametrize("strategy", ["min_cost", "balance_subtopology"])
@pytest.mark.parametrize(("slots", "excluded"), [(1, ()), (0, ()), (1, (("id", "b"),))])
def test_with_racks_a_pin_holds(slots: int, excluded: tuple[tuple[str, str], ...], strategy: Any) -> None:
    """With racks, a task moves to its pin far from its data, even if that member is excluded or has no slots."""
    before = view("a:0-3 b: c:4-7")
    members = tuple(replace(each, rack="r2" if each.id == "b" else "r1") for each in before.members)
    members = tuple(replace(each, slots=slots) if each.id == "b" else each for each in members)
    tasks = tuple(replace(each, owner_traffic=Traffic(1, {"r1": 1})) for each in before.tasks)
    pinned = replace(before, members=members, tasks=tasks, pins={task(0): "b"})
    done = settled(pinned, replace(SETTINGS, rack_aware_assignment_strategy=strategy, exclude=excluded))
    assert done.owners[task(0)] == "b"
    assert {done.owners[task(n)] for n in range(1, 8)} >= {"a", "c"}


@pytest.mark.parametrize("lost", [(0,), (3,), (0, 2), (1, 3)])
def test_with_racks_tasks_of_lost_owners_move_last(lost: tuple[int, ...]) -> None:
    """If moves cost the same, the assignor moves tasks whose owner is alive. So no task moves twice."""
    before = view("a:0-3 c:")
    members = tuple(replace(each, rack="r1" if each.id == "a" else "r2") for each in before.members)
    traffic = {"r1": 1, "r2": 1}
    tasks = (*(replace(each, owner_traffic=Traffic(1, traffic)) for each in before.tasks), Task(task(4), size=5))
    tasks = (*tasks[:4], replace(tasks[4], owner_traffic=Traffic(1, {"r2": 1})))
    owners = {each: owner for each, owner in before.owners.items() if each.key_group not in lost}
    taken_over = replace(before, members=members, tasks=tasks, owners=owners)
    done = assign(taken_over, replace(SETTINGS, rack_aware_assignment_strategy="min_cost", allow_rebalance="always"))
    moved = [each.key_group for each, member in done.target.items() if member == "c" and each.key_group != 4]
    assert len(moved) in (1, 2)
    assert not set(moved) & set(lost)


@given(
    weights=st.lists(st.integers(1, 30), min_size=16, max_size=16),
    prior_owners=st.lists(st.sampled_from(["r1", "r2"]), min_size=16, max_size=16),
    strategy=st.sampled_from(["min_cost", "balance_subtopology"]),
)
def test_racks_and_measured_weights_apply_together(weights: list[int], prior_owners: list[str], strategy: Any) -> None:
    """With racks, work is nearly as balanced as without them, less is read across racks, and assignments converge."""
    before = view("a:0-3 b:4-7 c:8-11 d:12-15")
    members = tuple(replace(each, rack="r1" if each.id in "ab" else "r2") for each in before.members)
    tasks = tuple(
        replace(
            each,
            weight=weights[n],
            owner_traffic=Traffic(1000 * weights[n], {prior_owners[n]: 1000 * weights[n]}, 1000),
        )
        for n, each in enumerate(before.tasks)
    )
    before = replace(before, members=members, tasks=tasks)
    racked = replace(SETTINGS, rack_aware_assignment_strategy=strategy)
    plain, done = settled(before, SETTINGS), settled(before, racked)

    def most(assignment: Assignment) -> int:
        work = Counter[str]()
        for each in tasks:
            work[assignment.owners[each.id]] += each.weight or 0
        return max(work.values())

    assert most(done) <= max(1.2 * sum(weights) / 4, most(plain)) + max(weights) / 2
    for _ in range(5):
        before = caught_up(before, done)
        done = settled(before, racked)
    assert not assign(caught_up(before, done), racked).moves

    def read(assignment: Assignment) -> int:
        racks = {member.id: member.rack for member in members}
        return sum(each.owner_traffic.parts_read_across(racks[assignment.owners[each.id]]) for each in tasks)

    assert read(done) <= 1.1 * read(plain) + 1000 * max(weights)


@given(data=st.data(), standbys=st.integers(0, 2), strategy=st.sampled_from(["none", "min_cost"]))
def test_quarantined_members_end_without_a_copy(data: st.DataObject, standbys: int, strategy: Any) -> None:
    """A quarantined member ends without owned tasks and standbys of the tasks that it is quarantined for."""
    before = view("a:0-3 b:4-7 c:8-9 d:10-11", total=14)
    members = tuple(replace(each, rack="r1" if each.id in "ab" else "r2") for each in before.members)
    traffic = Traffic(1, {"r1": 1})
    tasks = tuple(
        replace(each, owner_traffic=traffic, standby_traffic=replace(traffic, later=True)) for each in before.tasks
    )
    quarantined = {
        each.id: tuple(data.draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True)))
        for each in before.tasks if data.draw(st.booleans())
    }  # fmt: skip
    before = replace(before, members=members, tasks=tasks, quarantined=quarantined)
    settings = replace(SETTINGS, num_standbys=standbys, rack_aware_assignment_strategy=strategy)
    done = settled(before, settings)
    for each, avoided in quarantined.items():
        assert not {done.owners[each], *done.standbys.get(each, ())} & {*avoided}


def test_the_memory_limit_of_a_member_is_obeyed_or_warned_about() -> None:
    """A member gets only as many tasks as fit in its memory. If they do not fit anywhere, a warning says so."""
    members = (Member("a", memory_bytes=200), Member("b", memory_bytes=1000))
    tasks = tuple(Task(task(n), size=WHOLE, memory_bytes=100) for n in range(8))
    done = assign(View(members, tasks), SETTINGS)
    assert Counter(done.owners.values())["a"] == 2
    assert not done.warnings
    tight = assign(View((Member("a", memory_bytes=200),), tasks), SETTINGS)
    assert "[RIFFLE-0776] Member a gets 800 bytes" in tight.warnings[0]


def test_an_awaited_lost_member_gets_its_tasks_back() -> None:
    """While a lost member is awaited, its standby processes its tasks and no member warms up for them. When it returns
    with a caught-up copy, it owns its tasks again.
    """
    lost = replace(
        view("a:0-3 b:4-7 c:8-11"),
        standbys={task(n): ("b",) for n in range(4)},
    )
    lags = {each: {**held, "b": 0} if each.key_group < 4 else dict(held) for each, held in lost.lags.items()}
    away = replace(
        lost,
        members=tuple(member for member in lost.members if member.id != "a"),
        owners={each: owner for each, owner in lost.owners.items() if owner != "a"},
        lags={each: {m: lag for m, lag in held.items() if m != "a"} for each, held in lags.items()},
        prior_owners={task(n): "a" for n in range(4)},
        awaited=(Member("a"),),
    )
    waiting = assign(away, SETTINGS)
    assert {waiting.owners[task(n)] for n in range(4)} == {"b"}
    assert {waiting.target[task(n)] for n in range(4)} == {"a"}
    assert not waiting.warmups
    back = replace(caught_up(away, waiting), members=lost.members, awaited=(), prior_owners=away.prior_owners)
    back = replace(
        back, lags={each: {**held, **({"a": 3} if each.key_group < 4 else {})} for each, held in back.lags.items()}
    )
    returned = assign(back, SETTINGS)
    assert returned.owners == lost.owners
    assert {move.goal for move in returned.moves if move.role == "owner"} <= {"return", "balance"}


@given(data=st.data(), wanted=st.integers(1, 2), mode=st.sampled_from(["replay", "snapshot_pointer"]))
def test_remaining_members_have_all_possible_standbys_during_a_wait(
    data: st.DataObject, wanted: int, mode: Any
) -> None:
    """While members are awaited, each task has as many standbys as the remaining members allow, in every round."""
    settings = replace(SETTINGS, num_standbys=wanted, standby_mode=mode)
    points = mode == "snapshot_pointer"
    names = "abcde"
    before = view("a:0-3 b:4-7 c:8-9 d:10-11 e:12", total=14)
    start = settled(before, settings)
    before = caught_up(before, start, points=points)
    lost = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    away = _without(before, lost)
    for _ in range(3):
        done = assign(away, settings)
        assert not find_violations(away, done, settings)
        left = len(names) - len(lost)
        assert {len(done.standbys.get(each.id, ())) for each in away.tasks} == {min(wanted, left - 1)}
        away = caught_up(away, done, points=points)
    again = assign(away, settings)
    assert (again.moves, again.needs_probe) == ((), False)


def _without(before: View, lost: Collection[str]) -> View:
    """Return the view after the loss of members that are awaited."""

    def living(copies: Mapping[TaskId, tuple[str, ...]]) -> dict[TaskId, tuple[str, ...]]:
        return {each: tuple(m for m in held if m not in lost) for each, held in copies.items()}

    return replace(
        before,
        members=tuple(member for member in before.members if member.id not in lost),
        awaited=tuple(member for member in before.members if member.id in lost),
        owners={each: owner for each, owner in before.owners.items() if owner not in lost},
        prior_owners={each: owner for each, owner in before.owners.items() if owner in lost},
        lags={each: {m: lag for m, lag in held.items() if m not in lost} for each, held in before.lags.items()},
        standbys=living(before.standbys),
        warmups=living(before.warmups),
        pointers=living(before.pointers),
    )


def test_new_members_get_no_standbys_while_a_lost_member_is_awaited() -> None:
    """New members get no standbys while a lost member is awaited. After the wait they warm up."""
    settings = replace(SETTINGS, num_standbys=1, rebalance_enable="standbys")
    before = view("a:0-3 b:4-7 c:8-11 d:12-15 e:16-19 f:20-23")
    before = caught_up(before, settled(before, settings))
    away = _without(before, ["a"])
    away = caught_up(away, assign(away, settings))
    grown = replace(away, members=(*away.members, Member("g"), Member("h")))
    waiting = assign(grown, settings)
    assert (waiting.standbys, waiting.warmups) == (away.standbys, {})
    assert assign(replace(grown, awaited=(), prior_owners={}), settings).warmups


def test_tasks_of_a_lost_member_without_copies_are_spread_over_all() -> None:
    """While a lost member is awaited, its tasks without copies are spread over the other members in proportion to their
    slots.
    """
    before = view("a:0-11 b:12-23 c:24-47", slots={"c": 2})
    left = {t: owner for t, owner in before.owners.items() if owner != "a"}
    lost = replace(
        before, members=before.members[1:], owners=left, awaited=before.members[:1],
        lags={t: {m: 0} for t, m in left.items()}, prior_owners={t: "a" for t, m in before.owners.items() if m == "a"},
    )  # fmt: skip
    assignment = assign(lost, AssignSettings())
    gained = Counter(assignment.owners[t] for t in lost.prior_owners)
    assert gained == {"b": 4, "c": 8}


def test_a_copy_with_unknown_lag_ranks_after_all_known_lags() -> None:
    """A copy with a known lag is preferred to one with an unknown lag."""
    before = View((Member("a"), Member("b")), (Task(task(0), size=WHOLE),), lags={task(0): {"a": None, "b": 20_000}})
    assert assign(before, SETTINGS).owners[task(0)] == "b"


def test_a_pointer_ranks_after_real_copies() -> None:
    """A lagging copy is preferred to a snapshot pointer, and a pointer to nothing."""
    before = View((Member("a"), Member("b"), Member("c")), (Task(task(0), size=WHOLE),), pointers={task(0): ("b",)})
    assert assign(before, SETTINGS).owners[task(0)] == "b"
    assert assign(replace(before, lags={task(0): {"c": 90_000}}), SETTINGS).owners[task(0)] == "c"


def test_stateless_and_unlogged_tasks_move_at_once() -> None:
    """Stateless and unlogged tasks move without a warm-up and have no standbys."""
    kinds = ("unlogged", "stateless")
    tasks = tuple(Task(task(n), kind=kinds[n % 2]) for n in range(8))  # type: ignore[arg-type]
    before = View((Member("a"), Member("b")), tasks, owners={each.id: "a" for each in tasks})
    done = assign(before, replace(SETTINGS, num_standbys=1))
    assert Counter(done.owners.values()) == {"a": 4, "b": 4}
    assert not done.standbys
    assert not done.warmups


def test_racks_are_ignored_with_a_warning_if_one_is_unknown() -> None:
    """One member without a rack disables rack awareness for all, with a warning."""
    tasks = tuple(Task(task(n), owner_traffic=Traffic(1, {"r1": 1})) for n in range(4))
    before = View((Member("a", rack="r1"), Member("b")), tasks)
    settings = replace(SETTINGS, rack_aware_assignment_strategy="min_cost")
    assert "[RIFFLE-0785]" in assign(before, settings).warnings[0]


def contradicting(read_in: str) -> View:
    """Return a view whose tags and racks disagree: a and b are in zone near, c is in zone far and in the rack of b."""
    members = (
        Member("a", rack="r1", tags={"zone": "near"}),
        Member("b", rack="r2", tags={"zone": "near"}),
        Member("c", rack="r2", tags={"zone": "far"}),
    )
    before = view("a:0-3 b:4-7 c:8-11")
    traffic = Traffic(1, {read_in: 1})
    return replace(
        before, members=members, tasks=tuple(replace(each, standby_traffic=traffic) for each in before.tasks)
    )


def standbys_of(done: Assignment) -> dict[str, int]:
    """Return the number of standbys of each member."""
    return dict(sorted(Counter(m for held in done.standbys.values() for m in held).items()))


@pytest.mark.parametrize("strategy", ["none", "min_cost"])
def test_tags_override_racks_for_the_separation_of_standbys(strategy: Any) -> None:
    """Only tags separate standbys from owners. The far zone has the standbys of the near one, whatever the racks."""
    settings = replace(SETTINGS, num_standbys=1, rack_aware_assignment_tags=("zone",))
    settings = replace(settings, rack_aware_assignment_strategy=strategy)
    done = settled(contradicting("r1"), settings)
    assert standbys_of(done) == {"a": 2, "b": 2, "c": 8}


def test_tags_that_contradict_racks_are_a_warning() -> None:
    """If tags and racks disagree, the tags apply, and a warning says so."""
    before = View((Member("a", rack="r1", tags={"zone": "z"}), Member("b", rack="r2")), (Task(task(0)),))
    settings = replace(SETTINGS, rack_aware_assignment_tags=("zone",))
    assert "RIFFLE-0786" in assign(before, settings).warnings[0]
    agreeing = replace(settings, rack_aware_assignment_tags=("zone", "rack"))
    assert not any("RIFFLE-0786" in warning for warning in assign(before, agreeing).warnings)


def test_balance_respects_the_user_cost() -> None:
    """Balance respects members that the user cost forbids, and prefers those with a lower cost."""

    def rule(each: Task, member: Member) -> int | None:
        if each.id.key_group == 0 and member.id == "a":
            return None
        return 0 if (each.id.key_group % 2 == 0) == (member.id == "b") else 5

    done = assign(view("a: b:", total=8), replace(SETTINGS, user_cost=rule))
    assert all(done.owners[task(n)] == ("b" if n % 2 == 0 else "a") for n in range(8))


def test_the_sticky_assignor_moves_few_tasks_and_without_warm_ups() -> None:
    """The sticky assignor keeps owners, balances their counts, and moves tasks without a warm-up."""
    done = assign(view("a:0-5 b:6-7 c:8"), replace(SETTINGS, assignor="sticky"))
    assert Counter(done.owners.values()) == {"a": 3, "b": 3, "c": 3}
    assert sum(move.role == "owner" for move in done.moves) == 3


def test_the_hash_assignor_ignores_previous_owners() -> None:
    """The hash assignor gives the same owners whatever the previous owners were."""
    settings = replace(SETTINGS, assignor="hash")
    assert assign(view("a:0-7 b:"), settings).owners == assign(view("a: b:0-7"), settings).owners


def test_check_reports_a_member_that_is_owner_and_standby_of_a_task() -> None:
    """A violation names a member that is the owner and a standby of one task."""
    done = Assignment({task(0): "a"}, standbys={task(0): ("a",)})
    assert find_violations(view("a:0"), done) == ("member a holds two copies of task g_0",)


def test_check_reports_copies_that_cannot_be() -> None:
    """Violations name copies of unknown and stateless tasks, and more warm-ups than the setting allows."""
    before = view("a:0 b:1")
    before = replace(before, tasks=(replace(before.tasks[0], kind="stateless"), before.tasks[1]))
    done = Assignment(before.owners, standbys={task(0): ("b",), task(7): ("b",)}, warmups={task(1): ("a",)})
    assert find_violations(before, done, replace(SETTINGS, max_warmup_replicas=0)) == (
        "task g_0 is stateless and can have no standby",
        "standby of unknown task g_7",
        "1 warm-ups are more than max_warmup_replicas = 0",
    )
