"""Simulated clusters: processing stops per policy, triggers that fire, and tasks that always have an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.protocol.ownership.triggers import Probes
from riffle_spark.simulate.outcomes import outcome_to_json
from riffle_spark.simulate.play import Outcome, Play, play
from riffle_spark.simulate.policy import POLICIES, RIFFLE
from riffle_spark.simulate.world import World
from riffle_spark.simulate.world_file import parse_world, read_world
from riffle_spark.simulate.world_rules import WorldRules

OURS = RIFFLE.name
MEMBER = {"threads": 1, "restore_bytes_per_second": 1e6}


def played(world: World, policy: str) -> Outcome:
    """Play a simulated cluster under one policy."""
    return play(world, POLICIES[policy])


def made(**content: Any) -> World:
    """Return a simulated cluster of three members and twelve tasks, with changes."""
    usual: dict[str, Any] = {
        "name": "made",
        "seconds": 1800,
        "every": 1,
        "config": {},
        "members": [{"id": "m{}", "count": 3, **MEMBER}],
        "tasks": [{"subtopology": "s", "count": 12, "state_bytes": 1e7, "rows_per_second": 10}],
    }
    return parse_world({**usual, **content})


def test_restarted_members_get_their_own_tasks_back() -> None:
    """Existing standbys advance before lost ones are replaced, so no standby falls behind. When a member returns, each
    of its tasks moves back, and the fetches of replacement copies stop.
    """
    world = read_world("rolling_bounce")
    done = played(world, OURS)
    still = played(replace(world, events=()), OURS)
    assert done.moves == 3 * 2 * len(world.tasks) / 3
    away = 30
    survivors = 2
    bandwidth = 50e6
    assert done.bytes_kept - still.bytes_kept <= 3 * away * survivors * bandwidth


def test_a_scale_out_ends_balanced_with_short_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale-out ends balanced, and tasks stop for less than a second on average. If no probe is ever due, new members
    get nothing.
    """
    world = read_world("scale_out")
    level = played(world, OURS)
    assert set(level.owners[-1].tolist()) == {16}
    assert level.task_seconds < len(world.tasks)
    monkeypatch.setattr(Probes, "is_due", lambda *_: False)
    stuck = played(world, OURS)
    assert stuck.owners[-1].tolist() == [24, 24, 24, 24, 0, 0]


def test_work_outside_the_band_is_balanced_after_five_batches() -> None:
    """After five batches outside the balance band, other tasks leave the member of a task with sixty times its rows."""
    world = made(every=10, events=[{"at": 100, "load": 60, "tasks": ["s_0"]}])
    done = played(world, OURS)
    assert done.moves > 0
    first = next(n for n, moved in enumerate(done.moved) if moved)
    assert done.seconds[first] >= 140
    assert played(replace(world, events=()), OURS).moves == 0


def test_rows_wait_while_more_arrive_than_slots_process() -> None:
    """Rows wait while more arrive than the slots process, and are processed when fewer arrive."""
    slow = {**MEMBER, "rows_per_second": 50}
    world = made(
        members=[{"id": "m{}", "count": 3, **slow}],
        events=[{"at": 100, "load": 2}, {"at": 200, "load": 0.5}],
    )
    done = played(world, OURS)
    assert done.rows_waiting == pytest.approx(100 * (2 * 120 - 3 * 50))
    assert done.waiting[-1] == 0


ALL_GONE = (
    {"at": 100, "lose_rack": "a"},
    {"at": 130, "lose_rack": "b"},
    {"at": 400, "return_rack": "b"},
    {"at": 700, "return_rack": "a"},
)
"""For some time, no member is alive."""


def drawn_worlds() -> st.SearchStrategy[World]:
    """Draw simulated clusters with random joins and losses, and a quiet end."""
    return st.builds(
        lambda seed, members, tasks, changes, standbys, racks, events: made(
            seed=seed,
            seconds=1_500,
            every=10,
            changes=changes,
            events=[*events] if not changes else [],
            config={"num_standbys": standbys, "max_warmup_replicas": 3},
            members=[{"id": "m{}", "count": members + 1, "racks": ["a", "b"] if racks or events else [], **MEMBER}],
            tasks=[{"subtopology": "s", "count": tasks, "state_bytes": 2e7, "spread": 0.9, "rows_per_second": 5}],
        ),
        st.integers(0, 10_000),
        st.integers(1, 3),
        st.integers(1, 9),
        st.integers(0, 6),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([(), ALL_GONE]),
    )


@given(world=drawn_worlds(), policy=st.sampled_from(sorted(POLICIES)))
def test_property_every_task_has_an_owner_while_a_member_lives(world: World, policy: str) -> None:
    """While a member is alive every task has an owner, and under the riffle policy a live one. Stopped times are
    between 0 and the elapsed time, and bytes are never negative.
    """
    game = Play(world, POLICIES[policy])
    while game.now < world.seconds:
        game.step()
        owners = {game.names[m] for m in game.copies.owner.tolist()}
        assert policy != OURS or not game.live or owners <= game.live.keys()
        assert 0 <= game.outcome.standing[-1] <= len(world.tasks) * world.every + 1e-6
        assert set(game.present.owners) == {task.task.id for task in world.tasks}
    done = game.outcome
    assert done.unowned == 0
    assert min(done.bytes_owned, done.bytes_kept, done.bytes_warmed, done.longest, *done.stopped.values()) >= 0
    assert done.task_seconds == pytest.approx(sum(done.standing))
    assert (game.copies.changed >= 0).all()


@given(world=drawn_worlds(), policy=st.sampled_from(sorted(POLICIES)))
def test_property_the_same_seed_gives_the_same_outcome(world: World, policy: str) -> None:
    """Two plays of the same cluster and seed give the same outcome."""
    first, second = (outcome_to_json(world, played(world, policy), history=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nothing_moves_without_events(policy: str) -> None:
    """Without events nothing moves or stops, and only standbys fetch changes."""
    done = played(made(config={"num_standbys": 1}), policy)
    assert (done.moves, done.task_seconds, done.bytes_owned, done.bytes_warmed) == (0, 0, 0, 0)
    assert done.bytes_kept > 0


def test_unbalanceable_work_is_assigned_again_only_if_loads_change() -> None:
    """An excluded member stays without work. The assignor runs once at the start, and again when loads change."""
    excluded = {"exclude": {"id": "m0"}}
    assert played(made(config=excluded), "riffle").assigned == 1
    changes_of_load = [{"at": 900, "load": 2, "tasks": [f"s_{n}" for n in range(6)]}]
    assert played(made(config=excluded, events=changes_of_load), "riffle").assigned > 1


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (lambda: made(speed=1), "Unknown field of the file 'speed'"),
        (lambda: made(members=[{"id": "a", "bandwith": 1}]), "Unknown field of the member 'bandwith'"),
        (lambda: made(members=[{"id": "a", "count": 2}]), "'a' is listed twice"),
        (lambda: made(events=[{"at": 5, "lose": ["m9"]}]), "Unknown member 'm9'"),
        (lambda: made(events=[{"at": 5, "return": ["m1"]}]), "Unknown member that left 'm1'"),
        (lambda: made(events=[{"at": 5, "lose_rack": "b"}]), "Unknown rack 'b'"),
        (lambda: made(events=[{"at": 5, "load": 2, "tasks": ["s_99"]}]), "Unknown task 's_99'"),
        (lambda: made(events=[{"lose": ["m1"]}]), "has no 'at'"),
        (lambda: made(seconds="soon"), "seconds = 'soon' is not allowed"),
        (lambda: made(protocol={"session_time_out": 1}), "Unknown field of the protocol 'session_time_out'"),
        (lambda: read_world("rolling_bonce"), "Did you mean 'rolling_bounce'"),
        (lambda: made(seconds=None), "Add name, seconds, members, tasks"),
        (lambda: made(members=[]), "has no members"),
        (lambda: made(config={"session_timeout": 1}), "belongs in protocol"),
        (lambda: made(config={"local_disk_high": 0.5}), "Set `local_disk_limit`"),
        (
            lambda: made(tasks=[{"subtopology": "s", "state_bytes": 1, "rows_from": ["zz"]}]),
            "Unknown rack of a member 'zz'",
        ),
        (lambda: made(events=[{"at": 5, "rows_from": ["zz"]}]), "Unknown rack of a member 'zz'"),
        (lambda: made(events=[{"at": 1800, "load": 2}]), "The event is at 1800 s, but the simulation ends at 1800 s"),
        (lambda: made(events=[{"at": 5}]), "no action"),
        (lambda: made(events=[{"at": 5, "down": 5, "lose": ["m1"]}]), "(?s)'down' alone has no effect.* bounce"),
        (lambda: made(events=[{"at": 5, "load": 2, "members": ["m1"]}]), "'members' alone has no effect"),
    ],
)
def test_an_invalid_world_value_is_refused_with_the_nearest_name(world: Callable[[], World], message: str) -> None:
    """The error names the offending value and the nearest known name."""
    with pytest.raises(Exception, match=message):
        world()


def test_the_day_world_has_its_documented_size() -> None:
    """The `day` world has 1,000 members, 32,768 tasks, 20 membership changes, and a probe every ten minutes."""
    world = read_world("day")
    assert (len(world.present), len(world.tasks), world.seconds) == (1_000, 32_768, 86_400)
    assert sum(len(event.members) for event in world.events) == 20
    assert world.protocol["probing_rebalance_interval"] == 600
    assert read_world("day", seed=6).events != world.events


def owned_by(done: Outcome, member: int, second: float) -> int:
    """Return how many tasks a member owns at a second."""
    return int(done.owners[done.seconds.index(second)][member])


def with_and_without(world: World) -> tuple[Outcome, Outcome]:
    """Play a cluster under the riffle policy, with and without the rules for members."""
    acts = played(world, OURS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorldRules, "can_fire", lambda *_: False)
        return acts, played(world, OURS)


def test_tasks_leave_a_member_with_a_full_disk_and_return() -> None:
    """Tasks leave a member whose disk is above its limit until it is below. When the disk has room again, the member
    gets its share back.
    """
    disk = {**MEMBER, "disk_bytes": 1e9, "disk_used_bytes": 5e8}
    full, free = (
        {"at": second, "disk_used_bytes": used, "members": ["m0"]} for second, used in ((100, 8.75e8), (1000, 5e8))
    )
    disks: dict[str, Any] = {"every": 10, "members": [{"id": "m{}", "count": 3, **disk}], "events": [full, free]}
    acts, off = with_and_without(made(config={"max_warmup_replicas": 1}, **disks))
    assert [owned_by(acts, 0, second) for second in (100, 900, 1790)] == [4, 1, 4]
    assert [owned_by(off, 0, second) for second in (100, 900, 1790)] == [4, 4, 4]
    later = made(config={"local_disk_limit": 0.9}, **disks)
    assert owned_by(played(later, OURS), 0, 900) == 4


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_tasks_of_a_removed_member_get_owners_for_good(policy: str) -> None:
    """A member that is removed does not return, so its tasks go to the others, without a wait for it."""
    done = played(made(every=10, events=[{"at": 300, "remove": ["m0"]}]), policy)
    assert (owned_by(done, 0, 290), owned_by(done, 0, 1790)) == (4 if policy == OURS else 2, 0)
    assert done.owners[-1].sum() == 12


def test_a_member_short_of_memory_keeps_only_tasks_that_fit() -> None:
    """When more rows need more memory, the member with the least memory keeps only the tasks that fit."""
    world = made(
        every=10,
        config={"max_warmup_replicas": 1},
        events=[{"at": 100, "load": 1.25}],
        members=[
            {"id": "m0", **MEMBER, "memory_bytes": 5e8},
            {"id": "m1", **MEMBER, "memory_bytes": 4e9},
            {"id": "m2", **MEMBER, "memory_bytes": 4e9},
        ],
        tasks=[{"subtopology": "s", "count": 12, "state_bytes": 1e7, "rows_per_second": 10, "memory_bytes": 1e8}],
    )
    acts, off = with_and_without(world)
    assert [owned_by(acts, 0, second) for second in (100, 900)] == [4, 3]
    assert owned_by(off, 0, 900) == 4


def test_owners_follow_their_rows_to_another_rack_after_three_batches() -> None:
    """Half of the tasks begin to read from another rack. After three batches owners move to the racks that they read
    from.
    """
    half = [f"s_{n}" for n in range(6)]
    world = made(
        every=10,
        config={"rack_aware_assignment_strategy": "min_traffic"},
        members=[{"id": "m{}", "count": 4, "racks": ["a", "b"], **MEMBER}],
        tasks=[{"subtopology": "s", "count": 12, "state_bytes": 1e7, "rows_per_second": 10, "rows_from": ["a", "b"]}],
        events=[
            {"at": 100, "rows_from": ["a"], "tasks": half},
            {"at": 100, "rows_from": ["b"], "tasks": [f"s_{n}" for n in range(6, 12)]},
        ],
    )
    game = Play(world, POLICIES[OURS])
    while game.now < world.seconds:
        game.step()
    racks = {name: member.rack for name, member in game.members.items()}
    assert all(racks[owner] == ("a" if str(task) in half else "b") for task, owner in game.present.owners.items())
    moved = [second for second, moves in zip(game.outcome.seconds, game.outcome.moved, strict=True) if moves]
    assert moved[0] >= 120
    assert with_and_without(world)[1].moves == played(replace(world, events=()), OURS).moves == 0


def test_rows_from_racks_with_only_brokers_cause_no_moves() -> None:
    """Rows from racks that have only brokers cause no moves. Such racks must be declared, so that a misspelled one is
    refused.
    """
    world = made(
        every=10,
        config={"rack_aware_assignment_strategy": "min_traffic"},
        broker_racks=["c"],
        members=[{"id": "m{}", "count": 4, "racks": ["a", "b"], **MEMBER}],
        tasks=[{"subtopology": "s", "count": 12, "state_bytes": 1e7, "rows_per_second": 10, "rows_from": ["a", "c"]}],
        events=[{"at": 100, "rows_from": ["c"]}],
    )
    assert played(world, OURS).moves == played(replace(world, events=()), OURS).moves


def test_a_standby_that_never_catches_up_moves_to_another_member() -> None:
    """After a standby has fallen behind for ten batches, another member gets it. Without this rule its lag grows."""
    slow = {"threads": 1, "restore_bytes_per_second": 100}
    world = made(
        every=10,
        config={"num_standbys": 1},
        members=[{"id": "m0", **slow}, {"id": "m1", **MEMBER}, {"id": "m2", **MEMBER}, {"id": "m3", **MEMBER}],
        tasks=[{"subtopology": "s", "count": 12, "state_bytes": 1e7, "rows_per_second": 10}],
    )
    acts, off = with_and_without(world)
    assert off.lacking[-1] > 0
    assert acts.lacking[-1] < off.lacking[-1] / 10


def test_other_tasks_leave_the_member_of_a_slow_task_with_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rows of one task take thousands of times longer, the other tasks leave its member. Without this rule
    nothing moves.
    """
    world = made(every=10, events=[{"at": 100, "row_seconds": 6e-5, "tasks": ["s_0"]}])
    acts = played(world, OURS)
    heavy = int(acts.owners[-1].min())
    assert (acts.moves > 0, heavy) == (True, 1)
    monkeypatch.setattr("riffle_spark.simulate.play.is_outside_band", lambda *_: False)
    off = played(world, OURS)
    assert off.moves == 0


def test_balanced_work_causes_no_further_assignments() -> None:
    """Two slow tasks on one member are separated in few assignments. Then the work stays within its band."""
    acts = played(made(every=10, events=[{"at": 100, "row_seconds": 1.5e-6, "tasks": ["s_0", "s_3"]}]), OURS)
    assert (acts.moves > 0, acts.assigned <= 3) == (True, True)


def test_user_code_time_reduces_the_capacity_of_a_slot() -> None:
    """If user code doubles the time per row, a slot processes half as many rows."""
    slow = {**MEMBER, "rows_per_second": 50}
    world = made(members=[{"id": "m{}", "count": 3, **slow}], events=[{"at": 100, "row_seconds": 1 / 50}], seconds=200)
    assert played(world, OURS).waiting[-1] == pytest.approx(100 * (120 - 3 * 25), rel=0.02)
