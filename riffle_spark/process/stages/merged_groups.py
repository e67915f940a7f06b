"""Aggregates on a slot: the buffers of rows are merged into the buffers of their keys.

The computation is made from a plan's specification and the query's output mode, and is a ``BlockComputation``::

    plan = read_aggregate(catalyst, node)
    compute = MergedGroups(plan.spec, "append")

Its rows are ``plan.spec.rows``, its key is ``plan.spec.keys``, and ``plan.evaluation`` reads its output,
``plan.spec.output``. Late rows are dropped before this computation.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode
from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, Declared, IndexArray, Update
from riffle_spark.process.blocks.combining import Combined, CombinedColumn, CombinedFunction, can_compare
from riffle_spark.process.blocks.folding import group_keys, true_mask
from riffle_spark.process.merging.merge_function import Groups, MergeFunction, are_valid, pick_places
from riffle_spark.process.merging.merge_registry import make_merge_function
from riffle_spark.process.types.stage_specs import AggregateSpec, FunctionSpec
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.key_codec import encode_keys

OutputMode: TypeAlias = Literal["update", "append", "complete"]
"""When keys are emitted, as in Spark: if a batch has rows for them, when they expire, or in each batch."""
_EXTREMES: Final[Mapping[str, CombinedFunction]] = {"Max": "max", "Min": "min"}


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """A ``BlockComputation`` of an aggregate.

    Update mode emits the keys of a batch's rows, and append mode the keys that expire. Complete mode emits all stored
    keys, and they never expire. An aggregate without grouping columns is emitted in each batch.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the buffers of the functions as state.

        Raises ``ConfigError`` for functions that are not supported.
        """
        assert key.names == self.spec.keys.names, f"the key is {self.spec.keys.names}, not {key.names}"
        assert self.spec.routing_key == self.spec.keys, "SessionGroups computes sessions"
        columns = tuple(name for name in self.spec.rows.names if name not in key.names)
        assert set(columns) <= set(rows.names), f"of {columns} the rows have {rows.names}"
        due = None if self.mode == "complete" or self.spec.time is None else self.spec.time.column
        mode: TimeMode = "None" if due is None else "EventTime"
        return Declared(
            StoredBuffers.of(self.spec).schema,
            pa.schema([*key, *self.spec.results]),
            columns,
            per_key_group=False,
            time_mode=mode,
            due=due,
            whole=self.mode == "complete",
            keyless=self.spec.keyless,
        )

    def combine(self, key: Collection[str], rows: pa.Schema) -> Combined | None:
        """Return how rows are combined by ``key``, or ``None`` if the result of a function depends on their order."""
        assert set(key) == set(self.spec.keys.names), f"the key is {self.spec.keys.names}, not {key}"
        columns = [_combined_buffer(function, rows) for function in self.spec.functions]
        combined = tuple(column for column in columns if column is not None)
        if len(combined) < len(columns):
            return None
        functions = tuple(
            replace(function, buffers=(replace(function.buffers[0], literal=None),)) for function in self.spec.functions
        )
        return Combined(combined, MergedGroups(replace(self.spec, functions=functions), self.mode))

    def __call__(self, batch: Batch) -> Update:
        """Merge the rows' buffers into the buffers of their keys. Emit keys as the output mode demands."""
        groups = Groups(batch.codes, batch.keys.num_rows, batch.key_text)
        state = StoredBuffers.of(self.spec).fold(batch.rows, batch.state, groups)
        touched = np.flatnonzero(np.bincount(batch.codes, minlength=groups.size))
        changed = state if len(touched) == groups.size else state.take(pa.array(touched))
        output = self._make_empty_output(batch) if self.mode == "append" else self._make_output(batch, state)
        return Update(output, touched, changed, deleted=touched[:0])

    def expire_keys(self, batch: Batch) -> Update:
        """Delete the expired keys. In append mode, emit them."""
        output = self._make_output(batch, batch.state) if self.mode == "append" else self._make_empty_output(batch)
        changed = np.empty(0, dtype=np.int64)
        return Update(output, changed, batch.state.slice(0, 0), deleted=changed)

    def _make_output(self, batch: Batch, state: pa.Table) -> pa.Table:
        """Return the output rows of the batch's keys with this state."""
        columns = StoredBuffers.of(self.spec).finish(state)
        return pa.table([*batch.keys.columns, *columns], names=self.spec.output.names)

    def _make_empty_output(self, batch: Batch) -> pa.Table:
        """Return an output without rows."""
        return pa.schema([*batch.keys.schema, *self.spec.results]).empty_table()


def _combined_buffer(spec: FunctionSpec, rows: pa.Schema) -> CombinedColumn | None:
    """Return how the one-row buffers of a function are combined, or ``None`` if they cannot be."""
    if spec.argument is not None or spec.distinct or len(spec.buffers) != 1:
        return None
    (buffer,) = spec.buffers
    if buffer.literal is not None:
        is_count = spec.function == "Count" and buffer.literal == 1
        return CombinedColumn(buffer.name, "count", None, buffer.type) if is_count else None
    function = _combined_function(spec.function, buffer.type) if buffer.name in rows.names else None
    return None if function is None else CombinedColumn(buffer.name, function, buffer.name, buffer.type)


def _combined_function(function: str, type: pa.DataType) -> CombinedFunction | None:
    """Return the function that combines the buffers of a Spark function, or ``None`` if the order of rows matters."""
    if function == "Count":
        return "add"
    if function == "Sum":
        return "sum" if pa.types.is_int64(type) else None
    return _EXTREMES.get(function) if can_compare(type) else None


@dataclass(frozen=True, slots=True)
class DistinctGroups:
    """A ``BlockComputation`` of an aggregate with functions that count each value of a group once.

    Its keys are of two kinds. *Groups* have nulls in the element columns, and their state is the buffers. *Elements*
    are a function and a value that a row of the group had, and their state is empty. Rows are routed by the group
    alone, so the elements of a group are in its key-group, and each is read by itself. A function merges the first row
    of each new element.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the buffers of the functions as state.

        Raises ``ConfigError`` for functions that are not supported.
        """
        assert key.names == self.spec.stored_key.names, f"the key is {self.spec.stored_key.names}, not {key.names}"
        groups = tuple(self.spec.keys.names)
        declared = MergedGroups(self.spec, self.mode).declare(pa.schema([key.field(name) for name in groups]), rows)
        columns = tuple(name for name in declared.columns or () if name not in key.names)
        return replace(declared, columns=columns, routed_by=groups)

    def __call__(self, batch: Batch) -> Update:
        """Merge the rows of groups and of new elements into the buffers of groups."""
        elements = _GroupElements.of(batch, self.spec)
        group_state = batch.state.take(pa.array(elements.group_places))
        state = StoredBuffers.of(self.spec).fold_rows_of(elements.rows_of, group_state)
        touched = np.flatnonzero(np.bincount(elements.groups[batch.codes], minlength=len(elements.group_places)))
        new = elements.new_elements()
        empty_state = pa.Table.from_arrays(
            [pa.nulls(len(new), field.type) for field in state.schema], schema=state.schema
        )
        changed = pa.concat_tables([state.take(pa.array(touched)), empty_state])
        emitted = elements.group_places[:0] if self.mode == "append" else elements.group_places
        output = self._make_output(batch, emitted, state.slice(0, len(emitted)))
        return Update(output, np.concatenate([elements.group_places[touched], new]), changed, deleted=touched[:0])

    def expire_keys(self, batch: Batch) -> Update:
        """Delete the expired groups with their elements. In append mode, emit the groups."""
        groups = np.flatnonzero(~are_valid(one_array(batch.keys.column(self.spec.elements.names[0]))))
        emitted = groups if self.mode == "append" else groups[:0]
        output = self._make_output(batch, emitted, batch.state.take(pa.array(emitted)))
        return Update(output, groups[:0], batch.state.slice(0, 0), deleted=groups[:0])

    def _make_output(self, batch: Batch, places: IndexArray, state: pa.Table) -> pa.Table:
        """Return the output rows of the groups at these places among the batch's keys."""
        keys = batch.keys.select(self.spec.keys.names).take(pa.array(places))
        return pa.table([*keys.columns, *StoredBuffers.of(self.spec).finish(state)], names=self.spec.output.names)


@dataclass(frozen=True, slots=True)
class _GroupElements:
    """The keys of a batch as groups and elements.

    ``groups`` holds per key the number of its group, and ``group_places`` per group its place in the keys.
    ``row_functions`` holds per row the function that it is for, null for its group.
    """

    batch: Batch
    groups: IndexArray
    group_places: IndexArray
    row_functions: pa.Array

    @staticmethod
    def of(batch: Batch, spec: AggregateSpec) -> "_GroupElements":
        """Number the groups of a batch. Each element's group must be among its keys."""
        function_column = spec.elements.names[0]
        groups, firsts = group_keys(encode_keys([one_array(batch.keys.column(name)) for name in spec.keys.names]))
        are_groups = np.flatnonzero(~are_valid(one_array(batch.keys.column(function_column))))
        places = np.full(len(firsts), -1, dtype=np.int64)
        places[groups[are_groups]] = are_groups
        assert not len(places) or places.min() >= 0, f"an element of {batch.store} has no group"
        return _GroupElements(batch, groups, places, one_array(batch.rows.column(function_column)))

    def new_elements(self) -> IndexArray:
        """Return the places among the keys of the elements that are not stored yet."""
        is_new = ~self.batch.has_state
        is_new[self.group_places] = False
        return np.flatnonzero(is_new)

    def rows_of(self, function: str | None) -> tuple[pa.Table, Groups]:
        """Return the rows that a function merges, and their groups.

        A function with DISTINCT merges the first row of each value that is not stored yet. ``None`` stands for the
        functions without DISTINCT, which merge all of their rows.
        """
        batch = self.batch
        if function is None:
            places = np.flatnonzero(~are_valid(self.row_functions))
        else:
            all_places = np.arange(batch.rows.num_rows, dtype=np.int64)
            firsts = pick_places(batch.codes, batch.keys.num_rows, all_places, latest=False)[self.new_elements()]
            places = np.sort(firsts[true_mask(pc.equal(self.row_functions, function).take(pa.array(firsts)))])
        groups = Groups(self.groups[batch.codes[places]], len(self.group_places), self._group_text)
        return batch.rows.take(pa.array(places)), groups

    def _group_text(self, group: int) -> str:
        """Return the group with this number as text, for errors."""
        return self.batch.key_text(int(self.group_places[group]))


@dataclass(frozen=True, slots=True)
class _StoredFunction:
    """An aggregate function with its merge function and its state columns."""

    spec: FunctionSpec
    merge: MergeFunction
    fields: Sequence[pa.Field]

    @staticmethod
    def of(spec: FunctionSpec) -> "_StoredFunction":
        """Return the function of a specification with its merge function and state columns.

        Raises ``ConfigError`` if it is not supported.
        """
        types = [buffer.type for buffer in spec.inputs]
        merge = make_merge_function(spec.function, types, spec.options, spec.user_function)
        stored = zip(spec.inputs, merge.state_types(types), strict=True)
        return _StoredFunction(spec, merge, [pa.field(buffer.name, type) for buffer, type in stored])

    def row_columns(self, rows: pa.Table) -> Iterator[pa.Array]:
        """Yield this function's buffer columns of a batch's input rows, with constant buffers filled in."""
        for buffer in self.spec.inputs:
            if buffer.literal is None:
                yield one_array(rows.column(buffer.name))
            else:
                yield pa.repeat(pa.scalar(buffer.literal, buffer.type), rows.num_rows)

    def state_columns(self, state: pa.Table) -> list[pa.Array]:
        """Return this function's columns of a state table."""
        return [one_array(state.column(field.name)) for field in self.fields]


@dataclass(frozen=True, slots=True)
class StoredBuffers:
    """The state columns of an aggregate's functions. A table of state has one row per group."""

    functions: Sequence[_StoredFunction]
    results: Sequence[pa.Field]

    @staticmethod
    def of(spec: AggregateSpec) -> "StoredBuffers":
        """Return the state columns. Raises ``ConfigError`` for functions that are not supported."""
        return StoredBuffers([_StoredFunction.of(function) for function in spec.functions], spec.results)

    @property
    def schema(self) -> pa.Schema:
        """The state columns."""
        return pa.schema([field for function in self.functions for field in function.fields])

    def fold(self, rows: pa.Table, old: pa.Table, groups: Groups) -> pa.Table:
        """Return the state of each group after the rows are merged into ``old``, which has nulls for new groups."""
        return self.fold_rows_of(lambda _: (rows, groups), old)

    def fold_rows_of(self, rows_of: Callable[[str | None], tuple[pa.Table, Groups]], old: pa.Table) -> pa.Table:
        """Return the state of each group after each function merged its own rows into ``old``.

        ``rows_of`` returns the rows for a ``FunctionSpec.distinct``.
        """
        columns = list[pa.Array]()
        for function in self.functions:
            rows, groups = rows_of(function.spec.distinct)
            columns += function.merge.fold(list(function.row_columns(rows)), function.state_columns(old), groups)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def merge(self, states: pa.Table, groups: Groups) -> pa.Table:
        """Return the state of each group, merged from the states in ``states``; nulls for groups without any."""
        if np.bincount(groups.codes, minlength=1).max() <= 1:
            places = np.full(groups.size, -1, dtype=np.int64)
            places[groups.codes] = np.arange(len(groups.codes))
            return states.select(self.schema.names).take(pa.array(places, mask=places < 0))
        columns = list[pa.Array]()
        for function in self.functions:
            columns += function.merge.merge(function.state_columns(states), groups)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def finish(self, state: pa.Table) -> list[pa.Array]:
        """Return the output columns of the groups: the buffers that Spark evaluates, or the results."""
        columns = list[pa.Array]()
        for function in self.functions:
            columns += function.merge.finish(function.state_columns(state))
        return [cast_column(column, field.type) for column, field in zip(columns, self.results, strict=True)]
