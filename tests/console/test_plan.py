"""The command `riffle plan` reads scenario files and prints figures or text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from tests.kit.folders import DATA

CASES = DATA / "assignor_cases"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two scenario files."""
    for name in ("kip441_scale_out", "edge_balanced_already"):
        case = json.loads((CASES / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps(case["scenario"]))
    return tmp_path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, arguments)])


def test_a_folder_gives_one_line_of_json_per_file(folder: Path) -> None:
    """A folder of two files gives two lines of JSON with the documented fields."""
    done = _run("--scenario", folder, "--converge", "--json")
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert [line["scenario"] for line in lines] == ["edge_balanced_already", "kip441_scale_out"]
    phase = lines[1]["converge"]["phases"][0]
    for field in ("assignment", "balance", "cross_rack", "moves", "rounds", "converged", "stable"):
        assert field in phase
    assert phase["net_stateful_active_moves"] == phase["fewest_stateful_active_moves"] == 1
    assert lines[1]["single"]["broken"] == []


def test_history_adds_every_round_with_the_lags_before_it(folder: Path) -> None:
    """`--history` shows every round with the lags before it, until a warm-up has caught up."""
    done = _run("--scenario", folder / "kip441_scale_out.json", "--history", "--json")
    first, second = json.loads(done.output)["converge"]["phases"][0]["history"]
    assert first["assignment"]["I3"]["warmup"] == ["0_0", "0_2"]
    assert "0_0" not in first["lags_before"]["I3"]
    assert second["lags_before"]["I3"]["0_0"] == 0
    assert second["assignment"]["I3"]["active"] == ["0_0"]
    assert {move["goal"] for move in first["moves"]} == {"balance", "standby"}


def test_a_compressed_file_gives_the_same_output(folder: Path) -> None:
    """A `.json.gz` file gives the same output as the `.json` file."""
    plain = folder / "kip441_scale_out.json"
    packed = folder / "packed.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert _run("--scenario", packed, "--json").output == _run("--scenario", plain, "--json").output


def test_text_shows_owners_standbys_and_further_rebalances(folder: Path) -> None:
    """Text output shows owners and standbys, announces further rebalances, and says if there are no moves."""
    done = _run("--scenario", folder / "kip441_scale_out.json", "--strategy", "min_cost")
    assert "I1: owns 0_0,0_2  standby 0_1" in done.output
    assert "another rebalance follows" in done.output
    quiet = _run("--scenario", folder / "edge_balanced_already.json").output.splitlines()
    assert {"  moves none", "  balance even"} <= set(quiet)
    assert done.exit_code == 0


def test_the_command_warns_of_ignored_events(folder: Path) -> None:
    """Without --converge the command warns that a file's events are ignored."""
    case = json.loads((CASES / "kip441_scale_in_event.json").read_text())["scenario"]
    (folder / "event.json").write_text(json.dumps(case))
    assert "its events are left out" in _run("--scenario", folder / "event.json").stderr
    assert "its events" not in _run("--scenario", folder / "event.json", "--converge").stderr


def test_the_error_for_an_invalid_scenario_names_the_file(tmp_path: Path) -> None:
    """The error for a file that is no scenario names the file."""
    (tmp_path / "x.json").write_text("{}")
    done = _run("--scenario", tmp_path / "x.json")
    assert done.exit_code == 1
    assert "RIFFLE-0254" in done.output
    assert "x.json" in done.output


def test_a_folder_without_scenarios_is_refused(tmp_path: Path) -> None:
    """A folder without files of scenarios is refused with its path, instead of printing nothing."""
    (tmp_path / "notes.txt").write_text("{}")
    done = _run("--scenario", tmp_path)
    assert (done.exit_code, str(tmp_path) in done.output) == (1, True)
    assert "has no .json or .json.gz file" in done.output
