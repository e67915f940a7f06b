"""Schedules of a simulated query pass, replay, and print their failures.

The test plays only a few schedules. ``./run dst --cells`` also fails if a fault never met a possible step.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from riffle_spark.protocol.batch import driver
from riffle_spark.protocol.receipts import changes_of
from tests.dst.__main__ import main
from tests.kit.folders import CHECKOUT

SCHEDULES = 6


def dst(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``./run dst`` with these arguments. Return the result."""
    command = [sys.executable, "-m", "tests.dst", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=CHECKOUT, check=False)


def test_every_history_with_faults_ends_in_the_expected_state() -> None:
    """In every history, state, deliveries and invariants are as expected, although faults occur."""
    answer = dst("--schedules", str(SCHEDULES), "--processes", "2", "--json")
    assert answer.returncode == 0, answer.stderr[-20_000:]
    figures = json.loads(answer.stdout)
    assert figures["schedules"] == SCHEDULES
    assert figures["failures"] == []


@pytest.mark.long
def test_a_seed_plays_the_same_history_in_every_process() -> None:
    """A seed plays the same history with any number of processes."""
    arguments = ("--seed", "7", "--schedules", "2", "--history", "--json")
    once, first = (dst(*arguments, "--processes", processes).stdout for processes in ("1", "2"))
    assert once == first
    assert "driver 1 starts" in once


def test_a_failing_schedule_is_printed_with_its_replay_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing schedule is printed with the command that replays it: here a commit omits a slot's changes."""
    monkeypatch.setattr(driver, "changes_of", lambda manifest, receipts: changes_of(manifest, receipts[1:]))
    assert main(["--seed", "0", "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["failures"]
    assert "replay: ./run dst --seed 0" in output.err
