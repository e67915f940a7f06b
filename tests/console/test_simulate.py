"""`riffle simulate` plays a world and prints a table or JSON, and `riffle capacity` computes from figures or a root."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.simulate.policy import POLICIES
from riffle_spark.simulate.world_file import SHIPPED
from tests.kit.pages import CHECKOUT

WORLD = {
    "name": "two come and one goes", "seconds": "5 min", "every": 5, "config": {"max_warmup_replicas": 4},
    "members": [{"id": "m{}", "count": 2, "restore_bytes_per_second": 1e6}],
    "tasks": [{"subtopology": "s", "count": 6, "state_bytes": 1e7, "rows_per_second": 10}],
    "events": [{"at": "1 min", "join": [{"id": "new"}]}, {"at": "3 min", "lose": ["m0"]}],
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Return the file of a small world."""
    path = tmp_path / "small.json"
    path.write_text(json.dumps(WORLD))
    return path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_a_table_has_a_line_for_each_policy_and_explains_it(world: Path) -> None:
    """Without options all policies are played, and each line of the table is explained below it."""
    done = _run("simulate", world)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "two come and one goes: 2 members, 6 tasks, 5 min, seed 0"
    assert [line.split()[0] for line in lines[2 : 2 + len(POLICIES)]] == list(POLICIES)
    assert all(f"  {name}: {policy.description}" in lines for name, policy in POLICIES.items())


def test_json_has_one_object_per_policy_and_optional_history(world: Path) -> None:
    """`--json` prints one object of sums per policy, and `--history` adds the figures of each batch."""
    done = _run("simulate", world, "--json", "--history", "--policy", "riffle", "--policy", "spark")
    ours, spark = (json.loads(line) for line in done.stdout.splitlines())
    assert (ours["policy"], spark["policy"]) == ("riffle", "spark")
    assert spark["rebalances"] == 2
    assert sum(ours["task_seconds_stopped_by_cause"].values()) == pytest.approx(ours["task_seconds_stopped"])
    history = ours["history"]
    assert len(history["seconds"]) == 60
    assert {name: counts[-1] for name, counts in history["owners"].items()} == {"m0": 0, "m1": 3, "new": 3}
    assert sum(history["moves"]) == ours["moves"]


def test_each_warning_of_the_assignor_is_shown_once(world: Path) -> None:
    """Each warning of the assignor is shown once, with its policy in the text."""
    world.write_text(json.dumps({**WORLD, "config": {"assignor": "os.path.join", "include": {"rack": "zz"}}}))
    printed = [line for line in _run("simulate", world, "--policy", "riffle").stdout.splitlines() if "warning" in line]
    warnings = json.loads(_run("simulate", world, "--policy", "riffle", "--json").stdout)["warnings"]
    assert printed == [f"warning of riffle: {each}" for each in warnings]
    assert len(set(warnings)) == len(warnings) > 1


def test_invalid_options_are_refused_before_the_world_is_played(world: Path) -> None:
    """`--history` without `--json` and an unknown policy of a file are refused before the world is played."""
    assert "--history requires --json" in _run("simulate", world, "--history").output
    world.write_text(json.dumps({**WORLD, "policies": ["rifle"]}))
    assert "Correct it in the field policies" in _run("simulate", world, "--policy", "riffle").output


def test_the_seed_option_replaces_the_files_seed(tmp_path: Path) -> None:
    """`--seed` replaces the file's seed and so changes random sizes."""
    spread = {**WORLD, "tasks": [{**WORLD["tasks"][0], "spread": 0.5}]}  # type: ignore[index]
    (tmp_path / "spread.json").write_text(json.dumps(spread))
    done = [
        json.loads(_run("simulate", tmp_path / "spread.json", "--seed", seed, "--policy", "spark", "--json").stdout)
        for seed in (1, 1, 2)
    ]
    assert done[0] == done[1]
    assert done[0]["bytes_fetched_by_owners"] != done[2]["bytes_fetched_by_owners"]


def test_unknown_policies_and_worlds_are_refused_with_the_nearest(world: Path) -> None:
    """An unknown policy or world is refused with the most similar name, and a damaged file with a remedy."""
    assert "Did you mean 'riffle'" in _run("simulate", world, "--policy", "rifle").output
    assert "Did you mean 'zone_outage'" in _run("simulate", "zone-outage").output
    (world.parent / "torn.json").write_text("{")
    assert "Not a world" in _run("simulate", world.parent / "torn.json").output


def test_the_help_and_the_page_name_every_world_that_is_shipped() -> None:
    """The help and the documentation name every world that the package contains."""
    shown, page = _run("simulate", "--help").output, (CHECKOUT / "docs" / "simulator.md").read_text()
    assert [name for name in SHIPPED if name not in shown or f"`{name}`" not in page] == []


def test_capacity_prints_text_or_json_and_warns_of_few_key_groups() -> None:
    """`riffle capacity` prints text or JSON, and warns if there are too few key-groups for the workers."""
    arguments = ("capacity", "--rows-per-second", 1e6, "--rows-per-worker", 9000, "--state-bytes", 120e9)
    capacity = json.loads(_run(*arguments, "--json").stdout)
    assert (capacity["total_workers"], capacity["num_hosts"]) == (112, 28)
    text = _run(*arguments).output
    assert re.search(r"^Workers \(slots\) +112$", text, re.MULTILINE)
    assert re.search(r"^Hosts +28, limited by cores$", text, re.MULTILINE)
    assert "128 key-groups cannot be balanced over 112 slots" in text
    rates = ("capacity", "--rows-per-second", 1, "--rows-per-worker", 1)
    for words in ((), ("--state-bytes", 0, "file:///r")):
        assert "--state-bytes or ROOT is required" in _run(*rates, *words).output


def test_a_named_settings_file_must_exist(tmp_path: Path) -> None:
    """A settings file that is named must exist, and the default one may be missing."""
    arguments = ("capacity", "--rows-per-second", 1, "--rows-per-worker", 1, "--state-bytes", 1)
    assert "does not exist" in _run(*arguments, "--conf-file", tmp_path / "nope.toml").output
    assert _run(*arguments).exit_code == 0
