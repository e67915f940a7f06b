"""Worked examples with the assignment of each round, and the reason for each difference from Kafka Streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from riffle_spark.simulate.figures import Json, figures_of_run
from riffle_spark.simulate.group import run_scenario
from riffle_spark.simulate.scenario import parse_scenario
from tests.kit.folders import DATA

CASES = sorted((DATA / "assignor_cases").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_round_equals_that_in_the_file_of_the_case(path: Path) -> None:
    """The rounds of each phase equal those in the file of the case."""
    case = cast(Json, json.loads(path.read_text()))
    scenario = parse_scenario(cast(Json, case["scenario"]))
    phases = cast("list[Json]", figures_of_run(scenario, run_scenario(scenario), keep=True, history=True)["phases"])
    rounds = [[step["assignment"] for step in cast("list[Json]", phase["history"])] for phase in phases]
    assert rounds == case["expected_rounds"], f"replay: riffle plan --history --scenario {path} (the scenario part)"


def test_all_seventeen_cases_exist() -> None:
    """The cases are those of KIP-441 and KIP-925, and the edge cases: seventeen files."""
    assert len(CASES) == 17


def test_the_learner_case_of_kip_441_moves_two_tasks() -> None:
    """S4 warms up for T1 and owns it, then S5 warms up for T3. S1 to S5 end with one task each."""
    case = cast(Json, json.loads((DATA / "assignor_cases" / "kip441_learner_scale_up.json").read_text()))
    _, fourth, fifth = cast("list[list[dict[str, dict[str, list[str]]]]]", case["expected_rounds"])
    assert [step["S4"]["warmup"] for step in fourth] == [["0_0"], []]
    assert [step["S5"]["warmup"] for step in fifth] == [["0_2"], []]
    assert {member: len(tasks["active"]) for member, tasks in fifth[-1].items()} == dict.fromkeys(
        ("S1", "S2", "S3", "S4", "S5"), 1
    )
