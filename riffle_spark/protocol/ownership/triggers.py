"""When to assign anew. Knows what was measured, and time as it is told. Does not know how to assign.

Theory of operation. A trigger that an assignment can do nothing about would fire for ever. So what an assignment left
undone is kept: work that cannot be levelled, rows that have to be read across racks. Only what has changed much since
is a trigger again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from riffle_spark.assign.model import Assignment, MemberId, TaskId, Traffic
from riffle_spark.protocol.ownership.groups import named
from riffle_spark.protocol.ownership.weights import Weights

__all__ = ["Measured", "Patience", "Probes", "loads_of", "outside_band", "read_across"]

_What = TypeVar("_What")
"""What is owned: tasks, or their numbers."""
_BATCHES_OUTSIDE_BAND = 5
_BATCHES_READING_ACROSS = 3
_BATCHES_GROWING = 10
_NEWS = 0.5
"""Work that cannot be levelled is looked at again once a member's share has changed by so much of itself."""
_TRAFFIC_BAND = 0.1
"""Rows read across racks beyond the least that is possible move nothing up to this share of that least."""
_TRAFFIC_LEAST = 0.05
"""Nor up to this share of all rows: what racks share out by chance comes near it."""


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
        self._across = 0
        self._growing: dict[tuple[TaskId, MemberId], tuple[int, int]] = {}

    def weights_are_outside(self, outside: bool) -> bool:
        """Note whether this batch's weights are outside their band; tell whether they have been for long enough."""
        self._outside = self._outside + 1 if outside else 0
        return self._outside >= _BATCHES_OUTSIDE_BAND

    def reads_across(self, outside: bool) -> bool:
        """Note whether too much is read across racks; tell whether it has been for long enough."""
        self._across = self._across + 1 if outside else 0
        return self._across >= _BATCHES_READING_ACROSS

    def fall_behind(self, lags: Mapping[tuple[TaskId, MemberId], int]) -> dict[tuple[TaskId, MemberId], int]:
        """Note the standbys' lags; return those that have grown with every batch for long enough."""
        seen: dict[tuple[TaskId, MemberId], tuple[int, int]] = {}
        for standby, lag in lags.items():
            before, times = self._growing.get(standby, (lag, 0))
            seen[standby] = (lag, times + 1 if lag > before else 0)
        self._growing = seen
        return {standby: lag for standby, (lag, times) in seen.items() if times >= _BATCHES_GROWING}

    def start_over(self) -> None:
        """Begin to count again: there was an assignment."""
        self._outside = self._across = 0
        self._growing.clear()


def loads_of(
    weights: Mapping[_What, float], owners: Mapping[_What, MemberId], slots: Mapping[MemberId, int]
) -> dict[MemberId, float]:
    """Return each member's work per slot as a multiple of the mean; nothing where there is none."""
    load = dict.fromkeys(slots, 0.0)
    for t, owner in owners.items():
        if owner in load:
            load[owner] += weights.get(t, 0.0)
    total = sum(slots.values())
    mean = sum(load.values()) / total if total else 0.0
    if not mean:
        return {}
    return {member: work / slots[member] / mean for member, work in load.items()}


def outside_band(
    weights: Mapping[_What, float], owners: Mapping[_What, MemberId], slots: Mapping[MemberId, int], band: float
) -> bool:
    """Tell whether some member's work per slot is further than ``band`` from the mean."""
    return any(not 1 - band <= load <= 1 + band for load in loads_of(weights, owners, slots).values())


@dataclass(frozen=True, slots=True)
class ReadAcross:
    """Shares of all rows: what owners read across racks, and what they did if each task were in its best rack."""

    now: float = 0.0
    least: float = 0.0

    @property
    def excess(self) -> float:
        """What racks might save, were it not for balance."""
        return self.now - self.least

    def is_outside(self, left: float) -> bool:
        """Tell whether there is something to save, of which an assignment left ``left`` before."""
        return self.excess > max(_TRAFFIC_BAND * self.least, _TRAFFIC_LEAST) and self.excess > left + _TRAFFIC_LEAST


def read_across(
    traffic: Mapping[TaskId, Traffic], owners: Mapping[TaskId, MemberId], racks: Mapping[MemberId, str | None]
) -> ReadAcross:
    """Return what ``owners`` read across racks; nothing where a member's rack is not known."""
    total = sum(each.total for each in traffic.values())
    if not total or None in racks.values():
        return ReadAcross()
    every = set(racks.values())
    now = sum(each.parts_read_across(racks.get(owners.get(t, ""))) for t, each in traffic.items())
    least = sum(min(each.parts_read_across(rack) for rack in every) for each in traffic.values())
    return ReadAcross(now / total, least / total)


class Measured:
    """What was measured that may call for another assignment, and what the last one could not make better."""

    def __init__(self, weights: Weights, patience: Patience) -> None:
        self.weights = weights
        self.traffic: dict[TaskId, Traffic] = {}
        """What assignments go by: as it was measured when the first of those began that are on their way."""
        self._patience = patience
        self._unlevelled: Mapping[MemberId, float] = {}
        self._left_across = 0.0
        self._latched = False
        self._said: set[TaskId] = set()
        self._warnings: list[str] = []

    def is_unlevel(
        self, owners: Mapping[TaskId, MemberId], slots: Mapping[MemberId, int], band: float, *, settled: bool
    ) -> bool:
        """Tell whether work has been outside its band for long enough, and not only as it was left; assignments then
        go by it.
        """
        measured = self.weights.measured
        outside = settled and outside_band(measured, owners, slots, band)
        news = outside and self._is_news(loads_of(measured, owners, slots))
        if not self._patience.weights_are_outside(news):
            return False
        self.weights.latch()
        self._latched = True
        return True

    def _is_news(self, loads: Mapping[MemberId, float]) -> bool:
        left = self._unlevelled
        return loads.keys() != left.keys() or any(abs(loads[m] - left[m]) > _NEWS * max(left[m], 1.0) for m in left)

    def reads_across(
        self, traffic: Mapping[TaskId, Traffic], owners: Mapping[TaskId, MemberId],
        racks: Mapping[MemberId, str | None], *, settled: bool,
    ) -> bool:  # fmt: skip
        """Tell whether owners have read more across racks for some batches than they would have to."""
        outside = settled and read_across(traffic, owners, racks).is_outside(self._left_across)
        return self._patience.reads_across(outside)

    def assigned(
        self, target: Mapping[TaskId, MemberId], slots: Mapping[MemberId, int], racks: Mapping[MemberId, str | None],
        band: float,
    ) -> None:  # fmt: skip
        """Keep what an assignment leaves undone even once it is carried out; say once which key-group is too heavy."""
        self._left_across = read_across(self.traffic, target, racks).excess
        if not self._latched:
            return
        self._latched, work = False, self.weights.measured
        loads = loads_of(work, target, slots)
        heavy = {member for member, load in loads.items() if load > 1 + band}
        self._unlevelled = loads if outside_band(work, target, slots, band) else {}
        worst = {m: max((work.get(t, 0.0), t) for t, owner in target.items() if owner == m)[1] for m in heavy}
        for member in sorted(m for m, t in worst.items() if t not in self._said):
            share = work[worst[member]] / (loads[member] * sum(work.values()) * slots[member] / sum(slots.values()))
            self._warnings.append(
                f"member {member} has {loads[member]:.1f} times the mean work, and no assignment levels it: key-group "
                f"{named(worst[member])} is {share:.0%} of that\n  What to do: see whether one key has most of the "
                "rows, or takes most of the time; it is looked at again once the load has changed much"
            )
        self._said = set(worst.values())

    def take_warnings(self) -> list[str]:
        """Return what there is to say since the last call."""
        told, self._warnings = self._warnings, []
        return told
