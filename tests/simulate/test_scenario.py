"""Scenario files: every field has an effect, and unknown names and wrong values are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, TaskId, View
from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from riffle_spark.settings import SETTING_LINES
from riffle_spark.simulate import scenario
from riffle_spark.simulate.figures import find_balance_violations, find_broken_properties
from riffle_spark.simulate.group import initial_group, run_scenario
from riffle_spark.simulate.scenario import Scenario, parse_scenario, read_scenario
from tests.kit.folders import DATA

CASE = json.loads((DATA / "assignor_cases" / "kip441_scale_in_event.json").read_text())["scenario"]

Json = dict[str, Any]


def changed(*changes: Callable[[Json], object], **config: object) -> Scenario:
    """Return the case with changed content and settings."""
    content = copy.deepcopy(CASE)
    content["config"] |= config
    for change in changes:
        change(content)
    return parse_scenario(content)


def owners(scenario: Scenario) -> dict[str, str]:
    """Return the final owner of each task."""
    last = run_scenario(scenario)[-1].after.owners
    return {scenario.names[task]: owner for task, owner in last.items()}


def one_round(scenario: Scenario) -> dict[str, str]:
    """Return the owner of each task after one assignment."""
    done = assign(initial_group(scenario).view(), scenario.settings)
    return {scenario.names[task]: owner for task, owner in done.owners.items()}


WRITTEN: Json = {
    "acceptable_recovery_lag": 7,
    "num_standbys": 2,
    "standby_mode": "snapshot_pointer",
    "max_warmup_replicas": 3,
    "balance_band": 0.5,
    "rack_aware_assignment_strategy": "min_cost",
    "rack_aware_assignment_traffic_cost": 4,
    "rack_aware_assignment_non_overlap_cost": 5,
    "rack_aware_assignment_tags": ["zone"],
    "assignor": "sticky",
    "include": {"disk": "ssd"},
    "exclude": ["id=I2"],
    "forced_awareness": {"zone": ["a", "b"]},
    "rebalance_enable": "owners",
}


READ: Json = {
    **WRITTEN,
    "rack_aware_assignment_tags": ("zone",),
    "include": (("disk", "ssd"),),
    "exclude": (("id", "I2"),),
    "forced_awareness": {"zone": ("a", "b")},
}


def test_a_scenario_file_can_set_every_assignment_setting() -> None:
    """A scenario file can set every assignment setting. A removed setting is refused with a remedy."""
    assert {*WRITTEN} == {field.name for field in fields(AssignSettings)} & SETTING_LINES.keys()
    with pytest.raises(ConfigError, match="RIFFLE-0247"):
        changed(store_balance=0)
    content = {**CASE, "config": WRITTEN}
    assert parse_scenario(content).settings == AssignSettings(**READ)


def test_neutral_setting_names_are_accepted() -> None:
    """Files for other assignors can use neutral setting names. A setting under both names is refused."""
    config = {neutral: WRITTEN[ours] for neutral, ours in scenario._NEUTRAL.items()}
    settings = parse_scenario({**CASE, "config": config}).settings
    assert settings == AssignSettings(**{ours: READ[ours] for ours in scenario._NEUTRAL.values()})
    with pytest.raises(ConfigError, match="RIFFLE-0256"):
        changed(num_standby=1, num_standbys=1)


def test_a_setting_without_a_value_keeps_its_default() -> None:
    """A setting that is null in a file has its default."""
    assert changed(acceptable_recovery_lag=None).settings.acceptable_recovery_lag == 10_000


def test_a_group_that_never_settles_ends_the_run() -> None:
    """An assignor that always asks for another round is stopped after a limit, and later events are not played."""

    def restless(before: View, settings: AssignSettings) -> Assignment:
        return replace(assign(before, settings), needs_probe=True)

    assert len(run_scenario(changed())) == 2
    (phase,) = run_scenario(changed(), assignor=restless)
    assert (phase.converged, phase.stable, len(phase.rounds)) == (False, False, 2 * (3 + 3) + 10)


def test_broken_properties_of_an_assignment_are_named() -> None:
    """Missing standbys, copies on members that lag, and unbalanced owners are named with their task."""
    settled = changed()
    group = initial_group(settled)
    first, second, third = (task.id for task in group.tasks)
    assert find_broken_properties(group, assign(group.view(), settled.settings), settled.settings) == []
    done = Assignment({first: "I2", second: "I2", third: "I2"}, standbys={first: ("I3",), second: ("I3",)})
    assert find_broken_properties(group, done, settled.settings) == [
        f"owner_not_most_caught_up {first}",
        f"standby_not_next_most_caught_up {second}",
        f"standby_missing {third}",
    ]
    assert find_balance_violations(group, done) == ["stateful_owners_not_balanced", "owners_not_balanced"]


def test_a_scenario_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is larger than any scenario is refused before it is parsed."""
    monkeypatch.setattr(scenario, "_BYTES_MOST", 100)
    (tmp_path / "large.json").write_text(json.dumps(CASE))
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        read_scenario(tmp_path / "large.json")


def test_the_assignor_of_the_file_computes_the_owners() -> None:
    """The assignor in the file computes the owners. An unknown one is refused."""
    assert one_round(changed(assignor="hash")) != one_round(changed())
    with pytest.raises(ConfigError, match="RIFFLE-0109"):
        one_round(changed(assignor="stickey"))


def test_excluded_members_and_pins_of_a_file_apply() -> None:
    """Excluded members end without tasks, and pinned tasks end on their members."""
    assert "I1" not in owners(changed(exclude={"id": "I1"})).values()
    assert owners(changed(lambda file: file.update(pins={"0_2": "I1"})))["0_2"] == "I1"
    assert owners(changed(lambda file: file.update(pins={"0_2": "I2"})))["0_2"] == "I2"


def test_nothing_moves_with_rebalancing_off() -> None:
    """With rebalancing off, an unbalanced group stays unbalanced."""

    def empty(file: Json) -> None:
        file["clients"][0]["prev_active"] = ["0_0", "0_1"]
        file["clients"][1]["prev_active"] = []
        file["events"] = []

    assert "I2" not in owners(changed(empty, rebalance_enable="none")).values()
    assert "I2" in owners(changed(empty)).values()


def test_measured_weights_and_memory_are_read() -> None:
    """The weight and memory of tasks and the memory of members are read from the file."""

    def weigh(file: Json) -> None:
        file["tasks"][0] |= {"weight": 9, "memory_bytes": 100}
        file["clients"][0]["memory_bytes"] = 150

    scenario = changed(weigh)
    assert (scenario.tasks[0].weight, scenario.tasks[0].memory_bytes) == (9, 100)
    assert (scenario.tasks[1].weight, scenario.tasks[1].memory_bytes) == (None, 0)
    assert [client.member.memory_bytes for client in scenario.clients] == [150, None, None]


UNKNOWN = "RIFFLE-0480"
TWICE = "RIFFLE-0260"
VALUE = "RIFFLE-0249"
WRONG: list[tuple[Callable[[Json], object], str, str]] = [
    (lambda f: f.update(clint=[]), UNKNOWN, "'clint'"),
    (lambda f: f["config"].update(num_stanby=1), UNKNOWN, "'num_stanby'"),
    (lambda f: f["clients"][0].update(thread=2), UNKNOWN, "'thread'"),
    (lambda f: f["tasks"][0].update(statefull=True), UNKNOWN, "'statefull'"),
    (lambda f: f["tasks"][0]["partitions"][0].update(rack=["a"]), UNKNOWN, "'rack'"),
    (lambda f: f["tasks"][0]["partitions"][0].update(role="sources"), UNKNOWN, "'sources'"),
    (lambda f: f["events"][0].update(leave=["I1"]), UNKNOWN, "'leave'"),
    (lambda f: f["events"].append({"drop": ["I33"]}), UNKNOWN, "'I33'"),
    (lambda f: f["events"].append({"resurrect": [{"id": "I1"}]}), UNKNOWN, "'I1'"),
    (lambda f: f["events"].append({"resurrect": [{"id": "I3", "lags": 4}]}), UNKNOWN, "'lags'"),
    (lambda f: f["events"].append({"add": [{"id": "I9", "rak": "a"}]}), UNKNOWN, "'rak'"),
    (lambda f: f["events"].append({"add": [{"id": "I1"}]}), TWICE, "'I1'"),
    (lambda f: f["clients"].append(f["clients"][0]), TWICE, "'I1'"),
    (lambda f: f["tasks"].append(f["tasks"][0]), TWICE, "'0_0'"),
    (lambda f: f["clients"][0].update(prev_active=["0_9"]), UNKNOWN, "'0_9'"),
    (lambda f: f["clients"][0].update(lags={"00": 1}), UNKNOWN, "'00'"),
    (lambda f: f.update(pins={"0_7": "I1"}), UNKNOWN, "'0_7'"),
    (lambda f: f.update(pins={"0_0": "J1"}), UNKNOWN, "'J1'"),
    (lambda f: f["config"].update(retained_for=1), UNKNOWN, "'retained_for'"),
    (lambda f: f["clients"][1]["prev_active"].append("0_0"), TWICE, "'0_0'"),
    (lambda f: f.update(clients=[], events=[]), "RIFFLE-0259", "no clients"),
    (lambda f: f.update(events=[{"drop": [client["id"] for client in f["clients"]]}]), "RIFFLE-0261", "No client"),
    (lambda f: f["config"].update(num_standby=1, num_standbys=1), "RIFFLE-0256", "num_standby and num_standbys"),
    (lambda f: f["config"].update(strategy="min-cost"), VALUE, "min-cost"),
    (lambda f: f["config"].update(num_standby=-1), VALUE, "num_standby = -1"),
    (lambda f: f.pop("name"), "RIFFLE-0258", "The file has no 'name'"),
    (lambda f: f["clients"][0].pop("id"), "RIFFLE-0258", "The client has no 'id'"),
    (lambda f: f["tasks"][0].pop("stateful"), "RIFFLE-0258", "The task has no 'stateful'"),
    (lambda f: f["clients"].append("I9"), "RIFFLE-0257", "'I9'"),
    (lambda f: f.update(events={"drop": ["I1"]}), VALUE, "events = "),
    (lambda f: f["events"].append({"drop": "I1"}), VALUE, "drop = 'I1'"),
    (lambda f: f["clients"][0].update(threads="2"), VALUE, "threads = '2'"),
    (lambda f: f["clients"][0].update(threads=0), VALUE, "threads = 0"),
    (lambda f: f["clients"][0].update(tags=["zone=a"]), VALUE, "tags = "),
    (lambda f: f["clients"][0].update(lags={"0_0": -7}), VALUE, "lags = "),
    (lambda f: f["tasks"][0].update(end_offset_sum=1.5), VALUE, "end_offset_sum = 1.5"),
    (lambda f: f["tasks"][0].update(stateful="no"), VALUE, "stateful = 'no'"),
]


@pytest.mark.parametrize(("mistake", "message_id", "value"), WRONG, ids=[f"{m}: {v}" for _, m, v in WRONG])
def test_an_invalid_scenario_file_is_refused(mistake: Callable[[Json], object], message_id: str, value: str) -> None:
    """The error names the offending value and its place in the file."""
    with pytest.raises(ConfigError, match=message_id) as refused:
        changed(mistake)
    assert value in refused.value.problem
    assert refused.value.where


def test_a_task_without_partitions_is_stateful() -> None:
    """A task without partitions is stateful. One whose partitions include no changelog is stateless."""

    def leave_out(file: Json) -> None:
        for number, task in enumerate(file["tasks"]):
            task["stateful"] = True
            if number == 0:
                task["partitions"] = [{"role": "source"}]
            else:
                del task["partitions"]

    assert [task.kind for task in changed(leave_out).tasks[:2]] == ["stateless", "stateful"]


def test_the_command_reports_the_invalid_file_and_place(tmp_path: Path) -> None:
    """The message names the wrong file and the place in it. The output of a correct file names its assignor."""
    wrong = tmp_path / "wrong.json"
    right = tmp_path / "right.json"
    wrong.write_text(json.dumps({**CASE, "config": {**CASE["config"], "rebalance_enabled": "none"}}))
    right.write_text(json.dumps({**CASE, "config": {**CASE["config"], "assignor": "sticky"}}))
    refused = CliRunner().invoke(main, ["plan", "--scenario", str(wrong)])
    assert refused.exit_code == 1
    for part in ("wrong.json", "rebalance_enabled", "'rebalance_enable'"):
        assert part in refused.output
    shown = CliRunner().invoke(main, ["plan", "--json", "--scenario", str(right)])
    assert json.loads(shown.stdout)["assignor"] == "riffle_spark sticky"


def test_a_pin_to_an_absent_member_applies_when_it_returns() -> None:
    """While a pinned member is away, another member owns the task. The pin applies again when the member returns."""

    def there_and_back(file: Json) -> None:
        file["pins"] = {"0_0": "I3"}
        file["events"] = [{"drop": ["I3"]}, {"resurrect": [{"id": "I3", "lag": 0}]}]

    first, away, back = (phase.after.owners[TaskId("0000", 0)] for phase in run_scenario(changed(there_and_back)))
    assert (first, back) == ("I3", "I3")
    assert away != "I3"
