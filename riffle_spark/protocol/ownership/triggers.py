"""When to assign anew, and what each key-group costs as measured. Knows receipts, and time as
it is told. Does not know how to assign.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from riffle_spark.assign.model import Assignment, MemberId, TaskId, Traffic
from riffle_spark.messages.slot_orders import Receipt

__all__ = ["Patience", "Probes", "Weights", "outside_band"]

_BATCHES_OUTSIDE_BAND = 5
_BATCHES_GROWING = 10
_KEPT = 0.8
"""The share of what was measured before that counts beside a new batch."""
_PARTS = 1000
"""Shares of traffic are whole numbers out of so many."""
_SCALE = 1000


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


class Weights:
    """Rows by key-group and, where slots count them, by key-group and partition: a fading mean over batches.

    ``latched`` are the weights that assignments go by: measured ones, taken only when they were outside the band for
    some batches, so that noise moves nothing.
    """

    def __init__(self) -> None:
        self.measured: dict[int, float] = {}
        self.latched: dict[int, int] = {}
        self._read: dict[int, dict[int, float]] = {}
        self.racks_of: Mapping[int, tuple[str, ...]] = {}
        """The racks that hold a replica of each partition of the input, by the number that slots count under."""
        self.racks_of_shards: Mapping[tuple[str, int], tuple[str, ...]] = {}
        """The same by (topic, partition), where each is a shard."""

    def ran(self, receipts: Iterable[Receipt], store_weights: Mapping[str, float] = MappingProxyType({})) -> None:
        """Take a batch's receipts; a row of a store counts as much as its weight says, 1 where nothing does."""
        rows: dict[int, float] = {}
        read: dict[int, dict[int, float]] = {}
        for receipt in receipts:
            for part in receipt.parts:
                work = part.rows * store_weights.get(receipt.store, 1.0)
                rows[part.key_group] = rows.get(part.key_group, 0.0) + work
            for key_group, partition, count in receipt.read:
                of_group = read.setdefault(key_group, {})
                of_group[partition] = of_group.get(partition, 0.0) + count
        if rows:
            self.measured = _faded(self.measured, rows)
        for key_group, counts in read.items():
            self._read[key_group] = _faded(self._read.get(key_group, {}), counts)

    def latch(self) -> None:
        """Let assignments go by what is measured now."""
        self.latched = {key_group: int(weight * _SCALE) for key_group, weight in sorted(self.measured.items())}

    def reads(self, racks: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """Take the racks of the input's partitions, by (topic, partition).

        Slots count rows by the number of the partition alone: where several topics are read, a rack counts as holding
        a partition if it does so for one of them.
        """
        self.racks_of_shards = dict(racks)
        numbered: dict[int, set[str]] = {}
        for (_, partition), held in sorted(racks.items()):
            numbered.setdefault(partition, set()).update(held)
        self.racks_of = {partition: tuple(sorted(held)) for partition, held in numbered.items()}

    def traffic(self, shards: Sequence[tuple[str, int]] | None = None) -> dict[int, Traffic]:
        """Return, by key-group, which share of its rows each rack holds a replica of.

        ``shards`` are the partitions that key-groups stand for, where dispatch is by partition.
        """
        if not self.racks_of:
            return {}
        if shards is not None:
            held = [sorted(set(self.racks_of_shards.get(shard, ()))) for shard in shards]
            return {kg: Traffic(_PARTS, dict.fromkeys(racks, _PARTS), _PARTS) for kg, racks in enumerate(held)}
        return {key_group: self._traffic(counts) for key_group, counts in sorted(self._read.items()) if counts}

    def _traffic(self, counts: Mapping[int, float]) -> Traffic:
        total, local = sum(counts.values()), dict[str, float]()
        for partition, count in sorted(counts.items()):
            for rack in sorted(set(self.racks_of.get(partition, ()))):
                local[rack] = local.get(rack, 0.0) + count
        return Traffic(_PARTS, {rack: round(_PARTS * held / total) for rack, held in sorted(local.items())}, _PARTS)


def _faded(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Return the fading mean; what has come to nothing is left out."""
    if not before:
        return dict(now)
    every = {name: _KEPT * before.get(name, 0.0) + (1 - _KEPT) * now.get(name, 0.0) for name in sorted({*before, *now})}
    return {name: weight for name, weight in every.items() if weight > 1e-3}
