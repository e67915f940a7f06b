"""Aggregates over session windows on a slot: rows and open sessions of a key that overlap or touch are joined.

The open sessions of a key are a single row of state: lists of starts, of ends and of each buffer, and the key's due
time, which is the earliest end. A session leaves when the watermark passes its end, so the lists are short if event
time is orderly. Each row starts as a session of its own, from its time to its time plus the gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array, positions_of
from riffle_spark.process.blocks.block import Batch, BoolArray, Declared, IndexArray, StateRows, Update
from riffle_spark.process.merging.merge_function import Groups
from riffle_spark.process.merging.merged_lists import flatten_lists
from riffle_spark.process.stages.merged_groups import (
    DistinctGroups,
    MergedGroups,
    OutputMode,
    StoredBuffers,
)
from riffle_spark.process.types.stage_specs import AggregateSpec, TimeSpec, make_unique_name
from riffle_spark.state.formats.due_times import in_milliseconds

_COMBINED_MAX = 2**62
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SessionGroups:
    """A ``BlockComputation`` of an aggregate with a session window in its key. Its state is keyed by ``routing_key``,
    with all open sessions of a key.

    Append mode emits sessions that end. Complete mode emits all sessions in each batch, and they never end. Spark has
    no other modes for sessions.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare lists of open sessions as state. Raises ``ConfigError`` for functions that are not supported."""
        assert key.names == self.spec.routing_key.names, f"the key is {self.spec.routing_key.names}, not {key.names}"
        needed = tuple(name for name in self.spec.rows.names if name not in key.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        lists = [pa.field(field.name, pa.list_(field.type)) for field in _session_schema(self.spec)]
        if self.mode == "complete":
            return Declared(pa.schema(lists), self.spec.output, needed, per_key_group=False, whole=True)
        due = _due_field(self.spec)
        state = pa.schema([*lists, due])
        return Declared(state, self.spec.output, needed, per_key_group=False, time_mode="EventTime", due=due.name)

    def __call__(self, batch: Batch) -> Update:
        """Merge the rows of the batch with the open sessions of their keys. Each row starts as a separate session."""
        sessions, state_rows = _Sessions.of(batch.state, self.spec).with_rows(batch, self.spec)
        touched = np.flatnonzero(np.bincount(batch.codes, minlength=batch.keys.num_rows))
        state = self._make_state(sessions, batch.keys.num_rows).take(pa.array(touched))
        is_emitted = np.full(len(sessions.owners), self.mode == "complete")
        output = self._make_output(batch, sessions, is_emitted)
        return Update(output, touched, state, touched[:0], state_rows)

    def expire_keys(self, batch: Batch) -> Update:
        """Emit the sessions that have ended, and keep the other sessions of their keys."""
        sessions = _Sessions.of(batch.state, self.spec)
        ends = one_array(sessions.table.column(_session_time(self.spec).column))
        has_ended = in_milliseconds(ends) <= (batch.watermark_ms or 0)
        open_sessions = sessions.filter(~has_ended)
        changed = np.flatnonzero(np.bincount(open_sessions.owners, minlength=batch.keys.num_rows))
        state = self._make_state(open_sessions, batch.keys.num_rows).take(pa.array(changed))
        state_rows = StateRows(removed=int(np.count_nonzero(has_ended)))
        return Update(self._make_output(batch, sessions, has_ended), changed, state, changed[:0], state_rows)

    def _make_state(self, sessions: "_Sessions", key_count: int) -> pa.Table:
        """Return the state row of each key, lists of its sessions. A key without sessions has no due time."""
        offsets = positions_of(np.bincount(sessions.owners, minlength=key_count))
        assert offsets[-1] < 2**31
        arrow_offsets = pa.array(offsets, pa.int32())
        columns = {
            name: pa.ListArray.from_arrays(arrow_offsets, one_array(column))
            for name, column in zip(sessions.table.column_names, sessions.table.columns, strict=True)
        }
        if self.mode != "complete":
            due = _due_field(self.spec)
            ends = sessions.times(_session_time(self.spec).column)
            earliest = np.zeros(key_count, dtype=np.int64)
            has_sessions = np.diff(offsets) > 0
            earliest[has_sessions] = np.minimum.reduceat(ends, offsets[:-1][has_sessions]) if len(ends) else 0
            columns[due.name] = pa.array(earliest, mask=~has_sessions).cast(due.type)
        return pa.table(columns)

    def _make_output(self, batch: Batch, sessions: "_Sessions", is_emitted: BoolArray) -> pa.Table:
        """Return the output rows of the sessions that ``is_emitted`` marks."""
        emitted = sessions.filter(is_emitted)
        keys = batch.keys.take(pa.array(emitted.owners))
        results = StoredBuffers.of(self.spec).finish(emitted.table)
        columns = dict(zip(keys.column_names, keys.columns, strict=True)) | dict(
            zip(emitted.table.column_names[:2], emitted.table.columns[:2], strict=True)
        )
        return pa.table([*(columns[name] for name in self.spec.keys.names), *results], names=self.spec.output.names)


def _session_time(spec: AggregateSpec) -> TimeSpec:
    """Return the specification of the session window, which every session aggregate has."""
    assert spec.time is not None, "a session has a start and an end"
    return spec.time


def _session_schema(spec: AggregateSpec) -> pa.Schema:
    """Return the columns of a session: start, end, buffers."""
    time = _session_time(spec)
    return pa.schema([spec.keys.field(time.start), spec.keys.field(time.column), *StoredBuffers.of(spec).schema])


def _due_field(spec: AggregateSpec) -> pa.Field:
    """Return the state column with the earliest end of a key's sessions."""
    end = spec.keys.field(_session_time(spec).column)
    return pa.field(make_unique_name(f"{end.name}_due", [*spec.keys.names, *_session_schema(spec).names]), end.type)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sessions in the order of key and start: per session the index of its key, and a row of start, end and buffers."""

    owners: IndexArray
    table: pa.Table

    @staticmethod
    def of(state: pa.Table, spec: AggregateSpec) -> "_Sessions":
        """Return the sessions in a table of state, which has lists of sessions per key."""
        schema = _session_schema(spec)
        owners, _ = flatten_lists(one_array(state.column(schema.names[0])))
        columns = [_flatten_lists(one_array(state.column(name)), owners) for name in schema.names]
        return _Sessions(owners, pa.Table.from_arrays(columns, schema=schema))

    def filter(self, mask: BoolArray) -> "_Sessions":
        """Return the sessions that ``mask`` marks."""
        return self if mask.all() else _Sessions(self.owners[mask], self.table.filter(pa.array(mask)))

    def times(self, column: str) -> Times:
        """Return the starts or ends of the sessions as integers."""
        return _times_as_integers(self.table, column)

    def with_rows(self, batch: Batch, spec: AggregateSpec) -> tuple["_Sessions", StateRows]:
        """Return the sessions after the batch's rows are joined to them, and the numbers of changed sessions.

        As in Spark, key and start identify a session's row of state, and all sessions of keys with rows are written.
        """
        time = _session_time(spec)
        buffers = StoredBuffers.of(spec)
        open_count = len(self.owners)
        owners = np.concatenate([self.owners, batch.codes])
        starts, ends = (
            np.concatenate([self.times(column), _times_as_integers(batch.rows, column)])
            for column in (str(time.start), time.column)
        )
        joined = _join_intervals(owners, starts, ends)
        size = len(joined.owners)
        groups = Groups(joined.codes[open_count:], size, lambda group: batch.key_text(int(joined.owners[group])))
        old = buffers.merge(self.table, Groups(joined.codes[:open_count], size, groups.group_text))
        state = buffers.fold(batch.rows, old, groups)
        time_type = spec.keys.field(time.column).type
        interval_columns = [pa.array(times).cast(time_type) for times in (joined.starts, joined.ends)]
        sessions = _Sessions(joined.owners, pa.table([*interval_columns, *state.columns], schema=self.table.schema))
        has_rows = np.bincount(batch.codes, minlength=batch.keys.num_rows) > 0
        updated = int(np.count_nonzero(has_rows[joined.owners]))
        unchanged_starts = int(np.count_nonzero(joined.starts[joined.codes[:open_count]] == starts[:open_count]))
        return sessions, StateRows(size - unchanged_starts, updated, open_count - unchanged_starts)


def _flatten_lists(lists: pa.Array, owners: IndexArray) -> pa.Array:
    """Return the elements of the lists, given the list of each element (``owners``).

    Lists in a column that is new are null, and so are their elements.
    """
    if lists.null_count == 0:
        return lists.flatten()
    is_valid = np.array(lists.is_valid().to_numpy(zero_copy_only=False))[owners]
    return lists.flatten().take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _times_as_integers(table: pa.Table, column: str) -> Times:
    """Return a column of times as int64."""
    times: Times = one_array(table.column(column)).cast(pa.int64()).to_numpy()
    return times


@dataclass(frozen=True, slots=True)
class _JoinedIntervals:
    """Intervals after joining, in the order of owner and start.

    ``codes`` has the joined interval of each input interval.
    """

    codes: IndexArray
    owners: IndexArray
    starts: Times
    ends: Times


def _join_intervals(owners: IndexArray, starts: Times, ends: Times) -> _JoinedIntervals:
    """Join the intervals of each owner that overlap or touch. They touch if the end of one is the start of another."""
    combined_starts, combined_ends = _order_by_owner(owners, starts, ends)
    order = np.argsort(combined_starts)  # The order of equal starts does not matter.
    reach = np.maximum.accumulate(combined_ends[order])
    is_first = np.ones(len(order), dtype=np.bool_)
    # The combined times of an owner are above those of all owners before it.
    is_first[1:] = combined_starts[order][1:] > reach[:-1]
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.cumsum(is_first) - 1
    first = order[is_first]
    last_ends = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(last_ends, codes, ends)
    return _JoinedIntervals(codes, owners[first], starts[first], last_ends)


def _order_by_owner(owners: IndexArray, starts: Times, ends: Times) -> Iterator[Times]:
    """Yield the starts and then the ends as integers that are ordered by owner first and by time second."""
    if not len(owners):
        yield from (starts, ends)
        return
    earliest = int(starts.min())
    span = int(ends.max()) - earliest + 1
    if span * (int(owners.max()) + 1) < _COMBINED_MAX:
        yield from (owners * span + (times - earliest) for times in (starts, ends))
        return
    distinct_times, places = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    yield from (owners * len(distinct_times) + part for part in (places[: len(starts)], places[len(starts) :]))


def make_group_computation(spec: AggregateSpec, mode: OutputMode) -> DistinctGroups | MergedGroups | SessionGroups:
    """Return the computation of an aggregate: with DISTINCT, over sessions, or plain."""
    if len(spec.elements):
        return DistinctGroups(spec, mode)
    return MergedGroups(spec, mode) if spec.routing_key == spec.keys else SessionGroups(spec, mode)
