"""What each key-group costs, as measured. Knows receipts, partitions and racks. Does not know how much it matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from riffle_spark.assign.model import Traffic
from riffle_spark.worker.order import Receipt

__all__ = ["Weights"]

_KEPT = 0.8
"""The share of what was measured before that counts beside a new batch."""
_PARTS = 1000
"""Shares of traffic are whole numbers out of so many."""
_SCALE = 1000


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

    def ran(self, receipts: Iterable[Receipt]) -> None:
        """Take a batch's receipts."""
        rows: dict[int, float] = {}
        read: dict[int, dict[int, float]] = {}
        for receipt in receipts:
            for part in receipt.parts:
                rows[part.key_group] = rows.get(part.key_group, 0.0) + part.rows
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
