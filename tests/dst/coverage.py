"""Count which faults met which steps, and choose the aims of the next schedules: pairs that were met least."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.dst.faults import KINDS, Aim, impossible

__all__ = ["Coverage", "ScheduleResult", "aims_for"]

AIMED_FROM = 8
"""The number of schedules without aims at the start, which find the steps."""
OTHERS = 24
"""The number of additional cells that a schedule aims at after its main one.

If no cell is empty it is a third of them, because a schedule with aims costs twice as much.
"""
AIMS = 4
"""While cells are empty, one of this many schedules has no aims. Afterwards one of this many has aims."""
TRIES = 20
"""A cell that this many schedules aimed at in vain is treated as filled."""
KEPT = 8
"""The number of histories that are stored per step, which bounds the memory of a long run."""
MOST_FAILURES = 1000

_impossible = cache(impossible)


@dataclass(frozen=True)
class ScheduleResult:
    """The result of a schedule.

    ``steps`` counts its steps while faults were possible, ``met`` the faults by kind and step. ``aims`` are the aims
    that were met, ``failure`` is one line, ``output`` is printed.
    """

    seed: int
    aims: tuple[Aim, ...] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    met: Mapping[tuple[str, str], int] = field(default_factory=dict)
    failure: str = ""
    output: str = ""


@dataclass
class Coverage:
    """The totals of all schedules.

    ``met`` counts the faults by kind and step, ``steps`` the occurrences of each step. ``reached`` has some histories
    per step, preferably those without aims.
    """

    schedules: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    reached: dict[str, list[ScheduleResult]] = field(default_factory=dict)
    aimed: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, result: ScheduleResult) -> None:
        """Add the result of one schedule."""
        self.schedules += 1
        self.steps.update(result.steps)
        self.met.update(result.met)
        if result.failure and len(self.failures) < MOST_FAILURES:
            self.failures.append(result.failure)
        history = ScheduleResult(result.seed, result.aims, result.steps)
        for step in result.steps:
            self._remember(step, history)

    def _remember(self, step: str, history: ScheduleResult) -> None:
        histories = self.reached.setdefault(step, [])
        if histories and bool(histories[0].aims) != bool(history.aims):
            if history.aims:
                return
            histories.clear()
        if len(histories) < KEPT:
            histories.append(history)
        elif self.schedules % 3 == 0:
            histories[self.schedules // 3 % KEPT] = history

    def possible(self) -> list[tuple[str, str]]:
        """Return the possible cells (fault, step) of the known steps."""
        return [(kind, step) for step in sorted(self.steps) for kind in KINDS if _impossible(kind, step) is None]

    def empty(self) -> list[tuple[str, str]]:
        """Return the possible cells that no schedule has filled."""
        return [cell for cell in self.possible() if not self.met[cell]]

    def table(self) -> str:
        """Return a table of how often each fault met each step, with a dot for impossible cells."""
        width = max(map(len, self.steps), default=0)
        lines = [f"{'':{width}} {'times':>8} " + " ".join(f"{kind:>8.8}" for kind in KINDS)]
        for step in sorted(self.steps):
            if any(_impossible(kind, step) is None for kind in KINDS):
                cells = ["." if _impossible(kind, step) else str(self.met[kind, step]) for kind in KINDS]
                lines.append(f"{step:{width}} {self.steps[step]:8} " + " ".join(f"{cell:>8}" for cell in cells))
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return the figures."""
        faults = Counter[str]()
        for (kind, _), times in self.met.items():
            faults[kind] += times
        possible = self.possible()
        return {
            "schedules": self.schedules,
            "failures": self.failures,
            "steps": sum(self.steps.values()),
            "kinds_of_steps": len(self.steps),
            "faults": dict(sorted(faults.items())),
            "cells": len(possible),
            "fewest_in_a_cell": min((self.met[cell] for cell in possible), default=0),
            "empty_cells": [f"{kind} at {step}" for kind, step in self.empty()],
        }


def aims_for(coverage: Coverage, number: int) -> tuple[int, tuple[Aim, ...]]:
    """Return the seed of a schedule and its aims.

    The main aim is the cell that was met and aimed at least. Other aims are cells that the history of the same seed
    reaches. Until the first fault the history is one that was played before, so it reaches the step.
    """
    chance = random.Random(number)
    cells = [cell for cell in coverage.possible() if cell[1] in coverage.reached]
    chance.shuffle(cells)
    cells.sort(key=lambda cell: (coverage.met[cell], coverage.aimed[cell]))
    is_full = not cells or coverage.met[cells[0]] > 0 or coverage.aimed[cells[0]] >= TRIES
    if coverage.schedules < AIMED_FROM or (number % AIMS == 0) != is_full or not cells:
        return number, ()
    (kind, step) = cells[0]
    history = chance.choice(coverage.reached[cells[0][1]])
    other_cells = [cell for cell in cells[1:] if cell[1] in history.steps][: OTHERS // 3 if is_full else OTHERS]
    times = history.steps[step]
    nth = chance.randint(1, times if coverage.aimed[kind, step] else 1 + times // 2)
    coverage.aimed.update([(kind, step), *other_cells])
    return history.seed, (*history.aims, Aim(kind, step, nth), *(Aim(*cell, 0) for cell in other_cells))
