"""Simulated consumer-group protocols rebalance as their designs describe, and riffle_spark stops fewer tasks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.protocols.group_play import ALL, GROUPS, GroupPlay, play_under
from benchmarks.protocols.kip441 import kip441
from riffle_spark.simulate.figures import figures_of_run
from riffle_spark.simulate.group import run_scenario
from riffle_spark.simulate.outcomes import Outcome, format_table
from riffle_spark.simulate.policy import RIFFLE
from riffle_spark.simulate.world import World
from riffle_spark.simulate.world_file import SHIPPED, read_world
from tests.kit.folders import CHECKOUT
from tests.kit.kafka_streams import Family, anchors
from tests.simulate.test_play import MEMBER, drawn_worlds, made

MOST_TASKS = 60


def played(world: World, policy: str) -> Outcome:
    """Run a world under one policy."""
    return play_under(ALL[policy], world)


def test_an_eager_rolling_bounce_of_three_takes_six_rebalances() -> None:
    """With eager rebalancing, each member of a rolling bounce leaves and rejoins, and each time all tasks stop."""
    world = read_world("rolling_bounce")
    done = played(world, "eager")
    assert done.rebalances == 6
    assert done.stopped["pause"] == 6 * world.protocol["rebalance_seconds"] * len(world.tasks)


def test_static_membership_bounces_without_a_rebalance() -> None:
    """With static membership, only the tasks of a bouncing member stop. No task moves, and no state is fetched."""
    world = read_world("rolling_bounce")
    done = played(world, "static")
    assert (done.rebalances, done.moves, done.bytes_owned) == (0, 0, 0)
    assert done.task_seconds == done.stopped["no owner"] == 3 * 30 * len(world.tasks) / 3


def test_static_membership_moves_lost_tasks_after_the_session_timeout() -> None:
    """With static membership, the tasks of a lost member stop for the session timeout.

    Then one rebalance moves them.
    """
    done = played(made(events=[{"at": 60, "leave": ["m1"]}], protocol={"session_timeout": 45}), "static")
    assert (done.rebalances, done.moves, done.stopped["no owner"]) == (1, 4, 4 * 45)


def test_eager_rebalancing_notices_a_crash_after_the_session_timeout() -> None:
    """With eager rebalancing, a crash is noticed after the session timeout, and a shutdown immediately."""
    protocol = {"session_timeout": 45}
    lost, left_outcome = (
        played(made(events=[{"at": 60, kind: ["m1"]}], protocol=protocol), "eager") for kind in ("lose", "leave")
    )
    assert (lost.rebalances, left_outcome.rebalances) == (1, 1)
    assert (lost.stopped["no owner"], left_outcome.stopped["no owner"]) == (4 * 45, 0)


def test_cooperative_rebalancing_stops_only_tasks_that_move() -> None:
    """When two members join three, one cooperative rebalance revokes and a second one assigns.

    Other tasks never stop.
    """
    joins = [{"at": 60, "join": [{"id": "new{}", "count": 2, **MEMBER}]}]
    eager, cooperative = (played(made(events=joins), policy) for policy in ("eager", "cooperative"))
    assert (cooperative.rebalances, eager.rebalances) == (2, 1)
    assert cooperative.moves == eager.moves == 4
    assert (cooperative.stopped["pause"], eager.stopped["pause"]) == (4 * 3, 12 * 3)
    assert cooperative.stopped["restore"] == eager.stopped["restore"] > 0


def test_a_delayed_rebalance_returns_the_tasks_of_a_member_that_rejoins() -> None:
    """W2 leaves, rejoins before the delay ends, and gets its tasks back after the delay. W1 and W3 never stop."""
    world = made(
        members=[{"id": f"W{n}", **MEMBER} for n in (1, 2, 3)],
        events=[{"at": 60, "leave": ["W2"]}, {"at": 120, "return": ["W2"]}],
    )
    game = GroupPlay(world, GROUPS["deferred"])
    is_other = game.copies.owner != game.copies.index["W2"]
    while game.now < world.seconds:
        game.step()
    assert game.outcome.rebalances == 3
    assert game.outcome.moves == 0
    assert game.outcome.task_seconds == game.outcome.stopped["no owner"] == 300 * 4
    assert (game.copies.owner[is_other] != game.copies.index["W2"]).all()


def test_a_scale_up_with_learners_takes_four_rebalances() -> None:
    """Four rebalances: S4 joins, S5 joins, S4 is caught up, S5 is caught up. Then each member has one task."""
    world = made(
        members=[{"id": f"S{n}", **MEMBER} for n in (1, 2, 3)],
        tasks=[{"subtopology": "T", "count": 5, "state_bytes": 6e7, "row_bytes": 100, "rows_per_second": 1}],
        events=[{"at": 60, "join": [{"id": "S4", **MEMBER}]}, {"at": 90, "join": [{"id": "S5", **MEMBER}]}],
    )
    game = GroupPlay(world, GROUPS["learner"])
    rebalances = []
    initial_owners = dict(game.present.owners)
    assert sorted(initial_owners.values()) == ["S1", "S1", "S2", "S2", "S3"]
    while game.now < 600:
        rebalances_before = game.outcome.rebalances
        game.step()
        if game.outcome.rebalances > rebalances_before:
            learning = {m: t.key_group for t, warmup in game.present.warmups.items() for m in warmup}
            moved = {owner: t.key_group for t, owner in game.present.owners.items() if initial_owners[t] != owner}
            rebalances.append((learning, moved))
    first, third = (min(t.key_group for t, m in initial_owners.items() if m == name) for name in ("S1", "S2"))
    assert rebalances == [
        ({"S4": first}, {}),
        ({"S4": first, "S5": third}, {}),
        ({"S5": third}, {"S4": first}),
        ({}, {"S4": first, "S5": third}),
    ]
    assert sorted(game.present.owners.values()) == ["S1", "S2", "S3", "S4", "S5"]
    assert game.outcome.stopped["restore"] < 1


@pytest.mark.parametrize("family", ["random", "worked"])
@pytest.mark.sample("worked")
def test_the_model_of_kip441_agrees_with_recorded_kafka_streams_runs(family: Family) -> None:
    """The model of KIP-441 needs the rounds, warm-ups and moves that Kafka Streams needed on recorded clusters."""
    compared = 0
    for anchor in anchors(family):
        scenario = anchor.scenario()
        if scenario.settings.rack_aware_assignment_strategy != "none" or len(scenario.tasks) > MOST_TASKS:
            continue
        phases: Any = figures_of_run(scenario, run_scenario(scenario, assignor=kip441), keep=True, history=False)[
            "phases"
        ]
        for ours, theirs in zip(phases, anchor.kafka_phases, strict=True):
            for figure in ("rounds", "converged", "net_stateful_active_moves", "warmups_by_round"):
                assert ours[figure] == theirs[figure], (anchor.name, figure)
            compared += 1
    assert compared == {"random": 30, "worked": 15}[family]


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "day"])
@pytest.mark.sample(step=2)
def test_riffle_spark_stops_fewer_task_seconds_than_other_protocols(name: str) -> None:
    """riffle_spark stops fewer task-seconds than the other protocols and Spark's placement."""
    world = replace(read_world(name), seconds=20 * 60)
    ours = played(world, RIFFLE.name).task_seconds
    assert all(ours < played(world, policy).task_seconds for policy in ("eager", "deferred", "spark"))


@given(world=drawn_worlds(), policy=st.sampled_from(sorted(GROUPS)))
def test_property_every_task_has_an_owner(world: World, policy: str) -> None:
    """Property: while a member is live, every task has an owner, and no time or size is negative."""
    outcome = played(world, policy)
    assert outcome.unowned == 0
    assert min(outcome.bytes_owned, outcome.bytes_kept, outcome.bytes_warmed, *outcome.stopped.values()) >= 0
    assert max(outcome.standing) <= len(world.tasks) * world.every + 1e-6
    assert outcome.task_seconds == pytest.approx(sum(outcome.standing))


@pytest.mark.parametrize("policy", sorted(GROUPS))
@pytest.mark.sample(step=3)
def test_without_events_no_task_moves_or_stops(policy: str) -> None:
    """Without events no task moves or stops, and only standbys fetch state."""
    outcome = played(made(config={"num_standbys": 1}), policy)
    assert (outcome.moves, outcome.task_seconds, outcome.bytes_owned, outcome.bytes_warmed) == (0, 0, 0, 0)
    assert outcome.bytes_kept > 0


def test_the_page_has_current_figures_and_existing_pictures() -> None:
    """The page has the current figures of the rolling bounce, and every picture that it shows exists."""
    page = (CHECKOUT / "docs" / "simulator.md").read_text()
    world = read_world("rolling_bounce")
    rows = format_table(world, [played(world, policy) for policy in ("eager", "static", "riffle")]).splitlines()[2:5]
    lines = [line.split() for line in page.splitlines()]
    assert [row for row in rows if row.split() not in lines] == []
    pictures = {path.name for path in (CHECKOUT / "docs" / "pictures").iterdir()}
    assert pictures == set(re.findall(r"\(pictures/([\w-]+\.svg)\)", page))
