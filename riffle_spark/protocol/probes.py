"""When to assign anew. Knows the triggers of design section 7 and time as it is told. Does not know how to assign.

Theory of operation. A trigger is a member that joined, left or returned, a wait that is over, changed tasks or
settings, an operator, weights outside their band or a standby that falls behind for some batches, and a probe. A probe
looks whether warm-ups that the last assignment asked for are warm. It runs as soon as all of them are, or when
``probing_rebalance_interval`` has passed and at least one is; if none is, it is skipped and the interval begins again
(KIP-441).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from riffle_spark.assign.model import Assignment, MemberId, TaskId

__all__ = ["Patience", "Probes", "outside_band"]

_BATCHES_OUTSIDE_BAND = 5
_BATCHES_GROWING = 10


@dataclass(slots=True)
class Probes:
    """Counts the probes run and skipped, and knows when the next one is due."""

    run: int = 0
    skipped: int = 0
    _since: float = 0.0
    _moved: bool = False

    def assigned(self, assignment: Assignment, now: float) -> None:
        """Note an assignment: its warm-ups are waited for from now on."""
        self._since = now
        self._moved = bool(assignment.moves)

    def take(self) -> tuple[int, int]:
        """Return how many probes were run and skipped since the last call."""
        counted, self.run, self.skipped = (self.run, self.skipped), 0, 0
        return counted

    def due(self, assignment: Assignment, lags: Iterable[int], settings: tuple[int, float], now: float) -> bool:
        """Tell whether to probe: ``lags`` are those of all running warm-ups, ``settings`` the acceptable lag and the
        interval in seconds.
        """
        if not assignment.needs_probe:
            return False
        acceptable, interval = settings
        warm = [lag <= acceptable for lag in lags]
        passed = now - self._since >= interval
        at_once = all(warm) if warm else self._moved
        if at_once or (passed and (any(warm) or not warm)):
            self.run += 1
            return True
        if passed:
            self.skipped += 1
            self._since = now
        return False


class Patience:
    """What becomes a trigger only after some batches in a row."""

    def __init__(self) -> None:
        self._outside = 0
        self._growing: dict[tuple[TaskId, MemberId], tuple[int, int]] = {}

    def weights_are_outside(self, outside: bool) -> bool:
        """Note whether this batch's weights are outside their band; tell whether they have been for long enough."""
        self._outside = self._outside + 1 if outside else 0
        return self._outside >= _BATCHES_OUTSIDE_BAND

    def standby_falls_behind(self, lags: Mapping[tuple[TaskId, MemberId], int]) -> bool:
        """Note the standbys' lags; tell whether one has grown with every batch for long enough."""
        seen: dict[tuple[TaskId, MemberId], tuple[int, int]] = {}
        for standby, lag in lags.items():
            before, times = self._growing.get(standby, (lag, 0))
            seen[standby] = (lag, times + 1 if lag > before else 0)
        self._growing = seen
        return any(times >= _BATCHES_GROWING for _, times in seen.values())

    def start_over(self) -> None:
        """Begin to count again: there was an assignment."""
        self._outside = 0
        self._growing.clear()


def outside_band(
    weights: Mapping[int, float], owners: Mapping[int, MemberId], slots: Mapping[MemberId, int], band: float
) -> bool:
    """Tell whether some member's work per slot is further than ``band`` from the mean."""
    load = dict.fromkeys(slots, 0.0)
    for key_group, owner in owners.items():
        if owner in load:
            load[owner] += weights.get(key_group, 0.0)
    total = sum(slots.values())
    if not total or not any(load.values()):
        return False
    mean = sum(load.values()) / total
    return any(not (1 - band) * mean <= load[m] / slots[m] <= (1 + band) * mean for m in load)
