"""Compare the assignor with that of Kafka Streams: times, growth, moves, imbalance, cross-rack cost, rounds.

Times are CPU times of one process, the best of a few calls. The results of Kafka Streams were measured in the same way.
Its results and the clusters are in `tests/data/kafka_streams`. With `--against` the assignor of another commit is
measured in turn. `cpu_over_before` is then the ratio of the median times, and `counts_changed` names the figures
without noise that differ.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from benchmarks.kit.side import HERE, alternately, answer, at_revision, in_process
from benchmarks.kit.streams import median
from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings, Member, Strategy, Task, TaskId, Traffic, View
from riffle_spark.errors import RiffleError
from riffle_spark.simulate.figures import figures_of_run
from riffle_spark.simulate.group import run_scenario
from riffle_spark.simulate.scenario import Scenario
from tests.kit.kafka_streams import Anchor, Family, anchors

SIZES = ((128, 8), (128, 100), (256, 16), (512, 32), (1000, 50), (2000, 100), (4000, 200), (10_000, 1_000))
RACKS = 6
GROUPS = 8
CALLS = 5
SECONDS_A_SIDE = 900
NOISY = ("times_ms", "growth_power", "repetitions")


def scale_out(tasks: int, members: int) -> View:
    """Return a balanced group with one standby per task. Every tenth member is new and empty."""
    names = [f"m{n:04}" for n in range(members)]
    old = [name for n, name in enumerate(names) if n % 10 != 3]
    racks = [f"r{n}" for n in range(RACKS if members > 100 else 3)]
    assignments = []
    owners = {}
    standbys = {}
    lags = {}
    for number in range(tasks):
        group = number % GROUPS
        part = number // GROUPS
        near = {racks[(number + step) % len(racks)]: 1 for step in (0, 1)}
        replicas = {racks[(part + step) % len(racks)]: 1 for step in (0, 2)}
        task_id = TaskId(f"s{group}", part)
        assignments.append(
            Task(task_id, size=150_000, owner_traffic=Traffic(1, near), standby_traffic=Traffic(1, replicas))
        )
        owner = old[(part * GROUPS + group) % len(old)]
        second = old[(part * GROUPS + group + 1 + part % 3) % len(old)]
        owners[task_id] = owner
        lags[task_id] = {owner: 0}
        if second != owner:
            standbys[task_id] = (second,)
            lags[task_id][second] = 3_000
    joined = tuple(Member(name, 4, racks[n % len(racks)]) for n, name in enumerate(names))
    return View(joined, tuple(assignments), owners, standbys, lags=lags)


def milliseconds(view: View, settings: AssignSettings) -> float:
    """Return the shortest CPU time of a few calls."""
    durations_ms = []
    for _ in range(calls(len(view.tasks))):
        started = time.process_time()
        assign(view, settings)
        durations_ms.append(time.process_time() - started)
    return round(min(durations_ms) * 1000, 2)


def calls(tasks: int) -> int:
    """Return the number of measured calls for this number of tasks."""
    return CALLS if tasks < 4000 else 2


def times() -> dict[str, dict[str, float]]:
    """Measure every strategy and size."""
    medians: dict[str, dict[str, float]] = {}
    warm = scale_out(64, 4)
    for strategy in get_args(Strategy):
        settings = AssignSettings(num_standbys=1, max_warmup_replicas=16, rack_aware_assignment_strategy=strategy)
        assign(warm, settings)
        medians[strategy] = {
            f"{tasks}x{members}": milliseconds(scale_out(tasks, members), settings) for tasks, members in SIZES
        }
    return medians


def growth(measured: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the power by which the time grows with tasks x racks + tasks + members, fitted by least squares to all
    sizes.
    """
    powers = {}
    for strategy, by_size in measured.items():
        points = []
        for tasks, members in SIZES:
            if (tasks, members) != (128, 100):
                racks = RACKS if members > 100 else 3
                points.append((math.log(tasks * racks + tasks + members), math.log(by_size[f"{tasks}x{members}"])))
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
        powers[strategy] = round(slope, 2)
    return powers


def phases(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the figures of every phase of a scenario."""
    figures: Any = figures_of_run(scenario, run_scenario(scenario), keep=True, history=False)["phases"]
    return list(figures)


def scenarios(family: Family, strategy: str | None, **changes: float) -> Iterator[tuple[Anchor, Scenario]]:
    """Read the scenarios of a family, with changed settings."""
    for anchor in anchors(family):
        scenario = anchor.scenario(strategy)
        yield anchor, replace(scenario, settings=replace(scenario.settings, **changes))  # type: ignore[arg-type]


def moves() -> dict[str, Any]:
    """Return the moves of owners, their balance and the number of rounds, without a rack strategy."""
    fewest = net = moves_made = broken = 0
    bound = -100
    growth_of_imbalance = 0.0
    for _, scenario in scenarios("random", "none"):
        for phase in phases(scenario):
            fewest += phase["fewest_stateful_active_moves"]
            net += phase["net_stateful_active_moves"]
            moves_made += phase["moves"]["active_stateful"]
            broken += broken_in(phase)
            warm = sum(phase["warmups_by_round"])
            bound = max(bound, phase["rounds"] - math.ceil(warm / scenario.settings.max_warmup_replicas) - 2)
            growth_of_imbalance = max(growth_of_imbalance, grown(phase))
    return {
        "net_over_fewest": round(net / fewest, 4),
        "made_over_net": round(moves_made / net, 4),
        "worst_growth_of_imbalance": round(growth_of_imbalance, 4),
        "rounds_over_bound_worst": bound,
        "net_over_fewest_without_store_balance": round(_instance_only(), 4),
        "broken": broken,
    }


def _instance_only() -> float:
    converged_phases = [
        phase for _, scenario_ in scenarios("random", "none", store_balance=0.0) for phase in phases(scenario_)
    ]
    return sum(phase["net_stateful_active_moves"] for phase in converged_phases) / sum(
        phase["fewest_stateful_active_moves"] for phase in converged_phases
    )


def broken_in(phase: dict[str, Any]) -> int:
    """Count the broken properties of a phase."""
    unsettled = (not phase["converged"]) + (not phase["stable"])
    return unsettled + len(phase["broken"]) + sum(map(len, phase["broken_rounds"].values()))


def grown(phase: dict[str, Any]) -> float:
    """Return how much the imbalance of owners exceeds that at the start, in the worst round.

    Tasks of lost owners are placed first, so the start is then the first round.
    """
    by_round = phase["stateful_imbalance_by_round"]
    start = phase["stateful_imbalance_before"]
    if phase["moves"]["active_first_placed"]:
        start = max(start, by_round[0])
    return max(0.0, float(max(by_round) - start))


def racks() -> dict[str, Any]:
    """Return the cross-rack cost relative to Kafka Streams, and the moves of owners relative to the owners that differ
    at the end.

    The cost is that of the worst phase without stickiness, and the sum of all phases as configured.
    """
    ours = theirs = broken = net = moves_made = 0
    for anchor, scenario in (*scenarios("random", None), *scenarios("worked", None)):
        for phase, kafka_phase in compared(anchor, scenario):
            broken += broken_in(phase)
            net += phase["net_stateful_active_moves"]
            moves_made += phase["moves"]["active_stateful"]
            ours += phase["cross_rack"]["total_cost"]
            theirs += kafka_phase["cross_rack"]["total_cost"]
    worst = 0.0
    dearer = []
    free = {"rack_aware_assignment_non_overlap_cost": 0}
    for anchor, scenario in (*scenarios("random", None, **free), *scenarios("worked", None, **free)):
        for number, (phase, kafka_phase) in enumerate(compared(anchor, scenario)):
            own_cost = phase["cross_rack"]["total_cost"]
            cost = kafka_phase["cross_rack"]["total_cost"]
            worst = max(worst, (own_cost + 10) / (cost + 10))
            if own_cost > cost:
                dearer.append(f"{scenario.name} phase {number}: {own_cost} against {cost}")
    return {
        "cross_rack_over_kafka_worst": round(worst, 4),
        "cross_rack_over_kafka_sum": round(ours / theirs, 4),
        "cross_rack_dearer_than_kafka": dearer,
        "racks_made_over_net": round(moves_made / net, 4),
        "broken": broken,
    }


def compared(anchor: Anchor, scenario: Scenario) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield pairs of our phase and that of Kafka Streams, if a rack strategy was set and Kafka Streams converged."""
    if scenario.settings.rack_aware_assignment_strategy == "none" or "converge" not in anchor.kafka:
        return
    theirs: Any = anchor.kafka_phases
    for phase, kafka_phase in zip(phases(scenario), theirs, strict=False):
        if kafka_phase["converged"] and "total_cost" in kafka_phase["cross_rack"]:
            yield phase, kafka_phase


def figures() -> dict[str, Any]:
    """Measure everything."""
    measured = times()
    without = moves()
    with_racks = racks()
    return {
        "times_ms": measured,
        "growth_power": growth(measured),
        **without,
        **with_racks,
        "broken": without["broken"] + with_racks["broken"],
        "repetitions": {f"times_ms.{strategy}.{t}x{m}": calls(t) for strategy in get_args(Strategy) for t, m in SIZES},
    }


def figures_against(revision: str, rounds: int) -> dict[str, Any]:
    """Measure everything with both commits in turn. Return the figures of this commit, and the comparison."""
    with at_revision(revision) as baseline:
        codes = {"ours": HERE, "before": baseline}
        sides = alternately(
            list(codes), rounds, lambda side: in_process("benchmarks.assignor", {}, SECONDS_A_SIDE, {}, codes[side])
        )
    ours = sides["ours"]
    theirs = sides["before"]
    return {
        **ours[0],
        "cpu_over_before": {
            strategy: {size: round(_median(ours, strategy, size) / _median(theirs, strategy, size), 3) for size in by}
            for strategy, by in ours[0]["times_ms"].items()
        },
        "counts_changed": sorted(
            name for name, value in ours[0].items() if name not in NOISY and value != theirs[0].get(name, value)
        ),
        "against": baseline.revision,
    }


def _median(sides: list[dict[str, Any]], strategy: str, size: str) -> float:
    return median([side["times_ms"][strategy][size] for side in sides])


TARGETS = {
    "growth_power": "near 1",
    "net_over_fewest": "<= 1.3 (Kafka Streams 5.3)",
    "net_over_fewest_without_store_balance": "1",
    "made_over_net": "<= 1.05 (2.0)",
    "worst_growth_of_imbalance": "<= 0",
    "rounds_over_bound_worst": "<= 0",
    "cross_rack_over_kafka_worst": "<= 1 (one partition is added to both)",
    "cross_rack_over_kafka_sum": "< 1",
    "cross_rack_dearer_than_kafka": "[]",
    "racks_made_over_net": "<= 1.05; what is above is read across racks otherwise (docs/assignor.md)",
    "broken": "0",
    "cpu_over_before": "<= 1.1",
    "counts_changed": "[]",
}


def main() -> int:
    """Print the figures, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="REVISION", help="the commit whose assignor does the same in turn")
    parser.add_argument("--rounds", type=int, default=3, help="with --against, of each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        answer(figures())
        return 0
    try:
        results = figures_against(options.against, options.rounds) if options.against else figures()
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results))
        return 0
    for strategy, by_size in results["times_ms"].items():
        print(f"{strategy:20}", "  ".join(f"{size} {milliseconds} ms" for size, milliseconds in by_size.items()))
    for name, limit in TARGETS.items():
        if name in results:
            print(f"{name:40} {results[name]}  (wanted {limit})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
