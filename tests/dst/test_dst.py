"""Play schedules of a simulated query in processes of their own. The run prints how many faults met how many steps;
``./run dst --cells`` fails for a step that a fault did not meet.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from riffle_spark.protocol.batch import driver
from riffle_spark.protocol.receipts import changes_of
from tests.dst.__main__ import main
from tests.dst.coverage import KEPT, Coverage, Told, aims_for
from tests.dst.faults import Aim
from tests.dst.players import AHEAD, RENEWED, Players
from tests.kit.folders import CHECKOUT

SCHEDULES = 6
_SOME_END = """
import os, sys, time
from tests.dst import __main__ as dst

def run(schedule):
    if schedule.seed == 3:
        os._exit(7)
    time.sleep(600 if schedule.seed == 5 else 0)
    return schedule.history

dst.Schedule.run, dst.MOST_SECONDS = run, 2.0
sys.exit(dst.main(["--schedules", "9", "--processes", "2", "--go-on", "--json"]))
"""


def dst(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Play schedules as the command does."""
    command = [sys.executable, "-m", "tests.dst", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=CHECKOUT, check=False)


def test_nothing_is_lost_or_doubled_whatever_befalls_which_step() -> None:
    """State, sinks and invariants hold in every history."""
    answer = dst("--schedules", str(SCHEDULES), "--processes", "2", "--json")
    assert answer.returncode == 0, answer.stderr[-20_000:]
    figures = json.loads(answer.stdout)
    assert figures["schedules"] == SCHEDULES
    assert figures["failures"] == []


@pytest.mark.long
def test_a_seed_plays_the_same_history_in_every_process() -> None:
    """What was found can be played again, however many play."""
    arguments = ("--seed", "7", "--schedules", "2", "--history", "--json")
    once, first = (dst(*arguments, "--processes", processes).stdout for processes in ("1", "2"))
    assert once == first
    assert "driver 1 starts" in once


def test_a_history_that_fails_is_printed_with_what_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commit that omits a slot's changes fails the first seed, and the output has the command to replay it."""
    monkeypatch.setattr(driver, "changes_of", lambda manifest, receipts: changes_of(manifest, receipts[1:]))
    assert main(["--seed", "0", "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["failures"]
    assert "replay: ./run dst --seed 0" in output.err


def test_a_process_that_dies_or_stands_still_is_a_failure_of_its_seed() -> None:
    """The other processes continue. The output has the replay command and the stack."""
    answer = subprocess.run(
        [sys.executable, "-c", _SOME_END], capture_output=True, text=True, timeout=120, cwd=CHECKOUT, check=False
    )
    figures = json.loads(answer.stdout)
    assert (answer.returncode, figures["schedules"]) == (1, 9)
    assert [figure.partition(":")[0] for figure in figures["failures"]] == ["seed 3", "seed 5"]
    assert "ended with 7" in figures["failures"][0]
    assert "replay: ./run dst --seed 5" in answer.stderr
    assert "line 8 in run" in answer.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("processes", [1, 3])
def test_a_run_is_the_same_however_many_play_it(processes: int) -> None:
    """The aims of each task depend only on results that precede it, in order."""
    count = RENEWED + 2 * AHEAD
    got = list[int]()
    by = set[int]()
    players = Players[int, tuple[int, int]](processes, lambda task: (task * 2, os.getpid()), lambda *_: (-1, -1))
    try:
        for answer, process in players.answers(lambda number: 1000 * len(got) + number, count, lambda: False):
            got.append(answer)
            by.add(process)
    finally:
        players.end()
    assert got == [2 * (1000 * max(number - AHEAD + 1, 0) + number) for number in range(count)]
    assert len(by) == 2 or processes > 1  # the one that has played long enough has another one in its place


def test_each_cell_of_steps_that_come_at_all_is_met_before_long() -> None:
    """Also for rare steps and steps that need a fault before. Memory is bounded."""
    coverage = Coverage()
    for number in range(1200):
        seed, aims = aims_for(coverage, number)
        coverage.add(_made_up(seed, aims))
    assert coverage.empty() == []
    assert min(coverage.met.values()) >= 3
    assert all(len(histories) <= KEPT for histories in coverage.reached.values())


def _made_up(seed: int, aims: tuple[Aim, ...]) -> Told:
    """Return the result of a made-up history of 40 steps that has fewer steps the more faults it has."""
    chance = random.Random(seed)
    pending = list(aims)
    met = list[Aim]()
    steps = Counter[str]()
    for _ in range(40):
        step = chance.choice(["slot: put delta", "driver: begins", "driver: put record"])
        step = "slot: read list" if chance.random() < 0.001 else step
        step = "driver: list record" if any(aim.kind == "hang" for aim in met) and chance.random() < 0.1 else step
        steps[step] += 1
        first = next((aim for aim in reversed(aims) if aim.nth), None) in pending
        for aim in [aim for aim in pending if aim.step == step and (0 < aim.nth <= steps[step] or not first)][:1]:
            pending.remove(aim)
            met.append(Aim(aim.kind, step, steps[step]))
            chance = random.Random(f"{seed} {met}")
    return Told(seed, tuple(met), steps, Counter((aim.kind, aim.step) for aim in met))


def test_an_aim_is_read_as_it_is_printed(tmp_path: Path) -> None:
    """What a failure prints is what the command takes."""
    aim = Aim("error before", "slot: put delta", 3)
    assert Aim.read(str(aim)) == aim
