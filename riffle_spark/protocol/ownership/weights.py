"""Measure the costs of each key-group: its work, its memory, and the racks of its rows.

Theory of operation.

1. The work of a task is counted in microseconds of a core per batch: the rows and bytes it reads and writes, its share
   of snapshots, and the time in the user's code.
2. Counted work is a fading mean over batches. Time in the user's code is the median of the last batches, and counts
   only beyond a threshold, because short times are noise.
3. Assignments use the weights ``in_use``. They are replaced by the measured weights only if work was outside its band
   for some batches, so noise moves nothing.
4. Rows are counted by task and, if slots count them, by partition. With the racks of the partitions' replicas they give
   the traffic of each task by rack.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from riffle_spark.assign.model import MemberId, TaskId, Traffic
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import Groups, parse_task, task_name
from riffle_spark.state.log.manifest import Manifest

__all__ = ["Weights", "memory_by_member"]

_Key = TypeVar("_Key")
_PRIOR_ROWS = 50.0
"""As many rows with the racks of the whole input are added to a task's own, because few rows are a poor sample."""
_ROW_US = 1.0
_BYTE_US = 0.005
"""The time of a core for a row, and for a byte read or written: about 1 µs, and 200 MB a second."""
_SNAPSHOT_SHARE = 1 / 32
"""The share of its state that a changing key-group writes per batch, as a snapshot every so many batches."""
_TIMED_US = 50_000.0
"""Time in the user's code counts beyond this much per slot and batch."""
_TIMED_BATCHES = 5
_FADING = 0.8
"""The weight of earlier batches in a fading mean."""
_PARTS = 1000
"""The parts of the mean traffic of a task."""
_SCALE = 1000


class Weights:
    """The measured work, memory and traffic of each task.

    ``measured`` is the work in microseconds of a core per batch, ``in_use`` the weights of assignments. ``memory`` is
    the bytes of Python workers by task, shared out by rows. ``racks_of`` has the racks with a replica of each partition
    number, ``racks_of_shards`` of each (topic, partition).
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self.measured: dict[TaskId, float] = {}
        self.in_use: dict[TaskId, int] = {}
        self.memory: dict[TaskId, float] = {}
        self.racks_of: Mapping[int, tuple[str, ...]] = {}
        self.racks_of_shards: Mapping[tuple[str, int], tuple[str, ...]] = {}
        self._counted_work: dict[TaskId, float] = {}
        self._times: deque[dict[TaskId, float]] = deque(maxlen=_TIMED_BATCHES)
        self._rows: dict[TaskId, float] = {}
        self._partition_rows: dict[TaskId, dict[int, float]] = {}

    def record_batch(self, receipts: Sequence[Receipt], manifest: Manifest, groups: Groups) -> None:
        """Record a batch by its receipts.

        ``manifest`` is the manifest before it, ``groups`` are the groups of the stores.
        """
        work: dict[TaskId, float] = {}
        rows: dict[TaskId, float] = {}
        times: dict[TaskId, float] = {}
        partition_rows: dict[TaskId, dict[int, float]] = {}
        for receipt in receipts:
            task_of = partial(TaskId, groups.of(receipt.store))
            row_us = _ROW_US + _BYTE_US * receipt.input_bytes / max(sum(receipt.received[1]), 1)
            for key_group, count in zip(*receipt.received, strict=True):
                t = task_of(key_group)
                work[t] = work.get(t, 0.0) + count * row_us
                rows[t] = rows.get(t, 0.0) + count
            for key_group, amount in self._work_of_changes(receipt, manifest):
                _add(work, task_of(key_group), amount)
            for key_group, time in self._time_of(receipt, task_of).items():
                _add(times, task_of(key_group), time)
            for key_group, partition, count in receipt.partition_rows:
                _add(partition_rows.setdefault(task_of(key_group), {}), partition, count)
        self._times.append(times)
        if memory := _memory_by_task(receipts, groups):
            self.memory = _fading_mean(self.memory, memory)
        if work:
            self._counted_work = _fading_mean(self._counted_work, work)
        if rows:
            self._rows = _fading_mean(self._rows, rows)
        typical = self._typical_times()
        tasks = sorted({*self._counted_work, *typical}) if typical else self._counted_work
        self.measured = {t: self._counted_work.get(t, 0.0) + typical.get(t, 0.0) for t in tasks}
        if partition_rows:
            for t in sorted({*self._partition_rows, *partition_rows}):
                self._partition_rows[t] = _fading_sum(self._partition_rows.get(t, {}), partition_rows.get(t, {}))

    def _work_of_changes(self, receipt: Receipt, manifest: Manifest) -> Iterable[tuple[int, float]]:
        """Yield (key-group, microseconds) for the rows and bytes of a slot's changes."""
        for part in receipt.parts:
            snapshot = manifest.entry(receipt.store, part.key_group).snapshot
            snapshot_bytes = snapshot.length * _SNAPSHOT_SHARE if snapshot else 0.0
            yield part.key_group, part.rows * _ROW_US + (part.length + snapshot_bytes) * _BYTE_US

    def _time_of(self, receipt: Receipt, task_of: Callable[[int], TaskId]) -> dict[int, float]:
        """Return the microseconds in the user's code by key-group, as far as they exceed the threshold.

        If a slot did not measure them by key-group, they are shared out like the typical times before, at first by
        rows. Over batches with different key-groups this finds the slow key-groups.
        """
        key_groups, rows = receipt.received
        times: dict[int, float] = dict(zip(*receipt.user_times, strict=True))
        total = float(sum(times.values())) or receipt.seconds.get("compute", 0.0) * 1e6
        if total <= _TIMED_US:
            return {}
        if not times:
            typical = self._typical_times()
            row_us = total / max(sum(rows), 1)
            shares = {kg: typical.get(task_of(kg), 0.0) or n * row_us for kg, n in zip(key_groups, rows, strict=True)}
            scale = total / (sum(shares.values()) or 1.0)
            times = {key_group: share * scale for key_group, share in shares.items()}
        return {key_group: time * (1 - _TIMED_US / total) for key_group, time in times.items()}

    def _typical_times(self) -> dict[TaskId, float]:
        """Return the median of each task's last times, empty before there are enough batches."""
        if len(self._times) < _TIMED_BATCHES:
            return {}
        tasks = sorted({t for times in self._times for t in times})
        return {t: sorted(times.get(t, 0.0) for times in self._times)[_TIMED_BATCHES // 2] for t in tasks}

    def to_record(self) -> dict[str, object]:
        """Return the weights as JSON for a record: the work as measured, and as the last assignment used it."""
        by_name: dict[str, Mapping[TaskId, float]] = {"measured": self.measured, "assigned": self.in_use}
        return {name: {task_name(t): round(load, 3) for t, load in loads.items()} for name, loads in by_name.items()}

    def resume(self, recorded: Mapping[str, object], groups: Groups) -> None:
        """Use the assignment weights that an earlier driver ``recorded``, as far as their groups exist."""
        loads = recorded.get("assigned", {})
        if not self.in_use and isinstance(loads, dict):
            weights = {parse_task(name): load for name, load in loads.items() if isinstance(load, int)}
            self.in_use = groups.restrict(weights)

    def use_measured(self) -> None:
        """Use the measured weights for assignments from now on."""
        self.in_use = {t: int(weight * _SCALE) for t, weight in sorted(self.measured.items())}

    def set_partition_racks(self, racks: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """Set the racks of the input's partitions, by (topic, partition).

        Slots count rows by the number of the partition. With several topics, a rack has a replica of a number if it has
        one in any topic.
        """
        self.racks_of_shards = dict(racks)
        by_number: dict[int, set[str]] = {}
        for (_, partition), replicas in sorted(racks.items()):
            by_number.setdefault(partition, set()).update(replicas)
        self.racks_of = {partition: tuple(sorted(replicas)) for partition, replicas in by_number.items()}

    def traffic(self, groups: Groups, shards: Sequence[tuple[str, int]] | None = None) -> dict[TaskId, Traffic]:
        """Return each task's traffic: its rows, and for how many of them each rack has a replica.

        Rows are counted in thousandths of the mean of tasks. ``shards`` are the partitions of key-groups with dispatch
        by partition. Empty if no racks are known.
        """
        if not self.racks_of:
            return {}
        mean = sum(self._rows.values()) / len(self._rows) if self._rows else 0.0
        if shards is not None:
            replicas = [sorted(set(self.racks_of_shards.get(shard, ()))) for shard in shards]
            tasks = groups.tasks(range(len(replicas)))
            parts = {t: round(_PARTS * self._rows.get(t, 0.0) / mean) if mean else _PARTS for t in tasks}
            return {t: Traffic(n, dict.fromkeys(replicas[t.key_group], n), _PARTS) for t, n in parts.items()}
        totals: dict[int, float] = {}
        for counts in self._partition_rows.values():
            for partition, count in counts.items():
                totals[partition] = totals.get(partition, 0.0) + count
        usual = self._local_shares(totals)
        by_task = sorted((t, counts) for t, counts in self._partition_rows.items() if counts)
        return {t: self._traffic(counts, usual, self._rows.get(t, 0.0) / (mean or 1.0)) for t, counts in by_task}

    def _traffic(self, counts: Mapping[int, float], usual: Mapping[str, float], weight: float) -> Traffic:
        """Return a task's traffic by rack, from its own rows and some rows that are distributed like the whole input.

        ``counts`` has the task's rows by partition number, ``usual`` the share of each rack in all rows, ``weight`` the
        task's rows as a multiple of the mean.
        """
        rows = sum(counts.values())
        own = self._local_shares(counts)
        total = round(_PARTS * weight)
        local: dict[str, int] = {}
        for rack, usual_share in sorted(usual.items()):
            share = (own.get(rack, 0.0) * rows + usual_share * _PRIOR_ROWS) / (rows + _PRIOR_ROWS)
            local[rack] = round(total * share)
        return Traffic(total, local, _PARTS)

    def _local_shares(self, counts: Mapping[int, float]) -> dict[str, float]:
        """Return the share of rows of which each rack has a replica, given the rows by partition number."""
        total = sum(counts.values())
        shares: dict[str, float] = {}
        for partition, count in sorted(counts.items()):
            for rack in self.racks_of.get(partition, ()):
                shares[rack] = shares.get(rack, 0.0) + count / total
        return shares


def memory_by_member(receipts: Iterable[Receipt], groups: Groups) -> dict[MemberId, tuple[int, int]]:
    """Return, by member, the bytes that its Python workers use and the bytes that are left.

    All stores of a slot share one worker. Co-location groups run one after the other in the same workers, so the group
    that uses most memory counts.
    """
    used: dict[MemberId, dict[str, dict[int, int]]] = {}
    free: dict[MemberId, int] = {}
    for receipt in receipts:
        if receipt.memory[0]:
            by_slot = used.setdefault(receipt.member, {}).setdefault(groups.of(receipt.store), {})
            by_slot[receipt.slot] = max(by_slot.get(receipt.slot, 0), receipt.memory[0])
            free[receipt.member] = min(free.get(receipt.member, receipt.memory[1]), receipt.memory[1])
    largest = {member: max(sum(by_slot.values()) for by_slot in by_group.values()) for member, by_group in used.items()}
    return {member: (size, free[member]) for member, size in largest.items()}


def _memory_by_task(receipts: Iterable[Receipt], groups: Groups) -> dict[TaskId, float]:
    """Return the bytes of Python workers by task. A slot's bytes are shared out by the rows of its key-groups."""
    memory: dict[TaskId, float] = {}
    for receipt in receipts:
        row_bytes = receipt.memory[0] / max(sum(receipt.received[1]), 1)
        group = groups.of(receipt.store)
        for key_group, count in zip(*receipt.received, strict=True) if receipt.memory[0] else ():
            t = TaskId(group, key_group)
            memory[t] = max(memory.get(t, 0.0), count * row_bytes)
    return memory


def _add(totals: dict[_Key, float], key: _Key, amount: float) -> None:
    """Add an amount to the total under ``key``, which starts at 0."""
    totals[key] = totals.get(key, 0.0) + amount


def _fading_mean(mean: Mapping[TaskId, float], batch: Mapping[TaskId, float]) -> dict[TaskId, float]:
    """Return the fading mean after a batch, without values near zero. ``mean`` is the mean before it."""
    if not mean:
        return dict(batch)
    faded = {t: _FADING * mean.get(t, 0.0) + (1 - _FADING) * batch.get(t, 0.0) for t in sorted({*mean, *batch})}
    return {t: value for t, value in faded.items() if value > 1e-3}


def _fading_sum(total: Mapping[int, float], batch: Mapping[int, float]) -> dict[int, float]:
    """Return the fading sum after a batch, without values near zero. ``total`` is the sum before it."""
    faded = {n: _FADING * total.get(n, 0.0) + batch.get(n, 0.0) for n in sorted({*total, *batch})}
    return {n: value for n, value in faded.items() if value > 1e-3}
