"""What an aggregate over session windows computes on a slot: rows and open sessions of a key that overlap or touch are
one session. Knows intervals. Does not know how gaps are told, nor how late rows are.

A key's open sessions are one row of state: a list of their starts, one of their ends, one of each buffer, and when the
first of them ends, which is when the key is due. Lists are as short as event time is orderly: a session leaves when the
watermark passes its end. The rows of a batch bring each a session of their own, from the row's time on for its gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array, positions_of
from riffle_spark.process.blocks.block import Batch, BoolArray, Declared, IndexArray, Update
from riffle_spark.process.merging.merge_function import Groups
from riffle_spark.process.merging.merged_lists import owned
from riffle_spark.process.stages.merged_groups import (
    DistinctGroups,
    KeptBuffers,
    MergedGroups,
    OutputMode,
)
from riffle_spark.process.types.stage_specs import AggregateSpec, TimeSpec, free_name
from riffle_spark.state.formats.due_times import in_milliseconds

__all__ = ["SessionGroups", "groups_of"]

_WORD = 2**62
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionGroups:
    """A ``BlockComputation`` of an aggregate whose key has a session window; what it keeps is by ``spec.routed``.

    In append mode sessions are answered when their time is over, in complete mode all of them in each batch: then no
    session's time is ever over. Spark has no other mode of sessions.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare lists of sessions; ``ConfigError`` for functions that cannot be merged."""
        assert key.names == self.spec.routed.names, f"the key is {self.spec.routed.names}, not {key.names}"
        needed = tuple(name for name in self.spec.rows.names if name not in key.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        lists = [pa.field(field.name, pa.list_(field.type)) for field in _sessions_schema(self.spec)]
        if self.mode == "complete":
            return Declared(pa.schema(lists), self.spec.answer, needed, per_key_group=False, whole=True)
        due = _due_of(self.spec)
        return Declared(
            pa.schema([*lists, due]), self.spec.answer, needed, per_key_group=False, time_mode="EventTime", due=due.name
        )

    def __call__(self, batch: Batch) -> Update:
        """Merge the sessions of rows with those that are open. Keys without rows are answered as they are."""
        open_before = _Sessions.of(batch.state, self.spec)
        sessions = open_before.with_rows(batch, self.spec)
        touched = np.flatnonzero(np.bincount(batch.codes, minlength=batch.keys.num_rows))
        state = self._state(sessions, batch.keys.num_rows).take(pa.array(touched))
        every = np.ones(len(sessions.owners), dtype=np.bool_)
        output = self._answered(batch, sessions, every if self.mode == "complete" else ~every)
        return Update(output, touched, state, deleted=touched[:0])

    def expired(self, batch: Batch) -> Update:
        """Answer sessions whose time is over, and keep the others of their keys."""
        sessions = _Sessions.of(batch.state, self.spec)
        ends = one_array(sessions.table.column(_time_of(self.spec).column))
        is_over = in_milliseconds(ends) <= (batch.watermark_ms or 0)
        left = sessions.chosen(~is_over)
        kept = np.flatnonzero(np.bincount(left.owners, minlength=batch.keys.num_rows))
        state = self._state(left, batch.keys.num_rows).take(pa.array(kept))
        return Update(self._answered(batch, sessions, is_over), kept, state, deleted=kept[:0])

    def _state(self, sessions: "_Sessions", keys: int) -> pa.Table:
        """Return the state of each key; one without sessions has no due time."""
        offsets = positions_of(np.bincount(sessions.owners, minlength=keys))
        assert offsets[-1] < 2**31
        where = pa.array(offsets, pa.int32())
        columns = {
            name: pa.ListArray.from_arrays(where, one_array(column))
            for name, column in zip(sessions.table.column_names, sessions.table.columns, strict=True)
        }
        if self.mode != "complete":
            ends, due = sessions.times(_time_of(self.spec).column), _due_of(self.spec)
            first = np.zeros(keys, dtype=np.int64)
            some = np.diff(offsets) > 0
            first[some] = np.minimum.reduceat(ends, offsets[:-1][some]) if len(ends) else 0
            columns[due.name] = pa.array(first, mask=~some).cast(due.type)
        return pa.table(columns)

    def _answered(self, batch: Batch, sessions: "_Sessions", some: BoolArray) -> pa.Table:
        told = sessions.chosen(some)
        keys = batch.keys.take(pa.array(told.owners))
        results = KeptBuffers.of(self.spec).answered(told.table)
        columns = dict(zip(keys.column_names, keys.columns, strict=True)) | dict(
            zip(told.table.column_names[:2], told.table.columns[:2], strict=True)
        )
        return pa.table([*(columns[name] for name in self.spec.keys.names), *results], names=self.spec.answer.names)


def _time_of(spec: AggregateSpec) -> TimeSpec:
    assert spec.time is not None, "a session has two ends"
    return spec.time


def _sessions_schema(spec: AggregateSpec) -> pa.Schema:
    """Return the columns of a session: start, end, buffers."""
    time = _time_of(spec)
    return pa.schema([spec.keys.field(time.start), spec.keys.field(time.column), *KeptBuffers.of(spec).schema])


def _due_of(spec: AggregateSpec) -> pa.Field:
    """Return the column that says when a key's first session ends."""
    end = spec.keys.field(_time_of(spec).column)
    return pa.field(free_name(f"{end.name}_due", [*spec.keys.names, *_sessions_schema(spec).names]), end.type)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sessions by key and start: the number of the key of each, and a row of start, end and buffers."""

    owners: IndexArray
    table: pa.Table

    @staticmethod
    def of(state: pa.Table, spec: AggregateSpec) -> "_Sessions":
        """Return the open sessions of all keys."""
        schema = _sessions_schema(spec)
        owners, _ = owned(one_array(state.column(schema.names[0])))
        columns = [_flat(one_array(state.column(name)), owners) for name in schema.names]
        return _Sessions(owners, pa.Table.from_arrays(columns, schema=schema))

    def chosen(self, some: BoolArray) -> "_Sessions":
        """Return some of them."""
        return self if some.all() else _Sessions(self.owners[some], self.table.filter(pa.array(some)))

    def times(self, column: str) -> Times:
        """Return starts or ends as numbers."""
        return _numbers(self.table, column)

    def with_rows(self, batch: Batch, spec: AggregateSpec) -> "_Sessions":
        """Return what the sessions become with those of rows."""
        time, buffers, before = _time_of(spec), KeptBuffers.of(spec), len(self.owners)
        start, end = str(time.start), time.column
        owners = np.concatenate([self.owners, batch.codes])
        starts, ends = (np.concatenate([self.times(of), _numbers(batch.rows, of)]) for of in (start, end))
        joined = _joined(owners, starts, ends)
        size = len(joined.owners)
        groups = Groups(joined.codes[before:], size, lambda group: batch.key_text(int(joined.owners[group])))
        old = buffers.united(self.table, Groups(joined.codes[:before], size, groups.told))
        kept = buffers.merged(batch.rows, old, groups)
        kind = spec.keys.field(end).type
        whole = [pa.array(times).cast(kind) for times in (joined.starts, joined.ends)]
        return _Sessions(joined.owners, pa.table([*whole, *kept.columns], schema=self.table.schema))


def _flat(lists: pa.Array, owners: IndexArray) -> pa.Array:
    """Return all elements of lists, of which each belongs to an owner; where a column is new, its lists are null."""
    if lists.null_count == 0:
        return lists.flatten()
    there = np.array(lists.is_valid().to_numpy(zero_copy_only=False))[owners]
    return lists.flatten().take(pa.array(np.cumsum(there) - 1, mask=~there))


def _numbers(table: pa.Table, column: str) -> Times:
    numbers: Times = one_array(table.column(column)).cast(pa.int64()).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class _Joined:
    """Intervals that overlap or touch as one: the number of the one that each became, and these, by owner and start."""

    codes: IndexArray
    owners: IndexArray
    starts: Times
    ends: Times


def _joined(owners: IndexArray, starts: Times, ends: Times) -> _Joined:
    """Join intervals of one owner each. One that begins where others of its owner have ended touches them."""
    lifted_starts, lifted_ends = _lifted(owners, starts, ends)
    order = np.argsort(lifted_starts)  # which of two that begin at once goes first changes nothing
    reach = np.maximum.accumulate(lifted_ends[order])
    begins = np.ones(len(order), dtype=np.bool_)
    # Another owner's times lie above all before: so it begins by itself.
    begins[1:] = lifted_starts[order][1:] > reach[:-1]
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.cumsum(begins) - 1
    first = order[begins]
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(last, codes, ends)
    return _Joined(codes, owners[first], starts[first], last)


def _lifted(owners: IndexArray, starts: Times, ends: Times) -> Iterator[Times]:
    """Yield starts and ends as numbers that go by owner first, and by time within an owner."""
    if not len(owners):
        yield from (starts, ends)
        return
    least, most = int(starts.min()), int(ends.max())
    if (most - least + 1) * (int(owners.max()) + 1) < _WORD:
        yield from (owners * (most - least + 1) + (times - least) for times in (starts, ends))
        return
    every, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    yield from (owners * len(every) + of for of in (places[: len(starts)], places[len(starts) :]))


def groups_of(spec: AggregateSpec, mode: OutputMode) -> DistinctGroups | MergedGroups | SessionGroups:
    """Return what an aggregate computes, whose rows are routed by ``spec.routed``, and whose state is kept by
    ``spec.stored``.
    """
    if len(spec.elements):
        return DistinctGroups(spec, mode)
    return MergedGroups(spec, mode) if spec.routed == spec.keys else SessionGroups(spec, mode)
