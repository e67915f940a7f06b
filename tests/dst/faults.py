"""The kinds of faults, the steps at which each is possible, and the faults that occurred."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.dst.stepped_files import DATA

__all__ = ["KINDS", "Aim", "Faults", "impossible"]

KINDS = (
    "crash",
    "hang",
    "pause",
    "slow",
    "error before",
    "error after",
    "late effect",
    "refused disk",
    "flipped byte",
    "truncated",
    "missing",
    "clock back",
    "sleep",
    "reboot",
    "row lost",
    "receipt lost",
    "block lost",
)
ON_EXECUTORS = ("slot", "merge", "piece", "census")
_DRIVERS = ("driver", "look", "background")
APART = 5
_STORE = ("put", "get", "head", "list", "delete")
_FILES = ("read", "write", "remove", "move", "make", "look", "touch", "lock")


_DAMAGED = (0.1, ("flipped byte", "flipped byte", "truncated", "missing"))
_OFTEN = {
    "slot: rows read": (0.02, ("row lost",)),
    "driver: answer read": (0.02, ("receipt lost",)),
    "driver: results read": (0.3, ("block lost",)),
    "driver: before run": (0.1, ("sleep",)),
    "background: list everything": (0.1, ("pause",)),
    "background: get record": (0.05, ("pause",)),
    "background: lock left": (0.06, ("pause",)),
    "piece: begins": (0.08, ("pause", "hang", "slow")),
    "background: begins": (0.05, ("pause",)),
    "piece: write advancing": (0.04, ("pause",)),
    "driver: put record": (0.06, ("error before", "error after", "late effect")),
    **{f"{actor}: get {kind}": _DAMAGED for actor in ("slot", "piece") for kind in ("delta", "merged", "snapshot")},
}
"""Additional probabilities of faults at steps that occur at most twice per batch.

Without them such steps would hardly ever meet a fault.
"""


@dataclass(frozen=True)
class Aim:
    """A fault aimed at the ``nth`` occurrence of a step, or as soon as possible after it.

    With 0, the fault occurs as soon as possible after the last numbered aim was met, some steps apart.
    """

    kind: str
    step: str
    nth: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}@{self.nth}"

    @staticmethod
    def read(text: str) -> Aim:
        """Parse an aim as it is printed."""
        kind, step, nth = text.split("@")
        return Aim(kind, step, int(nth))


def impossible(kind: str, step: str) -> str | None:
    """Return the reason why a fault cannot occur at a step, ``None`` if it can."""
    actor, _, label = step.partition(": ")
    word, _, object_kind = label.partition(" ")
    if actor in {"conductor", "late put"}:
        return "it belongs to the simulation"
    on_store = word in _STORE
    on_files = word in _FILES and actor in ON_EXECUTORS
    reads = object_kind in DATA if word == "read" else word == "get" and object_kind != "everything"
    reasons = {
        "slow": (label == "begins", "a slow actor is slow from its start"),
        "error before": (on_store, "the store is not called"),
        "error after": (on_store, "the store is not called"),
        "late effect": (word == "put", "no object is put"),
        "refused disk": (on_files and word != "lock", "no file is used"),
        "flipped byte": (reads, "no bytes of state are read"),
        "truncated": (reads, "no bytes of state are read"),
        "missing": (
            word == "get" and object_kind in {"delta", "merged", "snapshot", "savepoint"},
            "no listed object is read",
        ),
        "clock back": (
            (actor not in ON_EXECUTORS or actor == "census") and actor != "reader",
            "only durations are measured",
        ),
        "sleep": (actor in _DRIVERS, "only drivers' machines sleep"),
        "reboot": (actor in ON_EXECUTORS, "a driver has no files, so its reboot is a crash"),
        "row lost": (label == "rows read", "no rows are read"),
        "receipt lost": (label == "answer read", "no receipt is read"),
        "block lost": (label == "results read", "no results are read"),
    }
    if kind in reasons:
        can, reason = reasons[kind]
        return None if can else reason
    return None


class Faults:
    """Choose the faults of a schedule, its aims first."""

    def __init__(self, chance: random.Random, aims: Sequence[Aim]) -> None:
        self._chance = chance
        self._rate = chance.choice([0.0, 0.002, 0.006, 0.02])
        self._left = chance.choice([1, 3, 8, 20])
        self._often_left = chance.choice([3, 6, 12, 24])
        """The number of additional faults at rare steps.

        Without a bound, long histories never end.
        """
        self._kinds = chance.sample(KINDS, chance.choice([2, 5, len(KINDS)]))
        self._aims: dict[str, list[Aim]] = {}
        for aim in aims:
            self._aims.setdefault(aim.step, []).append(aim)
        self._awaited = next((aim for aim in reversed(aims) if aim.nth), None)
        self._since = 0
        self.met: Counter[tuple[str, str]] = Counter()
        self.hit: list[Aim] = []
        """The aims that were met, with their occurrence. A schedule with only these aims has the same history."""
        self.used: set[str] = set()
        self.over = False

    def due(self, step: str, nth: int) -> str | None:
        """Return the fault at this step, or ``None``."""
        kind = self._aimed(step, nth) or self._often(step)
        if kind is None:
            if self._chance.random() >= self._rate or not self._left or self.over:
                return None
            possible = [kind for kind in self._kinds if impossible(kind, step) is None]
            if not possible:
                return None
            kind = self._chance.choice(possible)
            self._left -= 1
        if self.over:
            return None
        self.met[kind, step] += 1
        self.used.add(kind)
        return kind

    def _often(self, step: str) -> str | None:
        share, kinds = _OFTEN.get(step, (0.0, ()))
        if not share or not self._rate or not self._often_left or self.over or self._chance.random() >= share:
            return None
        self._often_left -= 1
        return self._chance.choice([kind for kind in kinds if kind in self._kinds] or [None])

    def _aimed(self, step: str, nth: int) -> str | None:
        self._since += 1
        aims = self._aims.get(step)
        due = next((aim for aim in aims if self._is_due(aim, nth)), None) if aims and not self.over else None
        if due is None or aims is None:
            return None
        aims.remove(due)
        if due == self._awaited:
            self._awaited = None
        self._since = 0
        self.hit.append(Aim(due.kind, step, nth))
        return due.kind

    def _is_due(self, aim: Aim, nth: int) -> bool:
        return aim.nth <= nth if aim.nth else self._awaited is None and self._since > APART
