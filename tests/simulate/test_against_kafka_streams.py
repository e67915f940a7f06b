"""Comparison of all recorded clusters with the recorded results of Kafka Streams."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import cast

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.simulate.figures import Json, figures_of_assignment, figures_of_run
from riffle_spark.simulate.group import initial_group, run_scenario
from riffle_spark.simulate.scenario import Scenario
from tests.kit.kafka_streams import Anchor, anchors

REPLAY = "replay: python -m tests.kit.kafka_streams NAME > case.json; riffle plan --scenario case.json --history\n"
LARGEST_RACKED = 300
"""Largest number of tasks times clients. Rack strategies take seconds for larger groups, which only `--all` plays."""


def _phases(anchor: Anchor, strategy: str | None = None) -> list[Json]:
    return _played(anchor, strategy or anchor.scenario().settings.rack_aware_assignment_strategy)


@functools.cache
def _played(anchor: Anchor, strategy: str) -> list[Json]:
    scenario = anchor.scenario(strategy)
    return cast("list[Json]", figures_of_run(scenario, run_scenario(scenario), keep=True, history=False)["phases"])


def _number(figures: Json, *names: str) -> float:
    for name in names[:-1]:
        figures = cast(Json, figures[name])
    return cast(float, figures[names[-1]])


@pytest.fixture(scope="module", params=["some", pytest.param("every", marks=pytest.mark.long)])
def random_anchors(request: pytest.FixtureRequest) -> list[Anchor]:
    """Return the random scenarios, or every sixth of them."""
    return [*anchors("random")][:: 1 if request.param == "every" else 6]


@pytest.fixture(scope="module")
def plain(random_anchors: list[Anchor]) -> dict[str, list[Json]]:
    """Return the phases of every random scenario without a rack strategy."""
    return {anchor.name: _phases(anchor, "none") for anchor in random_anchors}


@pytest.fixture(scope="module", params=["small", pytest.param("all", marks=pytest.mark.long)])
def filed(request: pytest.FixtureRequest) -> list[Anchor]:
    """Return the random and worked scenarios that are played with the strategy in their file."""
    all_anchors = [*anchors("random"), *anchors("worked")]
    return [anchor for anchor in all_anchors if request.param == "all" or _is_small(anchor.scenario())]


def _is_small(scenario: Scenario) -> bool:
    racked = scenario.settings.rack_aware_assignment_strategy != "none"
    return not racked or len(scenario.tasks) * len(scenario.clients) <= LARGEST_RACKED


@pytest.fixture(scope="module")
def as_filed(filed: list[Anchor]) -> dict[str, list[Json]]:
    """Return the phases of the filed scenarios."""
    return {anchor.name: _phases(anchor) for anchor in filed}


def _sound(name: str, number: int, phase: Json) -> list[str]:
    problems = [f"{name} phase {number}: {key}" for key in ("converged", "stable") if not phase[key]]
    problems += [f"{name} phase {number}: {property_}" for property_ in cast("list[str]", phase["broken"])]
    rounds = cast("dict[str, list[str]]", phase["broken_rounds"])
    return problems + [
        f"{name} phase {number} round {round_number}: {problem}"
        for round_number, all_ in rounds.items()
        for problem in all_
    ]


def test_every_round_is_valid_and_every_phase_converges(
    plain: dict[str, list[Json]], as_filed: dict[str, list[Json]]
) -> None:
    """Every round of every scenario is valid, caught up and within its limits. Every phase converges and stays
    balanced.
    """
    broken = [
        problem
        for runs in (plain, as_filed)
        for name, phases in runs.items()
        for number, phase in enumerate(phases)
        for problem in _sound(name, number, phase)
    ]
    assert not broken, REPLAY + "\n".join(broken[:20])


def test_net_moves_are_at_most_1_3_times_the_minimum(plain: dict[str, list[Json]]) -> None:
    """In total, at most 1.3 times the minimum number of owners move, and hardly any moves twice."""
    phases = [phase for anchor_phases in plain.values() for phase in anchor_phases]
    fewest = sum(_number(phase, "fewest_stateful_active_moves") for phase in phases)
    net = sum(_number(phase, "net_stateful_active_moves") for phase in phases)
    moves = sum(_number(phase, "moves", "active_stateful") for phase in phases)
    assert net <= 1.3 * fewest
    assert moves <= 1.05 * net


def test_the_first_phase_has_the_recorded_minimum_of_moves(
    random_anchors: list[Anchor], plain: dict[str, list[Json]]
) -> None:
    """The first phase has the same minimum number of moves as the recorded results."""
    for anchor in random_anchors:
        ours = plain[anchor.name][0]
        theirs = anchor.kafka_phases[0]
        assert ours["fewest_stateful_active_moves"] == theirs["fewest_stateful_active_moves"], anchor.name


def test_imbalance_never_grows(plain: dict[str, list[Json]]) -> None:
    """In no round are owners less balanced than before the phase, or than after the first round of a loss."""
    for name, phases in plain.items():
        for phase in phases:
            by_round = cast("list[float]", phase["stateful_imbalance_by_round"])
            start = max(cast(float, phase["stateful_imbalance_before"]), by_round[0])
            lost = "event" in phase or by_round[0] == start
            allowed = start if lost else cast(float, phase["stateful_imbalance_before"])
            assert max(by_round) <= allowed + 1e-9, f"{name}: {by_round}, before {phase['stateful_imbalance_before']}"


def test_rounds_of_a_phase_are_bounded_by_its_warm_ups(
    random_anchors: list[Anchor], plain: dict[str, list[Json]]
) -> None:
    """A phase takes at most two rounds more than its warm-ups need."""
    for anchor in random_anchors:
        limit = anchor.scenario().settings.max_warmup_replicas
        for phase in plain[anchor.name]:
            warm = sum(cast("list[int]", phase["warmups_by_round"]))
            assert cast(int, phase["rounds"]) <= math.ceil(warm / limit) + 2, anchor.name


def test_rack_strategies_cost_less_in_total_than_kafka_streams(
    filed: list[Anchor], as_filed: dict[str, list[Json]]
) -> None:
    """In total, both rack strategies read less across racks than Kafka Streams does."""
    ours = theirs = 0.0
    for anchor in filed:
        if anchor.kafka["strategy"] == "none":
            continue
        for phase, kafka_phase in zip(as_filed[anchor.name], anchor.kafka_phases, strict=False):
            if kafka_phase["converged"] and "total_cost" in cast(Json, kafka_phase["cross_rack"]):
                ours += _number(phase, "cross_rack", "total_cost")
                theirs += _number(kafka_phase, "cross_rack", "total_cost")
    assert ours < theirs


@pytest.mark.long
def test_without_stickiness_no_phase_costs_more_than_kafka_streams(filed: list[Anchor]) -> None:
    """With a non-overlap cost of 0, every phase that Kafka Streams completes costs at most as much here."""
    for anchor in filed:
        scenario = anchor.scenario()
        if anchor.kafka["strategy"] == "none" or "converge" not in anchor.kafka:
            continue
        free = replace(scenario, settings=replace(scenario.settings, rack_aware_assignment_non_overlap_cost=0))
        ours = cast("list[Json]", figures_of_run(free, run_scenario(free), keep=True, history=False)["phases"])
        for number, (phase, kafka_phase) in enumerate(zip(ours, anchor.kafka_phases, strict=False)):
            if kafka_phase["converged"] and "total_cost" in cast(Json, kafka_phase["cross_rack"]):
                costs = [_number(either, "cross_rack", "total_cost") for either in (phase, kafka_phase)]
                assert costs[0] <= costs[1], f"{anchor.name} phase {number}"


@pytest.mark.long
def test_net_moves_are_minimal_without_store_balance() -> None:
    """Without store balance, every phase moves the minimum number of owners."""
    for anchor in anchors("random"):
        scenario = anchor.scenario("none")
        bare = replace(scenario, settings=replace(scenario.settings, store_balance=0.0))
        for phase in cast("list[Json]", figures_of_run(bare, run_scenario(bare), keep=True, history=False)["phases"]):
            assert phase["net_stateful_active_moves"] == phase["fewest_stateful_active_moves"], anchor.name


def test_balance_subtopology_spreads_groups_within_one_task(
    filed: list[Anchor], as_filed: dict[str, list[Json]]
) -> None:
    """With one-thread clients, `balance_subtopology` spreads each group within one task per client."""
    for anchor in (anchor_ for anchor_ in filed if anchor_ in anchors("random")):
        scenario = anchor.scenario()
        slots = {client.member.slots for client in scenario.clients}
        slots |= {client.member.slots for event in scenario.events for client in event.add}
        if scenario.settings.rack_aware_assignment_strategy == "balance_subtopology" and slots == {1}:
            for phase in as_filed[anchor.name]:
                assert _number(phase, "balance", "subtopology_active_worst") <= 1, anchor.name


@pytest.mark.long
@pytest.mark.parametrize("largest_converged", [256, pytest.param(512, marks=pytest.mark.long)])
@pytest.mark.parametrize("strategy", ["none", "min_cost", "balance_subtopology"])
def test_large_scenarios_are_valid_and_converge(strategy: str, largest_converged: int) -> None:
    """One assignment of every size is valid. Up to `largest_converged` tasks, the group also converges."""
    for anchor in anchors("scale"):
        if anchor.kafka["strategy"] != strategy:
            continue
        scenario = anchor.scenario()
        if len(scenario.tasks) <= largest_converged:
            phases = enumerate(_phases(anchor))
            problems = [problem for number, phase in phases for problem in _sound(anchor.name, number, phase)]
            assert not problems, problems[:10]
        else:
            group = initial_group(scenario)
            figures = figures_of_assignment(scenario, group, assign(group.view(), scenario.settings))
            assert figures["broken"] == [], anchor.name
