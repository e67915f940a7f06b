"""Measure the costs of each key-group: its work, its memory, and the racks of its rows.

Theory of operation.

1. The work of a task is estimated in microseconds of a core per batch: for the rows and bytes that it reads and writes,
   for its share of snapshots, and for the time in the user's code.
2. The work for rows, bytes and snapshots is a moving average over batches. The time in the user's code is the median
   over the last batches. It counts only beyond a threshold, because short times are noise.
3. Assignments use the weights ``in_use``. The measured weights replace them only if work was outside its band for some
   batches. So noise moves no key-group.
4. Rows are counted by task and, if slots count them, by partition. The traffic of each task by rack is computed from
   these counts and the racks of the partitions' replicas.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.model import MemberId, TaskId, Traffic
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import Groups, parse_task, task_name
from riffle_spark.state.log.manifest import EMPTY, Manifest

_Key = TypeVar("_Key")
_Column: TypeAlias = npt.NDArray[np.float64]
_NOTHING: _Column = np.zeros(0)
_PRIOR_ROWS = 50.0
"""Few rows are a poor sample. So this many rows with the average racks of the input are added to a task's rows."""
_ROW_US = 1.0
_BYTE_US = 0.005
"""The time of a core for a row, about 1 µs, and for a byte read or written, about 200 MB per second."""
_SNAPSHOT_SHARE = 1 / 32
"""The share of its state that a changing key-group writes per batch, with a snapshot every 32 batches."""
_TIMED_US = 50_000.0
"""Time in the user's code counts beyond this much per slot and batch."""
_TIMED_BATCHES = 5
_FADING = 0.8
"""The weight of earlier batches in a moving average."""
_LEAST = 1e-3
"""Fading means up to this value are dropped."""
_PARTS = 1000
"""The parts of the mean traffic of a task."""
_SCALE = 1000


class Weights:
    """The measured work, memory and traffic of each task.

    ``measured`` is the work in microseconds of a core per batch, ``in_use`` the weights of assignments. ``memory`` has
    the bytes of Python workers, divided among their tasks by rows. ``racks_of`` has the racks with a replica of each
    partition number, ``racks_of_shards`` the racks with a replica of each (topic, partition).
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self.measured: dict[TaskId, float] = {}
        self.in_use: dict[TaskId, int] = {}
        self.memory: dict[TaskId, float] = {}
        self.racks_of: Mapping[int, tuple[str, ...]] = {}
        self.racks_of_shards: Mapping[tuple[str, int], tuple[str, ...]] = {}
        self._counted_work = _Means()
        self._mean_memory = _Means()
        self._times: deque[dict[TaskId, float]] = deque(maxlen=_TIMED_BATCHES)
        self._rows = _Means()
        self._partition_rows: dict[TaskId, dict[int, float]] = {}

    def record_batch(self, receipts: Sequence[Receipt], manifest: Manifest, groups: Groups) -> None:
        """Record the receipts of a batch.

        ``manifest`` is the manifest before the batch, ``groups`` has the co-location groups of the stores.
        """
        work = _Amounts()
        rows = _Amounts()
        times: dict[TaskId, float] = {}
        partition_rows: dict[TaskId, dict[int, float]] = {}
        for receipt in receipts:
            group = groups.of(receipt.store)
            task_of = partial(TaskId, group)
            key_groups, counts = receipt.received
            row_us = _ROW_US + _BYTE_US * receipt.input_bytes / max(sum(counts), 1)
            rows.add(group, key_groups, counts)
            work.add(group, key_groups, [count * row_us for count in counts])
            work.add(group, [part.key_group for part in receipt.parts], self._work_of_changes(receipt, manifest))
            for key_group, time in self._time_of(receipt, task_of).items():
                _add(times, task_of(key_group), time)
            for key_group, partition, count in receipt.partition_rows:
                _add(partition_rows.setdefault(task_of(key_group), {}), partition, count)
        self._times.append(times)
        if memory := _memory_by_group(receipts, groups):
            self._mean_memory.fade(memory)
            self.memory = self._mean_memory.by_task()
        self._counted_work.fade(work.sums())
        self._rows.fade(rows.sums())
        self.measured = self._counted_work.by_task()
        if typical := self._typical_times():
            tasks = sorted({*self.measured, *typical})
            self.measured = {t: self.measured.get(t, 0.0) + typical.get(t, 0.0) for t in tasks}
        if partition_rows:
            for t in sorted({*self._partition_rows, *partition_rows}):
                self._partition_rows[t] = _fading_sum(self._partition_rows.get(t, {}), partition_rows.get(t, {}))

    def _work_of_changes(self, receipt: Receipt, manifest: Manifest) -> list[float]:
        """Return the microseconds for the rows and bytes of each part of a slot's changes."""
        entries = manifest.entries
        store = receipt.store
        snapshots = [entries.get((store, part.key_group), EMPTY).snapshot for part in receipt.parts]
        return [
            part.rows * _ROW_US + (part.length + (snapshot.length * _SNAPSHOT_SHARE if snapshot else 0.0)) * _BYTE_US
            for part, snapshot in zip(receipt.parts, snapshots, strict=True)
        ]

    def _time_of(self, receipt: Receipt, task_of: Callable[[int], TaskId]) -> dict[int, float]:
        """Return by key-group the microseconds in the user's code that exceed the threshold.

        If a slot did not measure the time by key-group, it is divided among them like their typical times, or by rows
        for key-groups without a typical time. Slots of different batches have different key-groups, so this finds the
        slow ones.
        """
        if not receipt.user_times[0] and receipt.seconds.get("compute", 0.0) * 1e6 <= _TIMED_US:
            return {}
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
        """Return the median of each task's last times. Return none before there are enough batches."""
        if len(self._times) < _TIMED_BATCHES:
            return {}
        tasks = sorted({t for times in self._times for t in times})
        return {t: sorted(times.get(t, 0.0) for times in self._times)[_TIMED_BATCHES // 2] for t in tasks}

    def to_record(self, *, with_measured: bool = True) -> dict[str, object]:
        """Return the weights as JSON for a record: the measured ones, and those of the last assignment."""
        by_name: dict[str, Mapping[TaskId, float]] = {"measured": self.measured} if with_measured else {}
        by_name["assigned"] = self.in_use
        return {name: {task_name(t): round(load, 3) for t, load in loads.items()} for name, loads in by_name.items()}

    def resume(self, recorded: Mapping[str, object], groups: Groups) -> None:
        """Use the assignment weights that an earlier driver ``recorded``, except those of groups that do not exist."""
        loads = recorded.get("assigned", {})
        if not self.in_use and isinstance(loads, dict):
            weights = {parse_task(name): load for name, load in loads.items() if isinstance(load, int)}
            self.in_use = groups.restrict(weights)

    def use_measured(self) -> None:
        """Use the measured weights for assignments from now on."""
        self.in_use = {t: int(weight * _SCALE) for t, weight in sorted(self.measured.items())}

    def set_partition_racks(self, racks: Mapping[tuple[str, int], tuple[str, ...]]) -> None:
        """Set the racks of the input's partitions, by (topic, partition).

        Slots count rows by partition number, without the topic. So with several topics, a rack has a replica of a
        number if it has a replica of this partition of any topic.
        """
        self.racks_of_shards = dict(racks)
        by_number: dict[int, set[str]] = {}
        for (_, partition), replicas in sorted(racks.items()):
            by_number.setdefault(partition, set()).update(replicas)
        self.racks_of = {partition: tuple(sorted(replicas)) for partition, replicas in by_number.items()}

    def traffic(self, groups: Groups, shards: Sequence[tuple[str, int]] | None = None) -> dict[TaskId, Traffic]:
        """Return each task's traffic: its rows, and the number of its rows of which each rack has a replica.

        Rows are counted in thousandths of the mean of all tasks. ``shards`` has the partitions of key-groups with
        dispatch by partition. Return no traffic if no racks are known.
        """
        if not self.racks_of:
            return {}
        rows = self._rows.by_task()
        mean = sum(rows.values()) / len(rows) if rows else 0.0
        if shards is not None:
            replicas = [sorted(set(self.racks_of_shards.get(shard, ()))) for shard in shards]
            tasks = groups.tasks(range(len(replicas)))
            parts = {t: round(_PARTS * rows.get(t, 0.0) / mean) if mean else _PARTS for t in tasks}
            return {t: Traffic(n, dict.fromkeys(replicas[t.key_group], n), _PARTS) for t, n in parts.items()}
        totals: dict[int, float] = {}
        for counts in self._partition_rows.values():
            for partition, count in counts.items():
                totals[partition] = totals.get(partition, 0.0) + count
        usual = self._local_shares(totals)
        by_task = sorted((t, counts) for t, counts in self._partition_rows.items() if counts)
        return {t: self._traffic(counts, usual, rows.get(t, 0.0) / (mean or 1.0)) for t, counts in by_task}

    def _traffic(self, counts: Mapping[int, float], usual: Mapping[str, float], weight: float) -> Traffic:
        """Return a task's traffic by rack, from its own rows and some rows that are distributed like the whole input.

        ``counts`` has the task's rows by partition number, ``usual`` the share of each rack in all rows, ``weight`` the
        task's rows as a multiple of the mean.
        """
        rows = sum(counts.values())
        local_shares = self._local_shares(counts)
        total = round(_PARTS * weight)
        local: dict[str, int] = {}
        for rack, usual_share in sorted(usual.items()):
            share = (local_shares.get(rack, 0.0) * rows + usual_share * _PRIOR_ROWS) / (rows + _PRIOR_ROWS)
            local[rack] = round(total * share)
        return Traffic(total, local, _PARTS)

    def _local_shares(self, counts: Mapping[int, float]) -> dict[str, float]:
        """Return for each rack the share of rows of which it has a replica, given the rows by partition number."""
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
    used_bytes: dict[MemberId, dict[str, dict[int, int]]] = {}
    free_bytes: dict[MemberId, int] = {}
    for receipt in receipts:
        if receipt.memory[0]:
            by_slot = used_bytes.setdefault(receipt.member, {}).setdefault(groups.of(receipt.store), {})
            by_slot[receipt.slot] = max(by_slot.get(receipt.slot, 0), receipt.memory[0])
            free_bytes[receipt.member] = min(free_bytes.get(receipt.member, receipt.memory[1]), receipt.memory[1])
    largest = {
        member: max(sum(by_slot.values()) for by_slot in by_group.values()) for member, by_group in used_bytes.items()
    }
    return {member: (size, free_bytes[member]) for member, size in largest.items()}


def _memory_by_group(receipts: Iterable[Receipt], groups: Groups) -> dict[str, _Column]:
    """Return the bytes of Python workers by key-group of each group.

    A slot's bytes are divided among its key-groups by their rows. If a slot has several stores, the largest share of a
    key-group counts.
    """
    shares = _Amounts()
    for receipt in receipts:
        key_groups, counts = receipt.received
        row_bytes = receipt.memory[0] / max(sum(counts), 1)
        if row_bytes:
            shares.add(groups.of(receipt.store), key_groups, [count * row_bytes for count in counts])
    return shares.largest()


class _Amounts:
    """Amounts of key-groups, as two lists per group: key-groups, and an amount for each."""

    def __init__(self) -> None:
        self._by_group: dict[str, tuple[list[int], list[float]]] = {}

    def add(self, group: str, key_groups: Iterable[int], amounts: Iterable[float]) -> None:
        """Add amounts of key-groups, which may be listed several times."""
        all_key_groups, all_amounts = self._by_group.setdefault(group, ([], []))
        all_key_groups += key_groups
        all_amounts += amounts

    def sums(self) -> dict[str, _Column]:
        """Return the sum of each key-group, by group."""
        return {
            group: np.bincount(key_groups, amounts).astype(np.float64)
            for group, (key_groups, amounts) in self._by_group.items()
            if key_groups
        }

    def largest(self) -> dict[str, _Column]:
        """Return the largest amount of each key-group, by group."""
        columns: dict[str, _Column] = {}
        for group, (key_groups, amounts) in self._by_group.items():
            if key_groups:
                columns[group] = np.zeros(max(key_groups) + 1)
                np.maximum.at(columns[group], key_groups, amounts)
        return columns


class _Means:
    """The moving average of an amount of each task, as a column per group whose rows are the key-groups."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._tasks: dict[str, list[TaskId]] = {}

    def fade(self, batch: Mapping[str, _Column]) -> None:
        """Add the amounts of a batch, unless it has none. The first batch sets the means."""
        if not self._columns:
            self._columns = dict(batch)
        elif batch:
            self._columns = {
                group: _fade(self._columns.get(group, _NOTHING), batch.get(group, _NOTHING))
                for group in sorted({*self._columns, *batch})
            }

    def by_task(self) -> dict[TaskId, float]:
        """Return the mean of each task, sorted, without zeros."""
        means: dict[TaskId, float] = {}
        for group, column in sorted(self._columns.items()):
            tasks = self._tasks.get(group, [])
            if len(tasks) < len(column):
                self._tasks[group] = tasks = [TaskId(group, key_group) for key_group in range(len(column))]
            means |= {t: value for t, value in zip(tasks, column.tolist(), strict=False) if value}
        return means


def _fade(mean: _Column, batch: _Column) -> _Column:
    """Return the moving average after a batch, with values near zero as zero. ``mean`` is that before the batch."""
    faded_mean = np.zeros(max(len(mean), len(batch)))
    faded_mean[: len(mean)] = _FADING * mean
    faded_mean[: len(batch)] += (1 - _FADING) * batch
    faded_mean[faded_mean <= _LEAST] = 0.0
    return faded_mean


def _add(totals: dict[_Key, float], key: _Key, amount: float) -> None:
    """Add an amount to the total under ``key``, which starts at 0."""
    totals[key] = totals.get(key, 0.0) + amount


def _fading_sum(total: Mapping[int, float], batch: Mapping[int, float]) -> dict[int, float]:
    """Return the fading sum after a batch, without values near zero. ``total`` is the sum before the batch."""
    faded = {n: _FADING * total.get(n, 0.0) + batch.get(n, 0.0) for n in sorted({*total, *batch})}
    return {n: value for n, value in faded.items() if value > _LEAST}
