"""What each key-group costs, as measured: its work, and where its rows come from. Knows receipts and racks. Does not
know when to assign anew.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from riffle_spark.assign.model import MemberId, Traffic
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.state.log.manifest import Manifest

__all__ = ["Weights", "memory_by_member"]

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
    """What each key-group takes, in microseconds of a core a batch: rows and bytes that it reads and writes, its share
    of snapshots, and time in the user's code; and rows by key-group and, where slots count them, by partition. Means
    over batches that fade; of times the median of the last ones.

    ``latched`` are the weights that assignments go by: measured ones, taken only when they were outside the band for
    some batches, so that noise moves nothing.
    """

    def __init__(self) -> None:
        self.measured: dict[int, float] = {}
        self.latched: dict[int, int] = {}
        self._counted: dict[int, float] = {}
        self._times: deque[dict[int, float]] = deque(maxlen=_TIMES)
        self.memory: dict[int, float] = {}
        """Bytes of memory by key-group: those of Python workers, shared out by rows."""
        self._rows: dict[int, float] = {}
        self._read: dict[int, dict[int, float]] = {}
        self.racks_of: Mapping[int, tuple[str, ...]] = {}
        """The racks that hold a replica of each partition of the input, by the number that slots count under."""
        self.racks_of_shards: Mapping[tuple[str, int], tuple[str, ...]] = {}
        """The same by (topic, partition), where each is a shard."""

    def ran(
        self, receipts: Sequence[Receipt], before: Manifest,
        store_weights: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Take a batch's receipts; ``before`` tells of its state. Work for a store counts as much as its weight says, 1
        where nothing does.
        """
        work: dict[int, float] = {}
        rows: dict[int, float] = {}
        times: dict[int, float] = {}
        read: dict[int, dict[int, float]] = {}
        for receipt in receipts:
            weight = store_weights.get(receipt.store, 1.0)
            for key_group, took in self._work_of(receipt, before):
                work[key_group] = work.get(key_group, 0.0) + weight * took
            for key_group, count in zip(*receipt.received, strict=True):
                rows[key_group] = rows.get(key_group, 0.0) + count
            for key_group, took in self._time_of(receipt).items():
                times[key_group] = times.get(key_group, 0.0) + weight * took
            for key_group, partition, count in receipt.read:
                of_group = read.setdefault(key_group, {})
                of_group[partition] = of_group.get(partition, 0.0) + count
        self._times.append(times)
        if held := _memory_by_key_group(receipts):
            self.memory = _faded(self.memory, held)
        if work:
            self._counted = _faded(self._counted, work)
        if rows:
            self._rows = _faded(self._rows, rows)
        typical = self._typical()
        every = sorted({*self._counted, *typical}) if typical else self._counted
        self.measured = {kg: self._counted.get(kg, 0.0) + typical.get(kg, 0.0) for kg in every}
        for key_group in sorted({*self._read, *read}) if read else ():
            self._read[key_group] = _summed(self._read.get(key_group, {}), read.get(key_group, {}))

    def _work_of(self, receipt: Receipt, before: Manifest) -> Iterable[tuple[int, float]]:
        """Yield what rows and bytes take, by key-group: of what came in, then of what changed."""
        row_us = _ROW_US + _BYTE_US * receipt.input_bytes / max(receipt.rows, 1)
        for key_group, count in zip(*receipt.received, strict=True):
            yield key_group, count * row_us
        for part in receipt.parts:
            snapshot = before.entry(receipt.store, part.key_group).snapshot
            kept = snapshot.length * _SNAPSHOT_SHARE if snapshot else 0.0
            yield part.key_group, part.rows * _ROW_US + (part.length + kept) * _BYTE_US

    def _time_of(self, receipt: Receipt) -> dict[int, float]:
        """Return the time in the user's code by key-group, as far as it counts: as it was measured, else shared out as
        the key-groups' times were before; at first by rows.

        Where key-groups of one call go different ways, those that take long are found: the others' times become less.
        """
        groups, rows = receipt.received
        told: dict[int, float] = dict(zip(*receipt.busy, strict=True))
        total = float(sum(told.values())) or receipt.seconds.get("compute", 0.0) * 1e6
        if total <= _TIMED_US:
            return {}
        if not told:
            before = self._typical()
            a_row, counts = total / max(sum(rows), 1), zip(groups, rows, strict=True)
            share = {key_group: before.get(key_group, 0.0) or count * a_row for key_group, count in counts}
            scale = total / (sum(share.values()) or 1.0)
            told = {key_group: each * scale for key_group, each in share.items()}
        return {key_group: took * (1 - _TIMED_US / total) for key_group, took in told.items()}

    def _typical(self) -> dict[int, float]:
        every = sorted({key_group for times in self._times for key_group in times})
        median = {kg: sorted(times.get(kg, 0.0) for times in self._times)[len(self._times) // 2] for kg in every}
        return median if len(self._times) == _TIMES else {}

    def recorded(self) -> dict[str, object]:
        """Return what a record tells of load: as it was measured, and as the last assignment went by it."""
        told: dict[str, Mapping[int, float]] = {"measured": self.measured, "assigned": self.latched}
        return {name: {str(kg): round(load, 3) for kg, load in by.items()} for name, by in told.items() if by}

    def go_on(self, recorded: Mapping[str, object]) -> None:
        """Go on assigning by the weights of an earlier driver."""
        by = recorded.get("assigned", {})
        if not self.latched and isinstance(by, dict):
            self.latched = {int(kg): load for kg, load in by.items() if isinstance(load, int)}

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
        """Return, by key-group, its rows in thousandths of a key-group's mean, and of how many of these each rack holds
        a replica.

        ``shards`` are the partitions that key-groups stand for, where dispatch is by partition.
        """
        if not self.racks_of:
            return {}
        mean = sum(self._rows.values()) / len(self._rows) if self._rows else 0.0
        if shards is not None:
            held = [sorted(set(self.racks_of_shards.get(shard, ()))) for shard in shards]
            parts = [round(_PARTS * self._rows.get(kg, 0.0) / mean) if mean else _PARTS for kg in range(len(held))]
            return {kg: Traffic(parts[kg], dict.fromkeys(racks, parts[kg]), _PARTS) for kg, racks in enumerate(held)}
        whole: dict[int, float] = {}
        for counts in self._read.values():
            for partition, count in counts.items():
                whole[partition] = whole.get(partition, 0.0) + count
        usual = self._local(whole)
        read = sorted((key_group, counts) for key_group, counts in self._read.items() if counts)
        return {kg: self._traffic(counts, usual, self._rows.get(kg, 0.0) / (mean or 1.0)) for kg, counts in read}

    def _traffic(self, counts: Mapping[int, float], usual: Mapping[str, float], weight: float) -> Traffic:
        """Return a key-group's traffic, with some rows as they are all over the input beside its own."""
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


def memory_by_member(receipts: Iterable[Receipt]) -> dict[MemberId, tuple[int, int]]:
    """Return the bytes that each member's Python workers took, and what was left besides: a worker a slot, whichever
    stores it served.
    """
    taken: dict[MemberId, dict[int, int]] = {}
    left: dict[MemberId, int] = {}
    for receipt in receipts:
        if receipt.memory[0]:
            by_slot = taken.setdefault(receipt.member, {})
            by_slot[receipt.slot] = max(by_slot.get(receipt.slot, 0), receipt.memory[0])
            left[receipt.member] = min(left.get(receipt.member, receipt.memory[1]), receipt.memory[1])
    return {member: (sum(by_slot.values()), left[member]) for member, by_slot in taken.items()}


def _memory_by_key_group(receipts: Iterable[Receipt]) -> dict[int, float]:
    took: dict[int, float] = {}
    for receipt in receipts:
        rows = sum(receipt.received[1])
        for key_group, count in zip(*receipt.received, strict=True) if receipt.memory[0] else ():
            took[key_group] = max(took.get(key_group, 0.0), receipt.memory[0] * count / max(rows, 1))
    return took


def _faded(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Return the fading mean; what has come to nothing is left out."""
    if not before:
        return dict(now)
    every = {name: _KEPT * before.get(name, 0.0) + (1 - _KEPT) * now.get(name, 0.0) for name in sorted({*before, *now})}
    return {name: weight for name, weight in every.items() if weight > 1e-3}


def _summed(before: Mapping[int, float], now: Mapping[int, float]) -> dict[int, float]:
    """Return the fading sum: of how many rows there were, too."""
    every = {name: _KEPT * before.get(name, 0.0) + now.get(name, 0.0) for name in sorted({*before, *now})}
    return {name: count for name, count in every.items() if count > 1e-3}
