"""Any view, whatever its racks, tags, pins, filters and copies, gets a valid assignment."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings, Member, Task, TaskId, Traffic, View
from riffle_spark.assign.validity import find_violations
from tests.kit.assign_views import settled

RARE = (1103, 2140, 3007, 3015, 3109)
"""Seeds of views that need rare moves: exchanges of standbys, racks without a spare place, and blocked tasks."""


def traffic(chance: random.Random) -> Traffic:
    """Draw the rack of the only part that a copy reads."""
    return Traffic(1, {f"r{chance.randrange(3)}": 1})


def drawn_tasks(chance: random.Random) -> tuple[Task, ...]:
    """Draw up to eight tasks of all kinds in two groups. In some views all tasks have a measured weight."""
    tasks = [
        Task(
            TaskId(chance.choice("gh"), number),
            chance.choice(["stateful"] * 5 + ["stateless", "unlogged"]),  # type: ignore[arg-type]
            chance.choice([0, 100, 150_000]),
            memory_bytes=chance.choice([0, 0, 10]),
            owner_traffic=traffic(chance),
            standby_traffic=traffic(chance),
        )
        for number in range(chance.randint(1, 8))
    ]
    if chance.random() < 0.3:
        tasks = [replace(each, weight=chance.choice([1, 2, 5, 50])) for each in tasks]
    return tuple(tasks)


def drawn_view(chance: random.Random) -> View:
    """Draw members in racks or without them, and present owners, standbys and lags in any disorder."""
    racks = chance.choice([0, 2, 3])
    members = tuple(
        Member(
            f"m{number}",
            slots=chance.choice([1, 1, 2]),
            rack=f"r{chance.randrange(racks)}" if racks else None,
            tags={"zone": chance.choice("ab")},
        )
        for number in range(chance.randint(2, 5))
    )
    names = [member.id for member in members]
    tasks = drawn_tasks(chance)
    owners = {each.id: chance.choice([*names, "gone"]) for each in tasks if chance.random() < 0.8}
    lags: dict[TaskId, dict[str, int | None]] = {
        each.id: {name: chance.choice([0, 0, 50_000, None]) for name in names if chance.random() < 0.5}
        for each in tasks
    }
    for owned, owner in owners.items():
        lags[owned][owner] = 0
    standbys = {
        each.id: tuple(name for name in chance.sample(names, chance.randint(0, 2)) if name != owners.get(each.id))
        for each in tasks
        if each.kind == "stateful"
    }
    pins: Mapping[TaskId, str] = {chance.choice(tasks).id: chance.choice(names)} if chance.random() < 0.3 else {}
    target = {each.id: chance.choice(names) for each in tasks} if chance.random() < 0.3 else {}
    return View(members, tasks, owners, standbys, lags=lags, pins=pins, target=target)


def drawn_settings(chance: random.Random, view: View) -> AssignSettings:
    """Draw settings, some with tags, an excluded member or the goal of balance."""
    settings = AssignSettings(
        num_standbys=chance.randint(0, 2),
        max_warmup_replicas=chance.randint(0, 3),
        rack_aware_assignment_strategy=chance.choice(["none", "min_cost", "balance_subtopology"]),
        moves_at_once=chance.choice([None, 0, 1]),
        assignor=chance.choice(["high_availability"] * 4 + ["sticky"]),
    )
    if chance.random() < 0.4:
        settings = replace(settings, rack_aware_assignment_tags=("zone",))
    if chance.random() < 0.3:
        settings = replace(settings, exclude=(("id", chance.choice(view.members).id),))
    return replace(settings, goals=("balance",)) if chance.random() < 0.4 else settings


@pytest.mark.parametrize("seeds", [range(140), RARE], ids=["any", "rare"])
def test_any_view_gets_a_valid_assignment(seeds: range | tuple[int, ...]) -> None:
    """Each drawn view gets an assignment with one live owner a task, copies elsewhere, and few enough warm-ups."""
    for seed in seeds:
        chance = random.Random(seed)
        view = drawn_view(chance)
        settings = drawn_settings(chance, view)
        done = assign(view, settings)
        assert find_violations(view, done, settings) == (), seed


@pytest.mark.parametrize("seeds", [range(60), (101, 288, 294, 1269, 2028, 3199)], ids=["any", "rare"])
def test_requests_hold_in_the_end_with_one_warm_up_and_no_standbys(seeds: range | tuple[int, ...]) -> None:
    """Each task gets to its pin, and each other task leaves an excluded member, even if no move levels the rest."""
    for seed in seeds:
        chance = random.Random(seed)
        view = drawn_view(chance)
        settings = drawn_settings(chance, view)
        settings = replace(settings, num_standbys=0, max_warmup_replicas=1, moves_at_once=None)
        excluded = {name for _, name in settings.exclude}
        for task, owner in settled(view, settings).owners.items():
            assert owner == view.pins[task] if task in view.pins else owner not in excluded, (seed, task)
