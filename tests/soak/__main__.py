"""``./run soak --schedules N [--seed S] [--json]``: histories of a query under fire, and what met which step.

Each seed plays one schedule. One that fails is printed with its history, and shrunk: faults and actors are left out one
at a time while it still fails. ``--seed S`` plays that one alone, or ``--schedules`` of them from there on.
``--planted`` plays them on copies of the checkout that have a bug planted each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.faults import KINDS, Aim, impossible
from tests.soak.planting import planted
from tests.soak.schedule import Schedule

__all__ = ["Soaked", "main", "played"]

MEMORY = Path("/dev/shm")
ACTORS = ("second driver", "executors", "operator", "remedy", "adopt", "switch", "groups", "reader")
SHRINKS = 60
AIMED_FROM = 24
"""The first schedules of a run find the steps that the later ones aim at."""
AIMS_AT_ONCE = 16
EXPLORES = 2
"""Every so manieth schedule goes on finding steps."""


@dataclass
class Soaked:
    """What so many schedules showed: ``met`` counts the faults by kind and step, ``steps`` how often each step came."""

    schedules: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    reached: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    by_aims: dict[str, tuple[int, Sequence[Aim]]] = field(default_factory=dict)
    aimed: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, schedule: Schedule, aims: Sequence[Aim]) -> None:
        """Count one schedule."""
        self.schedules += 1
        self.steps.update(schedule.disturbed)
        self.met.update(schedule.faults.met)
        for step, times in schedule.disturbed.items():
            if aims:
                self.by_aims.setdefault(step, (schedule.seed, aims))
            else:
                self.reached.setdefault(step, []).append((schedule.seed, times))

    def empty(self) -> list[tuple[str, str]]:
        """Return the cells that no schedule filled, and that could be: (fault, step)."""
        return [
            (kind, step)
            for step in sorted(self.steps)
            for kind in KINDS
            if impossible(kind, step) is None and not self.met[kind, step]
        ]

    def table(self) -> str:
        """Return how often which fault met which step; a dot where it cannot."""
        width = max(map(len, self.steps), default=0)
        lines = [f"{'':{width}} {'times':>8} " + " ".join(f"{kind:>8.8}" for kind in KINDS)]
        for step in sorted(self.steps):
            if any(impossible(kind, step) is None for kind in KINDS):
                cells = ["." if impossible(kind, step) else str(self.met[kind, step]) for kind in KINDS]
                lines.append(f"{step:{width}} {self.steps[step]:8} " + " ".join(f"{cell:>8}" for cell in cells))
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return the figures."""
        faults = Counter[str]()
        for (kind, _), times in self.met.items():
            faults[kind] += times
        possible = [(k, s) for s in self.steps for k in KINDS if impossible(k, s) is None]
        return {
            "schedules": self.schedules, "failures": self.failures, "steps": sum(self.steps.values()),
            "kinds_of_steps": len(self.steps), "faults": dict(sorted(faults.items())), "cells": len(possible),
            "empty_cells": [f"{kind} at {step}" for kind, step in self.empty()],
        }  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Play schedules; return 1 if one of them fails."""
    asked = _parser().parse_args(arguments)
    if asked.planted is not None:
        return planted(asked.planted, 500 if asked.schedules is None else asked.schedules, asked.json)
    soaked = Soaked()
    aims = [Aim.read(text) for text in asked.aim]
    count = asked.schedules if asked.schedules is not None else 1 if asked.seed is not None else 100
    until = time.monotonic() + asked.seconds
    for number in range(asked.seed or 0, (asked.seed or 0) + count):
        seed, chosen = (number, aims) if asked.seed is not None else aims_for(soaked, number)
        failure = played(soaked, seed, chosen, asked.job, tell=asked.history)
        if failure is not None:
            print(failure if asked.no_shrink else f"{failure}\n{_shrunk(seed, chosen, asked.job)}", file=sys.stderr)
            if not asked.go_on:
                break
        if time.monotonic() > until:
            break
    print(json.dumps(soaked.to_json()) if asked.json else f"{soaked.table()}\n{json.dumps(soaked.to_json(), indent=1)}")
    return 1 if soaked.failures or (asked.cells and soaked.empty()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run soak", description=__doc__)
    parser.add_argument("--schedules", type=int, help="so many, one seed after the other; 100 without --seed")
    parser.add_argument("--seed", type=int, help="the first seed; alone, it is played alone")
    parser.add_argument("--aim", action="append", default=[], metavar="FAULT@STEP@N", help="as a failure prints it")
    parser.add_argument("--job", default="", help="one kind of query only")
    parser.add_argument("--json", action="store_true", help="figures as one line of JSON")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no schedule after so many seconds")
    parser.add_argument("--cells", action="store_true", help="fail where a fault met no step that it could")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first schedule that fails")
    parser.add_argument("--history", action="store_true", help="print what happened in schedules that are well, too")
    parser.add_argument(
        "--planted", nargs="*", metavar="NAME", help="plant bugs, one by one: 500 schedules are to find it"
    )
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a shorter history")
    return parser


def aims_for(soaked: Soaked, number: int) -> tuple[int, list[Aim]]:
    """Return the seed of a schedule, and what it is to aim at: cells that are empty so far and that this seed's history
    comes to, those first that were aimed at least. Until something befalls it, it is the history that was seen before.
    """
    is_aimed = number >= AIMED_FROM and number % EXPLORES
    chance = random.Random(number)
    empty = [cell for cell in soaked.empty() if cell[1] in {**soaked.reached, **soaked.by_aims}] if is_aimed else []
    chance.shuffle(empty)
    empty.sort(key=lambda cell: (soaked.aimed[cell], len(soaked.reached.get(cell[1], ()))))
    if not empty:
        return number, []
    if empty[0][1] not in soaked.reached:  # only what befell others led there
        soaked.aimed[empty[0]] += 1
        seed, before = soaked.by_aims[empty[0][1]]
        return seed, [*before, Aim(*empty[0], 1)]
    seed = chance.choice(soaked.reached[empty[0][1]])[0]
    times = {step: dict(of_step).get(seed, 0) for step, of_step in soaked.reached.items()}
    chosen = [cell for cell in empty if times.get(cell[1])][:AIMS_AT_ONCE]
    soaked.aimed.update(chosen)
    return seed, [Aim(kind, step, chance.randint(1, 1 + times[step] // 2)) for kind, step in chosen]


def played(soaked: Soaked, seed: int, aims: Sequence[Aim], job: str = "", *, tell: bool = False) -> str | None:
    """Play a schedule; return what is to be told if it fails."""
    with _folder() as folder:
        schedule = Schedule(seed, folder, aims=aims, job=job)
        try:
            history = schedule.run()
            if tell:
                print("\n".join(history))
        except Exception as error:  # noqa: BLE001 - a bug shows in any way
            again = "".join(f" --aim '{aim}'" for aim in aims)
            told = f"{type(error).__name__}: {error}"[:2000]
            soaked.failures.append(f"seed {seed}: {told[:200]}")
            last = "\n".join(f"    {line}" for line in list(schedule.scheduler.last)[-30:])
            return "\n".join(
                [*schedule.history, "its last steps:", last, told, f"replay: ./run soak --seed {seed}{again}"]
            )
        finally:
            soaked.add(schedule, aims)
    return None


def _shrunk(seed: int, aims: Sequence[Aim], job: str) -> str:
    """Return the shortest history that still fails, by leaving out faults and actors one at a time."""
    without: set[int] = set()
    leave_out: set[str] = set()
    best = _attempt(seed, aims, job, without, leave_out)
    if best is None:
        return "played again, it does not fail: something is left that is not drawn from the seed"
    for actor in ACTORS:
        found = _attempt(seed, aims, job, without, {*leave_out, actor})
        if found is not None:
            leave_out.add(actor)
            best = found
    for number, _ in reversed(best.faults.numbered[-SHRINKS:]):
        found = _attempt(seed, aims, job, {*without, number}, leave_out)
        if found is not None:
            without.add(number)
            best = found
    kept = [f"#{number} {what}" for number, what in best.faults.numbered if number not in without]
    return "\n".join(["", f"shrunk, without {sorted(leave_out)}, to: {kept}", *best.history])


def _attempt(
    seed: int, aims: Sequence[Aim], job: str, without: Collection[int], leave_out: Collection[str]
) -> Schedule | None:
    """Return a schedule that fails, ``None`` if it does not."""
    with _folder() as folder:
        schedule = Schedule(seed, folder, aims=aims, job=job, without=without, leave_out=leave_out)
        try:
            schedule.run()
        except Exception as error:  # noqa: BLE001 - a bug shows in any way
            schedule.history.append(f"{type(error).__name__}: {error}"[:2000])
            return schedule
    return None


@contextmanager
def _folder() -> Iterator[Path]:
    """Give a folder for one schedule's local copies, in memory if there is such a disk."""
    folder = Path(tempfile.mkdtemp(prefix="riffle-soak-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set is part of a history
        again = [sys.executable, "-m", "tests.soak", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this program, once more
    sys.exit(main(sys.argv[1:]))
