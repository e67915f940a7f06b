"""What each key-group costs, as measured: its work, and where its rows come from. Knows receipts and racks. Does not
know when to assign anew.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from riffle_spark.assign.model import MemberId, TaskId, Traffic
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import Groups, named, task_named
from riffle_spark.state.log.manifest import Manifest

__all__ = ["Weights", "memory_by_member"]

_What = TypeVar("_What")
_FEW_ROWS = 50.0
"""So many rows of the whole input stand beside what was seen of a key-group: few rows tell little of their racks."""
_ROW_US = 1.0
_BYTE_US = 0.005
"""What a row, and a byte that is read or written, takes of a core: about 1 µs, and 200 MB a second."""
_SNAPSHOT_SHARE = 1 / 32
"""The share of its state that a key-group which changes writes a batch, as a snapshot every so many batches."""
_TIMED_US = 50_000.0
"""Time in a user's code counts beyond this much a slot and batch: what is less, or is once, is the machine's noise."""
_TIMES = 5
_KEPT = 0.8
"""The share of what was measured before that counts beside a new batch."""
_PARTS = 1000
"""Shares of traffic are whole numbers out of so many."""
_SCALE = 1000


class Weights:
    """What each task takes, in microseconds of a core a batch: rows and bytes that it reads and writes, its share
    of snapshots, and time in the user's code; and rows by task and, where slots count them, by partition. Means
    over batches that fade; of times the median of the last ones.

    ``latched`` are the weights that assignments go by: measured ones, taken only when they were outside the band for
    some batches, so that noise moves nothing.
    """

    def __init__(self) -> None:
        self.measured: dict[TaskId, float] = {}
        self.latched: dict[TaskId, int] = {}
        self._counted: dict[TaskId, float] = {}
        self._times: deque[dict[TaskId, float]] = deque(maxlen=_TIMES)
        self.memory: dict[TaskId, float] = {}
        """Bytes of memory by task: those of Python workers, shared out by rows."""
        self._rows: dict[TaskId, float] = {}
        self._read: dict[TaskId, dict[int, float]] = {}
        self.racks_of: Mapping[int, tuple[str, ...]] = {}
        """The racks that hold a replica of each partition of the input, by the number that slots count under."""
        self.racks_of_shards: Mapping[tuple[str, int], tuple[str, ...]] = {}
        """The same by (topic, partition), where each is a shard."""

    def ran(self, receipts: Sequence[Receipt], before: Manifest, groups: Groups) -> None:
        """Take a batch's receipts. ``before`` is the manifest before it, ``groups`` are those of the stores."""
        work: dict[TaskId, float] = {}
        rows: dict[TaskId, float] = {}
        times: dict[TaskId, float] = {}
        read: dict[TaskId, dict[int, float]] = {}
        for receipt in receipts:
            of_task = partial(groups.task, receipt.store)
            for key_group, took in self._work_of(receipt, before):
                _add(work, of_task(key_group), took)
            for key_group, count in zip(*receipt.received, strict=True):
                _add(rows, of_task(key_group), count)
            for key_group, took in self._time_of(receipt, of_task).items():
                _add(times, of_task(key_group), took)
            for key_group, partition, count in receipt.read:
                _add(read.setdefault(of_task(key_group), {}), partition, count)
        self._times.append(times)
        if held := _memory_by_task(receipts, groups):
            self.memory = _faded(self.memory, held)
        if work:
            self._counted = _faded(self._counted, work)
        if rows:
            self._rows = _faded(self._rows, rows)
        typical = self._typical()
        every = sorted({*self._counted, *typical}) if typical else self._counted
        self.measured = {t: self._counted.get(t, 0.0) + typical.get(t, 0.0) for t in every}
        for t in sorted({*self._read, *read}) if read else ():
            self._read[t] = _summed(self._read.get(t, {}), read.get(t, {}))

    def _work_of(self, receipt: Receipt, before: Manifest) -> Iterable[tuple[int, float]]:
        """Yield what rows and bytes take, by key-group: of what came in, then of what changed."""
        row_us = _ROW_US + _BYTE_US * receipt.input_bytes / max(receipt.rows, 1)
        for key_group, count in zip(*receipt.received, strict=True):
            yield key_group, count * row_us
        for part in receipt.parts:
            snapshot = before.entry(receipt.store, part.key_group).snapshot
            kept = snapshot.length * _SNAPSHOT_SHARE if snapshot else 0.0
            yield part.key_group, part.rows * _ROW_US + (part.length + kept) * _BYTE_US

    def _time_of(self, receipt: Receipt, of_task: Callable[[int], TaskId]) -> dict[int, float]:
        """Return the time in the user's code by key-group, as far as it counts: as it was measured, else shared out as
        the key-groups' times were before; at first by rows.

        Where key-groups of one call go different ways, those that take long are found: the others' times become less.
        """
        numbers, rows = receipt.received
        told: dict[int, float] = dict(zip(*receipt.busy, strict=True))
        total = float(sum(told.values())) or receipt.seconds.get("compute", 0.0) * 1e6
        if total <= _TIMED_US:
            return {}
        if not told:
            before, a_row = self._typical(), total / max(sum(rows), 1)
            counts = zip(numbers, rows, strict=True)
            share = {kg: before.get(of_task(kg), 0.0) or count * a_row for kg, count in counts}
            scale = total / (sum(share.values()) or 1.0)
            told = {key_group: each * scale for key_group, each in share.items()}
        return {key_group: took * (1 - _TIMED_US / total) for key_group, took in told.items()}

    def _typical(self) -> dict[TaskId, float]:
        every = sorted({t for times in self._times for t in times})
        median = {t: sorted(times.get(t, 0.0) for times in self._times)[len(self._times) // 2] for t in every}
        return median if len(self._times) == _TIMES else {}

    def recorded(self) -> dict[str, object]:
        """Return what a record tells of load: as it was measured, and as the last assignment went by it."""
        told: dict[str, Mapping[TaskId, float]] = {"measured": self.measured, "assigned": self.latched}
        return {name: {named(t): round(load, 3) for t, load in by.items()} for name, by in told.items()}

    def go_on(self, recorded: Mapping[str, object], groups: Groups) -> None:
        """Go on assigning by the weights of an earlier driver, as far as they are of these groups."""
        by = recorded.get("assigned", {})
        if not self.latched and isinstance(by, dict):
            found = {task_named(name): load for name, load in by.items() if isinstance(load, int)}
            self.latched = groups.only(found)

    def latch(self) -> None:
        """Let assignments go by what is measured now."""
        self.latched = {t: int(weight * _SCALE) for t, weight in sorted(self.measured.items())}

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

    def traffic(self, groups: Groups, shards: Sequence[tuple[str, int]] | None = None) -> dict[TaskId, Traffic]:
        """Return, by task, its rows in thousandths of a task's mean, and of how many of these each rack holds
        a replica.

        ``shards`` are the partitions that key-groups stand for, where dispatch is by partition.
        """
        if not self.racks_of:
            return {}
        mean = sum(self._rows.values()) / len(self._rows) if self._rows else 0.0
        if shards is not None:
            held = [sorted(set(self.racks_of_shards.get(shard, ()))) for shard in shards]
            tasks = groups.tasks(range(len(held)))
            parts = {t: round(_PARTS * self._rows.get(t, 0.0) / mean) if mean else _PARTS for t in tasks}
            return {t: Traffic(n, dict.fromkeys(held[t.key_group], n), _PARTS) for t, n in parts.items()}
        whole: dict[int, float] = {}
        for counts in self._read.values():
            for partition, count in counts.items():
                whole[partition] = whole.get(partition, 0.0) + count
        usual = self._local(whole)
        read = sorted((t, counts) for t, counts in self._read.items() if counts)
        return {t: self._traffic(counts, usual, self._rows.get(t, 0.0) / (mean or 1.0)) for t, counts in read}

    def _traffic(self, counts: Mapping[int, float], usual: Mapping[str, float], weight: float) -> Traffic:
        """Return a task's traffic, with some rows as they are all over the input beside its own."""
        seen, own = sum(counts.values()), self._local(counts)
        total = round(_PARTS * weight)
        local = {rack: (own.get(rack, 0.0) * seen + usual[rack] * _FEW_ROWS) / (seen + _FEW_ROWS) for rack in usual}
        return Traffic(total, {rack: round(total * share) for rack, share in sorted(local.items())}, _PARTS)

    def _local(self, counts: Mapping[int, float]) -> dict[str, float]:
        """Return the share of rows of which each rack holds a replica."""
        total, local = sum(counts.values()), dict[str, float]()
        for partition, count in sorted(counts.items()):
            for rack in self.racks_of.get(partition, ()):
                local[rack] = local.get(rack, 0.0) + count / total
        return local


def memory_by_member(receipts: Iterable[Receipt], groups: Groups) -> dict[MemberId, tuple[int, int]]:
    """Return the bytes that each member's Python workers took, and what was left besides: a worker a slot, whichever
    stores it served. One group's slots run after those of another, and use the same workers.
    """
    taken: dict[MemberId, dict[str, dict[int, int]]] = {}
    left: dict[MemberId, int] = {}
    for receipt in receipts:
        if receipt.memory[0]:
            by_slot = taken.setdefault(receipt.member, {}).setdefault(groups.of(receipt.store), {})
            by_slot[receipt.slot] = max(by_slot.get(receipt.slot, 0), receipt.memory[0])
            left[receipt.member] = min(left.get(receipt.member, receipt.memory[1]), receipt.memory[1])
    most = {member: max(sum(by_slot.values()) for by_slot in told.values()) for member, told in taken.items()}
    return {member: (took, left[member]) for member, took in most.items()}


def _memory_by_task(receipts: Iterable[Receipt], groups: Groups) -> dict[TaskId, float]:
    took: dict[TaskId, float] = {}
    for receipt in receipts:
        rows = sum(receipt.received[1])
        for key_group, count in zip(*receipt.received, strict=True) if receipt.memory[0] else ():
            t = groups.task(receipt.store, key_group)
            took[t] = max(took.get(t, 0.0), receipt.memory[0] * count / max(rows, 1))
    return took


def _add(totals: dict[_What, float], what: _What, more: float) -> None:
    totals[what] = totals.get(what, 0.0) + more


def _faded(before: Mapping[TaskId, float], now: Mapping[TaskId, float]) -> dict[TaskId, float]:
    """Return the fading mean; what has come to nothing is left out."""
    if not before:
        return dict(now)
    every = {name: _KEPT * before.get(name, 0.0) + (1 - _KEPT) * now.get(name, 0.0) for name in sorted({*before, *now})}
    return {name: weight for name, weight in every.items() if weight > 1e-3}


def _summed(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Return the fading sum: of how many rows there were, too."""
    every = {name: _KEPT * before.get(name, 0.0) + now.get(name, 0.0) for name in sorted({*before, *now})}
    return {name: count for name, count in every.items() if count > 1e-3}
