"""Decide from measurements when a new assignment is due.

Theory of operation. A trigger that no assignment can satisfy would fire forever. So ``MeasuredTriggers`` keeps the
remainder after the last assignment: work that cannot be levelled, and rows that must be read across racks. The trigger
fires again only after a large change of this remainder.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from riffle_spark.assign.model import Assignment, MemberId, TaskId, Traffic
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.weights import Weights

_Task = TypeVar("_Task")
"""A task or its number."""
_Copy = tuple[TaskId, MemberId]
_BATCHES_OUTSIDE_BAND = 5
_BATCHES_READING_ACROSS = 3
_BATCHES_GROWING = 10
_LOAD_CHANGE = 0.5
"""Work that cannot be levelled is assigned again after the load of a member has changed by this share of itself."""
_TRAFFIC_BAND = 0.1
"""Rows read across racks beyond the minimum may be this share of the minimum."""
_TRAFFIC_LEAST = 0.05
"""They may also be this share of all rows: random differences between racks are nearly as large."""


@dataclass(slots=True)
class Probes:
    """Counts the probing rebalances that ran (``run``) and that were skipped, and decides when the next is due."""

    run: int = 0
    skipped: int = 0
    _since: float = 0.0
    _moved: bool = False

    def record_assignment(self, assignment: Assignment, now: float) -> None:
        """Record an assignment at time ``now``: the probing interval starts again."""
        self._since = now
        self._moved = bool(assignment.moves)

    def take_counts(self) -> tuple[int, int]:
        """Return how many probes ran and how many were skipped since the last call."""
        counts = (self.run, self.skipped)
        self.run = 0
        self.skipped = 0
        return counts

    def seconds_to_next(self, assignment: Assignment, interval: float, now: float) -> float | None:
        """Return the seconds from time ``now`` to the end of the probing interval, ``None`` if no probe is needed.

        A probe may run earlier, once all warm-ups have caught up.
        """
        return max(0.0, self._since + interval - now) if assignment.needs_probe else None

    def is_due(self, assignment: Assignment, lags: Iterable[int], limits: tuple[int, float], now: float) -> bool:
        """Return whether to probe at time ``now``, and count it.

        ``lags`` are the lags of all running warm-ups, ``limits`` the acceptable recovery lag and the probing interval
        in seconds. A probe is due if all warm-ups have caught up, or if the interval has passed and one of them has.
        Without warm-ups it is due after an assignment that moved something, or if the interval has passed.
        """
        if not assignment.needs_probe:
            return False
        acceptable, interval = limits
        warm = [lag <= acceptable for lag in lags]
        has_interval_passed = now - self._since >= interval
        at_once = all(warm) if warm else self._moved
        if at_once or (has_interval_passed and (any(warm) or not warm)):
            self.run += 1
            return True
        if has_interval_passed:
            self.skipped += 1
            self._since = now
        return False


class Patience:
    """Counts batches in a row with the same observation. After enough such batches an assignment is due."""

    def __init__(self) -> None:
        self._outside = 0
        self._across = 0
        self._lags: Mapping[_Copy, int] | None = None
        """The lags of the last batch, ``None`` if none was counted since the last assignment."""
        self._growing: dict[_Copy, int] = {}
        """In how many batches in a row a lag grew."""

    def count_outside_band(self, outside: bool) -> bool:
        """Count a batch; return whether work was outside its band for enough batches in a row.

        ``outside`` is whether it was in this batch.
        """
        self._outside = self._outside + 1 if outside else 0
        return self._outside >= _BATCHES_OUTSIDE_BAND

    def count_reads_across(self, outside: bool) -> bool:
        """Count a batch; return whether enough batches in a row read too much across racks.

        ``outside`` is whether this batch did.
        """
        self._across = self._across + 1 if outside else 0
        return self._across >= _BATCHES_READING_ACROSS

    def count_growing_lags(self, lags: Mapping[_Copy, int]) -> dict[_Copy, int]:
        """Count a batch with these lags of standbys; return the lags that grew in enough batches in a row.

        Standbys that are left out lag by 0.
        """
        last_lags = lags if self._lags is None else self._lags
        grown = [standby for standby, lag in lags.items() if lag > last_lags.get(standby, 0)]
        self._growing = {standby: self._growing.get(standby, 0) + 1 for standby in grown}
        self._lags = lags
        return {standby: lags[standby] for standby, times in self._growing.items() if times >= _BATCHES_GROWING}

    def reset(self) -> None:
        """Count from zero again, because an assignment was made."""
        self._outside = 0
        self._across = 0
        self._lags = None
        self._growing.clear()


def loads_of(
    weights: Mapping[_Task, float], owners: Mapping[_Task, MemberId], slots: Mapping[MemberId, int]
) -> dict[MemberId, float]:
    """Return each member's work per slot as a multiple of the mean over all slots; empty if there is no work.

    ``weights`` is the work of each task, ``slots`` the number of slots of each member.
    """
    load = dict.fromkeys(slots, 0.0)
    for t, owner in owners.items():
        if owner in load:
            load[owner] += weights.get(t, 0.0)
    total = sum(slots.values())
    mean = sum(load.values()) / total if total else 0.0
    if not mean:
        return {}
    return {member: work / slots[member] / mean for member, work in load.items()}


def is_outside_band(
    weights: Mapping[_Task, float], owners: Mapping[_Task, MemberId], slots: Mapping[MemberId, int], band: float
) -> bool:
    """Return whether the work per slot of some member differs from the mean by more than the share ``band``."""
    return any(not 1 - band <= load <= 1 + band for load in loads_of(weights, owners, slots).values())


@dataclass(frozen=True, slots=True)
class ReadAcross:
    """Shares of all rows: the rows that owners read across racks, and the minimum with each task in its best rack."""

    present: float = 0.0
    least: float = 0.0

    @property
    def excess(self) -> float:
        """Return the share that better racks could save, without regard to balance."""
        return self.present - self.least

    def is_outside(self, last_excess: float) -> bool:
        """Return whether more could be saved than the last assignment left (``last_excess``), by a margin."""
        is_large = self.excess > max(_TRAFFIC_BAND * self.least, _TRAFFIC_LEAST)
        return is_large and self.excess > last_excess + _TRAFFIC_LEAST


def measure_read_across(
    traffic: Mapping[TaskId, Traffic], owners: Mapping[TaskId, MemberId], racks: Mapping[MemberId, str | None]
) -> ReadAcross:
    """Return the share of rows that ``owners`` read across racks, and its minimum.

    Both are 0 if a member's rack is unknown.
    """
    total = sum(task_traffic.total for task_traffic in traffic.values())
    if not total or None in racks.values():
        return ReadAcross()
    distinct = set(racks.values())
    present = sum(parts.parts_read_across(racks.get(owners.get(t, ""))) for t, parts in traffic.items())
    least = sum(min(parts.parts_read_across(rack) for rack in distinct) for parts in traffic.values())
    return ReadAcross(present / total, least / total)


class MeasuredTriggers:
    """Measured work and traffic that may need another assignment, and what the last assignment could not improve.

    ``traffic`` is the traffic that assignments use. It stays the same during a series of probing rebalances.
    """

    def __init__(self, weights: Weights, patience: Patience) -> None:
        """Create triggers that have seen no batch. ``patience`` counts the batches."""
        self.weights = weights
        self.traffic: dict[TaskId, Traffic] = {}
        self._patience = patience
        self._last_loads: Mapping[MemberId, float] = {}
        self._last_excess = 0.0
        self._uses_new_weights = False
        self._warned: set[TaskId] = set()
        self._warnings: list[str] = []

    def is_unlevel(
        self, owners: Mapping[TaskId, MemberId], slots: Mapping[MemberId, int], band: float, *, settled: bool
    ) -> bool:
        """Return whether work was outside its band for enough batches, and has changed since the last assignment.

        If so, assignments use the work measured now. ``settled`` is whether no warm-up is under way; otherwise nothing
        counts.
        """
        measured = self.weights.measured
        outside = settled and is_outside_band(measured, owners, slots, band)
        has_changed = outside and self._have_changed(loads_of(measured, owners, slots))
        if not self._patience.count_outside_band(has_changed):
            return False
        self.weights.use_measured()
        self._uses_new_weights = True
        return True

    def _have_changed(self, loads: Mapping[MemberId, float]) -> bool:
        """Return whether the load of a member has changed much since the last assignment that could not level it."""
        last_loads = self._last_loads
        if loads.keys() != last_loads.keys():
            return True
        return any(abs(loads[m] - last_loads[m]) > _LOAD_CHANGE * max(last_loads[m], 1.0) for m in last_loads)

    def reads_across(
        self,
        traffic: Mapping[TaskId, Traffic],
        owners: Mapping[TaskId, MemberId],
        racks: Mapping[MemberId, str | None],
        *,
        settled: bool,
    ) -> bool:
        """Return whether owners read more across racks than necessary for enough batches.

        ``settled`` is whether no move is under way; otherwise nothing counts.
        """
        outside = settled and measure_read_across(traffic, owners, racks).is_outside(self._last_excess)
        return self._patience.count_reads_across(outside)

    def record_assignment(
        self,
        target: Mapping[TaskId, MemberId],
        slots: Mapping[MemberId, int],
        racks: Mapping[MemberId, str | None],
        band: float,
    ) -> None:
        """Record the work and traffic that an assignment cannot improve once its ``target`` owners own their tasks.

        Add a warning for each key-group that is too heavy for its member, once.
        """
        self._last_excess = measure_read_across(self.traffic, target, racks).excess
        if not self._uses_new_weights:
            return
        self._uses_new_weights = False
        work = self.weights.measured
        loads = loads_of(work, target, slots)
        self._last_loads = loads if is_outside_band(work, target, slots, band) else {}
        heaviest: dict[MemberId, TaskId] = {}
        for member, load in loads.items():
            if load > 1 + band:
                heaviest[member] = max((work.get(t, 0.0), t) for t, owner in target.items() if owner == member)[1]
        for member, t in sorted(heaviest.items()):
            if t not in self._warned:
                work_per_slot = sum(work.values()) / sum(slots.values())
                load = loads[member]
                share = work[t] / (load * work_per_slot * slots[member])
                self._warnings.append(
                    f"[RIFFLE-0761] Member {member} has {load:.1f} times the mean work, and no assignment can level "
                    f"it. Key-group {task_name(t)} is {share:.0%} of its work.\n"
                    "  What to do: Check whether one key has most of the rows or needs most of the time."
                )
        self._warned = set(heaviest.values())

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call, and forget them."""
        warnings = self._warnings
        self._warnings = []
        return warnings
