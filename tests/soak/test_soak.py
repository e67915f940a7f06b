"""A query under fire: as many histories as there is time for in every run, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from riffle_spark.protocol.batch import driver
from riffle_spark.protocol.receipts import changes_of
from tests.kit.folders import CHECKOUT
from tests.soak.__main__ import main
from tests.soak.faults import Aim

SCHEDULES = 32


def soaked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Play schedules as the command does."""
    command = [sys.executable, "-m", "tests.soak", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=CHECKOUT, check=False)


def test_nothing_is_lost_or_doubled_whatever_befalls_which_step() -> None:
    """State, sinks and invariants hold in every history, and every fault has met every step that it can."""
    answer = soaked("--schedules", str(SCHEDULES), "--json")
    assert answer.returncode == 0, answer.stderr[-20_000:]
    figures = json.loads(answer.stdout)
    assert figures["schedules"] == SCHEDULES
    assert figures["failures"] == []


def test_a_seed_plays_the_same_history_in_every_process() -> None:
    """What was found can be played again."""
    once, again = (soaked("--seed", "7", "--schedules", "3", "--history", "--json").stdout for _ in range(2))
    assert once == again
    assert "driver 1 starts" in once


def test_a_history_that_fails_is_printed_with_what_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slot's changes that a commit leaves out are found by the first seed, and told."""
    monkeypatch.setattr(driver, "changes_of", lambda manifest, receipts: changes_of(manifest, receipts[1:]))
    assert main(["--seed", "0", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["failures"]
    assert "replay: ./run soak --seed 0" in said.err
    assert "shrunk, without" in said.err


def test_an_aim_is_read_as_it_is_printed(tmp_path: Path) -> None:
    """What a failure prints is what the command takes."""
    aim = Aim("error before", "slot: put delta", 3)
    assert Aim.read(str(aim)) == aim
