"""What an aggregate stage computes on a slot: buffers of rows are merged into those that are kept a key, and keys are
answered when the output mode says so. Knows specs, merges and output modes. Does not know Spark's plans, nor how late
rows are told.

It is made of what a plan says and of the query's output mode, and is a ``BlockComputation``::

    plan = read_aggregate(catalyst, node)
    compute = MergedGroups(plan.spec, "append")

Its rows are ``plan.spec.rows``, its key ``plan.spec.keys``, its output ``plan.spec.answer``: what ``plan.evaluation``
is put on. Who drops late rows goes by ``plan.spec.time``: here no row is late.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode
from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, Declared, IndexArray, Update
from riffle_spark.process.blocks.folding import group_keys, hold
from riffle_spark.process.merging.merge_function import Groups, MergeFunction, are_valid, chosen
from riffle_spark.process.merging.merge_registry import MergeOptions, merge_function
from riffle_spark.process.types.stage_specs import AggregateSpec, FunctionSpec
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.key_codec import encode_keys

__all__ = ["DistinctGroups", "KeptBuffers", "MergedGroups", "OutputMode"]

OutputMode: TypeAlias = Literal["update", "append", "complete"]
"""When keys are answered, in Spark's words: each time that rows touch them, when their time is over, or always."""


@dataclass(frozen=True, slots=True)
class MergedGroups:
    """A ``BlockComputation`` of an aggregate, be its functions' results buffers or final values.

    In update mode the keys of a batch's rows are answered, in append mode those whose time is over, in complete mode
    all that there are: then no key's time is ever over. One that groups by nothing is answered in each batch, over no
    rows too.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the columns of buffers; ``ConfigError`` for functions that cannot be merged."""
        assert key.names == self.spec.keys.names, f"the key is {self.spec.keys.names}, not {key.names}"
        buffers = KeptBuffers.of(self.spec)
        output = pa.schema([*key, *self.spec.results])
        needed = tuple(name for name in self.spec.rows.names if name not in key.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        due = None if self.mode == "complete" or self.spec.time is None else self.spec.time.column
        assert self.spec.routed == self.spec.keys, "sessions are another computation"
        mode: TimeMode = "None" if due is None else "EventTime"
        return Declared(
            buffers.schema, output, needed, per_key_group=False, time_mode=mode, due=due, whole=self.mode == "complete",
            keyless=self.spec.keyless,
        )  # fmt: skip

    def __call__(self, batch: Batch) -> Update:
        """Merge the rows' buffers into what is kept of their keys. Keys without rows are answered as they are."""
        buffers = KeptBuffers.of(self.spec)
        groups = Groups(batch.codes, batch.keys.num_rows, batch.key_text)
        state = buffers.merged(batch.rows, batch.state, groups)
        touched = np.flatnonzero(np.bincount(batch.codes, minlength=groups.size))
        kept = state if len(touched) == groups.size else state.take(pa.array(touched))
        output = self._nothing(batch) if self.mode == "append" else self._answered(batch, state)
        return Update(output, touched, kept, deleted=touched[:0])

    def expired(self, batch: Batch) -> Update:
        """Let keys go whose time is over; in append mode they are answered."""
        output = self._answered(batch, batch.state) if self.mode == "append" else self._nothing(batch)
        nothing = np.empty(0, dtype=np.int64)
        return Update(output, nothing, batch.state.slice(0, 0), deleted=nothing)

    def _answered(self, batch: Batch, state: pa.Table) -> pa.Table:
        columns = KeptBuffers.of(self.spec).answered(state)
        return pa.table([*batch.keys.columns, *columns], names=self.spec.answer.names)

    def _nothing(self, batch: Batch) -> pa.Table:
        return pa.schema([*batch.keys.schema, *self.spec.results]).empty_table()


@dataclass(frozen=True, slots=True)
class DistinctGroups:
    """A ``BlockComputation`` of an aggregate some of whose functions count each value of a group once.

    Its keys are groups, whose columns of elements are null and of which buffers are kept, and *elements* of theirs: a
    function and a value that a row of the group had, of which nothing is kept but that it was there. Rows go by the
    group alone, so that all elements of a group lie beside it, each read by itself. A function merges the first row of
    each element that is new.
    """

    spec: AggregateSpec
    mode: OutputMode

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the columns of buffers; ``ConfigError`` for functions that cannot be merged."""
        assert key.names == self.spec.stored.names, f"the key is {self.spec.stored.names}, not {key.names}"
        groups = tuple(self.spec.keys.names)
        declared = MergedGroups(self.spec, self.mode).declare(pa.schema([key.field(name) for name in groups]), rows)
        columns = tuple(name for name in declared.columns or () if name not in key.names)
        return replace(declared, columns=columns, routed_by=groups)

    def __call__(self, batch: Batch) -> Update:
        """Merge the rows of groups, and those that bring something new, into what is kept of groups."""
        members = _Members.of(batch, self.spec)
        state = KeptBuffers.of(self.spec).merged_of(members.rows_of, batch.state.take(pa.array(members.places)))
        touched = np.flatnonzero(np.bincount(members.groups[batch.codes], minlength=len(members.places)))
        new = members.new_elements()
        seen = pa.Table.from_arrays([pa.nulls(len(new), one.type) for one in state.schema], schema=state.schema)
        kept = pa.concat_tables([state.take(pa.array(touched)), seen])
        some = members.places[:0] if self.mode == "append" else members.places
        output = self._answered(batch, some, state.slice(0, len(some)))
        return Update(output, np.concatenate([members.places[touched], new]), kept, deleted=touched[:0])

    def expired(self, batch: Batch) -> Update:
        """Let groups and their elements go; in append mode groups are answered."""
        groups = np.flatnonzero(~are_valid(self._functions(batch.keys)))
        some, nothing = groups if self.mode == "append" else groups[:0], groups[:0]
        output = self._answered(batch, some, batch.state.take(pa.array(some)))
        return Update(output, nothing, batch.state.slice(0, 0), deleted=nothing)

    def _functions(self, keys: pa.Table) -> pa.Array:
        return one_array(keys.column(self.spec.elements.names[0]))

    def _answered(self, batch: Batch, places: IndexArray, state: pa.Table) -> pa.Table:
        keys = batch.keys.select(self.spec.keys.names).take(pa.array(places))
        return pa.table([*keys.columns, *KeptBuffers.of(self.spec).answered(state)], names=self.spec.answer.names)


@dataclass(frozen=True, slots=True)
class _Members:
    """The keys of a batch: the group that each is of, by a number, where the groups themselves are among the keys, and
    the function that each row is for, null where it is for the group.
    """

    batch: Batch
    groups: IndexArray
    places: IndexArray
    functions: pa.Array

    @staticmethod
    def of(batch: Batch, spec: AggregateSpec) -> "_Members":
        """Tell groups from elements; every element has its group beside it."""
        function = spec.elements.names[0]
        groups, firsts = group_keys(encode_keys([one_array(batch.keys.column(name)) for name in spec.keys.names]))
        of_groups = np.flatnonzero(~are_valid(one_array(batch.keys.column(function))))
        places = np.full(len(firsts), -1, dtype=np.int64)
        places[groups[of_groups]] = of_groups
        assert not len(places) or places.min() >= 0, f"an element of {batch.store} has no group"
        return _Members(batch, groups, places, one_array(batch.rows.column(function)))

    def new_elements(self) -> IndexArray:
        """Return the keys that are elements and were not there."""
        is_new = ~self.batch.found
        is_new[self.places] = False
        return np.flatnonzero(is_new)

    def rows_of(self, function: str | None) -> tuple[pa.Table, Groups]:
        """Return the rows that a function merges, and their groups."""
        batch = self.batch
        if function is None:
            some = np.flatnonzero(~are_valid(self.functions))
        else:
            every = np.arange(batch.rows.num_rows, dtype=np.int64)
            firsts = chosen(batch.codes, batch.keys.num_rows, every, latest=False)[self.new_elements()]
            some = np.sort(firsts[hold(pc.equal(self.functions, function).take(pa.array(firsts)))])
        told = Groups(self.groups[batch.codes[some]], len(self.places), self._told)
        return batch.rows.take(pa.array(some)), told

    def _told(self, group: int) -> str:
        return self.batch.key_text(int(self.places[group]))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A function, how it merges, and the columns that are kept of it."""

    told: FunctionSpec
    merge: MergeFunction
    fields: Sequence[pa.Field]

    @staticmethod
    def of(told: FunctionSpec) -> "_Kept":
        types = [buffer.type for buffer in told.taken]
        merge = merge_function(told.function, types, MergeOptions.of_facts(told.facts, told.own))
        kept = zip(told.taken, merge.state(types), strict=True)
        return _Kept(told, merge, [pa.field(buffer.name, type) for buffer, type in kept])

    def rows(self, rows: pa.Table) -> Iterator[pa.Array]:
        """Yield what rows bring, a column a buffer; those that are always the same are made here."""
        for buffer in self.told.taken:
            if buffer.literal is None:
                yield one_array(rows.column(buffer.name))
            else:
                yield pa.repeat(pa.scalar(buffer.literal, buffer.type), rows.num_rows)


@dataclass(frozen=True, slots=True)
class KeptBuffers:
    """The buffers of an aggregate's functions as they are kept: one row a group, the columns of ``schema``."""

    functions: Sequence[_Kept]
    results: Sequence[pa.Field]

    @staticmethod
    def of(spec: AggregateSpec) -> "KeptBuffers":
        """Return the buffers of an aggregate; ``ConfigError`` for functions that cannot be merged."""
        return KeptBuffers([_Kept.of(told) for told in spec.functions], spec.results)

    @property
    def schema(self) -> pa.Schema:
        """What is kept of a group."""
        return pa.schema([field for kept in self.functions for field in kept.fields])

    def merged(self, rows: pa.Table, old: pa.Table, groups: Groups) -> pa.Table:
        """Return what is kept of groups once these rows are merged into ``old``, which has nulls for new groups."""
        return self.merged_of(lambda _: (rows, groups), old)

    def merged_of(self, rows_of: Callable[[str | None], tuple[pa.Table, Groups]], old: pa.Table) -> pa.Table:
        """Do the same where functions have rows of their own, by ``FunctionSpec.distinct``."""
        columns = list[pa.Array]()
        for kept in self.functions:
            rows, groups = rows_of(kept.told.distinct)
            before = [one_array(old.column(field.name)) for field in kept.fields]
            columns += kept.merge.fold(list(kept.rows(rows)), before, groups)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def united(self, kept: pa.Table, groups: Groups) -> pa.Table:
        """Return what is kept of groups that several which were kept become; nulls for those that none becomes."""
        if np.bincount(groups.codes, minlength=1).max() <= 1:
            place = np.full(groups.size, -1, dtype=np.int64)
            place[groups.codes] = np.arange(len(groups.codes))
            return kept.select(self.schema.names).take(pa.array(place, mask=place < 0))
        columns = list[pa.Array]()
        for one in self.functions:
            before = [one_array(kept.column(field.name)) for field in one.fields]
            columns += one.merge.united(before, groups)
        return pa.Table.from_arrays(columns, schema=self.schema)

    def answered(self, state: pa.Table) -> list[pa.Array]:
        """Return what is told of groups: their buffers, or the values of functions that were sent their arguments."""
        columns = list[pa.Array]()
        for kept in self.functions:
            columns += kept.merge.finish([one_array(state.column(field.name)) for field in kept.fields])
        return [cast_column(column, field.type) for column, field in zip(columns, self.results, strict=True)]
