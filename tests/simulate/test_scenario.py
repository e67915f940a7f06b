"""Scenario files: every field is honoured, and what is unknown is refused with the nearest name there is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings, TaskId
from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from riffle_spark.settings import LINES
from riffle_spark.simulate import scenario
from riffle_spark.simulate.group import group_of, run
from riffle_spark.simulate.scenario import Scenario, scenario_of
from tests.kit.folders import DATA

CASE = json.loads((DATA / "assignor_cases" / "kip441_scale_in_event.json").read_text())["scenario"]

Json = dict[str, Any]


def changed(*changes: Callable[[Json], object], **config: object) -> Scenario:
    """Return the case with changes, and with settings."""
    content = copy.deepcopy(CASE)
    content["config"] |= config
    for change in changes:
        change(content)
    return scenario_of(content)


def owners(scenario: Scenario) -> dict[str, str]:
    """Return who owns each task in the end."""
    last = run(scenario)[-1].after.owners
    return {scenario.names[task]: owner for task, owner in last.items()}


def one_round(scenario: Scenario) -> dict[str, str]:
    """Return who owns each task after one assignment."""
    done = assign(group_of(scenario).view(), scenario.settings)
    return {scenario.names[task]: owner for task, owner in done.owners.items()}


WRITTEN: Json = {
    "acceptable_recovery_lag": 7, "num_standbys": 2,
    "standby_mode": "snapshot_pointer", "max_warmup_replicas": 3, "balance_band": 0.5,
    "rack_aware_assignment_strategy": "min_cost", "rack_aware_assignment_traffic_cost": 4,
    "rack_aware_assignment_non_overlap_cost": 5, "rack_aware_assignment_tags": ["zone"], "assignor": "sticky",
    "include": {"disk": "ssd"}, "exclude": ["id=I2"], "forced_awareness": {"zone": ["a", "b"]},
    "rebalance_enable": "owners",
}  # fmt: skip


READ: Json = {
    **WRITTEN, "rack_aware_assignment_tags": ("zone",), "include": (("disk", "ssd"),), "exclude": (("id", "I2"),),
    "forced_awareness": {"zone": ("a", "b")},
}  # fmt: skip


def test_every_setting_of_assignment_can_be_said_in_a_file() -> None:
    """None is passed over. One that was removed is refused with what to do instead."""
    assert {*WRITTEN} == {each.name for each in fields(AssignSettings)} & LINES.keys()
    with pytest.raises(ConfigError, match="RIFFLE-0247"):
        changed(store_balance=0)
    content = {**CASE, "config": WRITTEN}
    assert scenario_of(content).settings == AssignSettings(**READ)


def test_neutral_names_say_the_same() -> None:
    """Files for other assignors have names of their own; one setting under two names is refused."""
    said = {neutral: WRITTEN[ours] for neutral, ours in scenario._NEUTRAL.items()}
    found = scenario_of({**CASE, "config": said}).settings
    assert found == AssignSettings(**{ours: READ[ours] for ours in scenario._NEUTRAL.values()})
    with pytest.raises(ConfigError, match="RIFFLE-0256"):
        changed(num_standby=1, num_standbys=1)


def test_the_assignor_of_a_file_decides() -> None:
    """Another assignor gives other owners; its name is in what the command prints."""
    assert one_round(changed(assignor="hash")) != one_round(changed())
    with pytest.raises(ConfigError, match="RIFFLE-0109"):
        one_round(changed(assignor="stickey"))


def test_excluded_members_and_pins_of_a_file_count() -> None:
    """What is excluded owns nothing in the end, what is pinned stays where it is pinned to."""
    assert "I1" not in owners(changed(exclude={"id": "I1"})).values()
    assert owners(changed(lambda file: file.update(pins={"0_2": "I1"})))["0_2"] == "I1"
    assert owners(changed(lambda file: file.update(pins={"0_2": "I2"})))["0_2"] == "I2"


def test_rebalancing_that_is_off_moves_nothing() -> None:
    """A group that is not level stays as it is."""

    def empty(file: Json) -> None:
        file["clients"][0]["prev_active"], file["clients"][1]["prev_active"] = ["0_0", "0_1"], []
        file["events"] = []

    assert "I2" not in owners(changed(empty, rebalance_enable="none")).values()
    assert "I2" in owners(changed(empty)).values()


def test_measured_weights_and_memory_are_read() -> None:
    """A task's weight and memory, and a member's, reach the assignor."""

    def weigh(file: Json) -> None:
        file["tasks"][0] |= {"weight": 9, "memory_bytes": 100}
        file["clients"][0]["memory_bytes"] = 150

    found = changed(weigh)
    assert (found.tasks[0].weight, found.tasks[0].memory_bytes) == (9, 100)
    assert (found.tasks[1].weight, found.tasks[1].memory_bytes) == (None, 0)
    assert [client.member.memory_bytes for client in found.clients] == [150, None, None]


SLIPS: list[tuple[Callable[[Json], object], str, str]] = [
    (lambda f: f.update(clint=[]), "field 'clint'", "clients"),
    (lambda f: f["config"].update(num_stanby=1), "setting 'num_stanby'", "num_standby"),
    (lambda f: f["clients"][0].update(thread=2), "field of a client 'thread'", "threads"),
    (lambda f: f["tasks"][0].update(statefull=True), "field of a task 'statefull'", "stateful"),
    (lambda f: f["tasks"][0]["partitions"][0].update(rack=["a"]), "field of a partition 'rack'", "replica_racks"),
    (lambda f: f["tasks"][0]["partitions"][0].update(role="sources"), "role 'sources'", "source"),
    (lambda f: f["events"][0].update(leave=["I1"]), "field of an event 'leave'", ""),
    (lambda f: f["events"].append({"drop": ["I33"]}), "client 'I33'", "I"),
    (lambda f: f["events"].append({"resurrect": [{"id": "I1"}]}), "client that left 'I1'", "I3"),
    (lambda f: f["events"].append({"resurrect": [{"id": "I3", "lags": 4}]}), "field 'lags'", "lag"),
    (lambda f: f["events"].append({"add": [{"id": "I9", "rak": "a"}]}), "field of a client 'rak'", "rack"),
    (lambda f: f["events"].append({"add": [{"id": "I1"}]}), "two clients 'I1'", ""),
    (lambda f: f["clients"].append(f["clients"][0]), "two clients 'I1'", ""),
    (lambda f: f["tasks"].append(f["tasks"][0]), "two tasks '0_0'", ""),
    (lambda f: f["clients"][0].update(prev_active=["0_9"]), "task '0_9'", "0_"),
    (lambda f: f["clients"][0].update(lags={"00": 1}), "task '00'", "0_"),
    (lambda f: f.update(pins={"0_7": "I1"}), "task '0_7'", "0_"),
    (lambda f: f.update(pins={"0_0": "J1"}), "client 'J1'", "I1"),
    (lambda f: f["config"].update(retained_for=1), "setting 'retained_for'", "leave it out of config"),
    (lambda f: f["clients"][1]["prev_active"].append("0_0"), "two owners of task '0_0'", "one client"),
    (lambda f: f.update(clients=[], events=[]), "nobody to place tasks on", "one client"),
    (lambda f: f.update(events=[{"drop": [one["id"] for one in f["clients"]]}]), "nobody is left", "drop fewer"),
    (lambda f: f["config"].update(num_standby=1, num_standbys=1), "num_standby and num_standbys are one", ""),
]  # fmt: skip


@pytest.mark.parametrize(("slip", "said", "near"), SLIPS, ids=[said for _, said, _ in SLIPS])
def test_what_a_file_cannot_name_is_refused_with_the_nearest(
    slip: Callable[[Json], object], said: str, near: str
) -> None:
    """At every level: the error says what is unknown, what was probably meant, and where it stands."""
    with pytest.raises(ConfigError) as caught:
        changed(slip)
    assert said in caught.value.problem
    assert near in caught.value.remedy
    assert caught.value.remedy
    assert caught.value.where


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("strategy", "min-cost", "one of none, min_cost, balance_subtopology"),
        ("rebalance_enable", "off", "one of all, owners, standbys, none"),
        ("num_standby", -1, "from 0 up"),
        ("max_warmup", 0, "from 1 up"),
        ("exclude", "I1", "pairs such as 'rack=a'"),
        ("forced_awareness", ["zone"], "values by tag"),
        ("assignor", "", "text"),
    ],
)
def test_what_a_setting_of_a_file_cannot_be_is_refused(name: str, value: object, allowed: str) -> None:
    """Any text is not a strategy, any number not a count."""
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        changed(**{name: value})


SHAPES: list[tuple[Callable[[Json], object], str]] = [
    (lambda f: f.pop("name"), "the file has no 'name'"),
    (lambda f: f["clients"][0].pop("id"), "the client has no 'id'"),
    (lambda f: f["tasks"][0].pop("stateful"), "the task has no 'stateful'"),
    (lambda f: f["clients"].append("I9"), "'I9' is no client"),
    (lambda f: f.update(events={"drop": ["I1"]}), "events = .* a list"),
    (lambda f: f["events"].append({"drop": "I1"}), "drop = 'I1' .* a list of names"),
    (lambda f: f["events"].append({"add": {"id": "I9"}}), "add = .* a list"),
    (lambda f: f["events"].append({"resurrect": {"id": "I1", "lag": 4}}), "resurrect = .* a list"),
    (lambda f: f["clients"][0].update(threads="2"), "threads = '2' .* whole number"),
    (lambda f: f["clients"][0].update(threads=0), "threads = 0 .* from 1 up"),
    (lambda f: f["clients"][0].update(tags=["zone=a"]), "tags = .* a table"),
    (lambda f: f["clients"][0].update(lags={"0_0": -7}), "lags = .* -2 .running. or -3"),
    (lambda f: f["clients"][0].update(prev_active="0_0"), "prev_active = '0_0' .* a list of names"),
    (lambda f: f["tasks"][0].update(weight=-1), "weight = -1 .* from 0 up"),
    (lambda f: f["tasks"][0].update(end_offset_sum=1.5), "end_offset_sum = 1.5 .* whole number"),
    (lambda f: f["tasks"][0].update(stateful="no"), "stateful = 'no' .* true or false"),
]  # fmt: skip


@pytest.mark.parametrize(("slip", "said"), SHAPES, ids=[said for _, said in SHAPES])
def test_what_a_file_cannot_say_is_refused_with_what_it_can(slip: Callable[[Json], object], said: str) -> None:
    """Texts for lists, fields that are missing, numbers that are none: the error says which, and what is allowed."""
    with pytest.raises(ConfigError, match=said) as caught:
        changed(slip)
    assert "docs/assignor.md" in caught.value.remedy


def test_a_stateful_task_needs_no_partitions_to_be_one() -> None:
    """Who leaves partitions out means no stateless task; who lists them without a changelog does."""

    def leave_out(file: Json) -> None:
        for number, task in enumerate(file["tasks"]):
            task["stateful"] = True
            if number == 0:
                task["partitions"] = [{"role": "source"}]
            else:
                del task["partitions"]

    assert [task.kind for task in changed(leave_out).tasks[:2]] == ["stateless", "stateful"]


def test_the_command_names_the_file_and_the_place(tmp_path: Path) -> None:
    """One file of many is wrong: which, and where in it, is in the message; a right one tells its assignor."""
    wrong, right = tmp_path / "wrong.json", tmp_path / "right.json"
    wrong.write_text(json.dumps({**CASE, "config": {**CASE["config"], "rebalance_enabled": "none"}}))
    right.write_text(json.dumps({**CASE, "config": {**CASE["config"], "assignor": "sticky"}}))
    refused = CliRunner().invoke(main, ["plan", "--scenario", str(wrong)])
    assert refused.exit_code == 1
    for part in ("wrong.json", "rebalance_enabled", "did you mean 'rebalance_enable'?"):
        assert part in refused.output
    shown = CliRunner().invoke(main, ["plan", "--json", "--scenario", str(right)])
    assert json.loads(shown.stdout)["assignor"] == "riffle_spark sticky"


@pytest.mark.parametrize("said", [["rolback"], ["rollback", "--rot", "x"], ["plan", "--scenaro", "x"]])
def test_the_command_line_suggests_what_was_meant(said: list[str]) -> None:
    """Verbs and options alike."""
    found = CliRunner().invoke(main, said)
    assert found.exit_code == 2
    assert "Did you mean" in found.output


def test_the_pin_of_a_member_that_is_away_waits_for_it() -> None:
    """A pin to a member that leaves holds nothing up, and counts again once the member is back."""

    def there_and_back(file: Json) -> None:
        file["pins"] = {"0_0": "I3"}
        file["events"] = [{"drop": ["I3"]}, {"resurrect": [{"id": "I3", "lag": 0}]}]

    first, away, back = (phase.after.owners[TaskId("0000", 0)] for phase in run(changed(there_and_back)))
    assert (first, back) == ("I3", "I3")
    assert away != "I3"
