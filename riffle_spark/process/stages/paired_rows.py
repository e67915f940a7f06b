"""Joins of two streams on a slot.

Each side is a list variable with one element per row. A batch does the following:

1. It reads the stored rows of touched keys.
2. It pairs new rows with all rows of the other side that have the same key and fulfil the comparisons.
3. It stores the new rows.
4. It deletes the rows that are due. Unmatched rows of an outer side are emitted then.

Left rows of a semi join are deleted once they match.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode
from riffle_spark.columns import one_array, positions_of
from riffle_spark.process.blocks.block import BoolArray, Declared, ElementBatch, Elements, ElementUpdate, IndexArray
from riffle_spark.process.blocks.folding import true_mask
from riffle_spark.process.types.stage_specs import JoinSide, JoinSpec, make_unique_name
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.due_times import in_milliseconds
from riffle_spark.state.schemas.variable_kinds import NO_DUE, Variable

LEFT: Final = "left"
RIGHT: Final = "right"
_SIDES: Final = (LEFT, RIGHT)
_PAIRS_AT_ONCE: Final = 1 << 20
"""Pairs that are compared at once. The pairs of one key may be more than memory holds."""

Pairs = tuple[IndexArray, IndexArray]


@dataclass(frozen=True, slots=True)
class PairedRows:
    """An ``ElementComputation`` of a stream-stream join in append mode, the only mode of Spark's joins."""

    spec: JoinSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare one list variable per side, with its buffered rows."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        side_columns = [
            name for side in (spec.left, spec.right) for name in (*side.buffered.names, side.filter_column) if name
        ]
        columns = dict.fromkeys([spec.is_left, *side_columns, *spec.due_columns])
        needed = tuple(name for name in columns if name not in key.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        variables = tuple(Variable(name, "list", self._element_schema(name)) for name in _SIDES)
        mode: TimeMode = "EventTime" if spec.due_columns else "None"
        return Declared(pa.schema([]), spec.output, needed, per_key_group=False, time_mode=mode, variables=variables)

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Join the batch's rows with each other and with the buffered rows.

        Emit unmatched rows that leave the buffers, and buffer the batch's rows.
        """
        sides = {name: self._side_rows(name, batch) for name in _SIDES}
        left = sides[LEFT]
        right = sides[RIGHT]
        output = [self.spec.output.empty_table()]
        for left_places, right_places in self._find_pairs(left, right):
            if not self.spec.semi:
                joined = left.values.take(pa.array(left_places)), right.values.take(pa.array(right_places))
                output.append(self._make_output(*joined))
            left.has_partner[left_places] = True
            right.has_partner[right_places] = True
        if self.spec.semi:
            matched = left.values.filter(pa.array(left.has_partner & ~left.had_partner))
            output.append(self._make_output(matched, None))
        for name in self.spec.outer:
            unmatched = sides[name].values.filter(pa.array(~sides[name].has_partner & sides[name].leaves))
            output.append(self._make_output(unmatched, None) if name == LEFT else self._make_output(None, unmatched))
        return ElementUpdate(
            pa.concat_tables(output),
            {name: side.added_elements(self._mask_staying_rows(name, side)) for name, side in sides.items()},
            {name: sides[name].changed_elements() for name in self.spec.outer},
            {LEFT: np.flatnonzero(left.has_partner[: left.stored_count])} if self.spec.semi else {},
        )

    def _side_spec(self, name: str) -> JoinSide:
        """Return the specification of the side with this name."""
        return self.spec.left if name == LEFT else self.spec.right

    def _element_schema(self, name: str) -> pa.Schema:
        """Return the columns of a side's buffered rows.

        Outer sides store whether a row has had a partner. So do sides that would have no column otherwise.
        """
        side = self._side_spec(name)
        fields = [field.with_nullable(True) for field in side.buffered]
        if name in self.spec.outer or not fields:
            used_names = [*side.buffered.names, *side.output.names]
            fields.append(pa.field(make_unique_name("has_partner", used_names), pa.bool_()))
        return pa.schema(fields)

    def _side_rows(self, name: str, batch: ElementBatch) -> "_SideRows":
        """Return all rows of a side: the buffered rows, followed by the rows of the batch."""
        side = self._side_spec(name)
        schema = self._element_schema(name)
        stored = batch.elements[name]
        stored_count = len(stored.owners)
        is_left = batch.rows.column(self.spec.is_left)
        is_of_side = _true_mask(is_left if name == LEFT else pc.invert(is_left))
        rows = batch.rows.filter(pa.array(is_of_side))
        had_partner = np.zeros(stored_count + rows.num_rows, np.bool_)
        if name in self.spec.outer:
            had_partner[:stored_count] = _true_mask(stored.values.column(schema.names[-1]))
        can_match = np.ones(len(had_partner), np.bool_)
        if side.filter_column is not None:
            can_match[stored_count:] = _true_mask(rows.column(side.filter_column))
        due_ms = np.concatenate([stored.due_ms, _leave_times_ms(side, rows)])
        leaves = ((due_ms != NO_DUE) & (due_ms <= batch.until_ms)) | ~can_match
        owners = np.concatenate([stored.owners, batch.codes[is_of_side]]).astype(np.int64)
        columns = dict[str, pa.Array]()
        for field in list(schema)[: len(side.buffered)]:
            new = cast_column(rows.column(field.name), field.type)
            chunks = [*stored.values.column(field.name).chunks, *new.chunks]
            columns[field.name] = pa.chunked_array(chunks, field.type).combine_chunks()
        for output_name, key_name in side.key_backed:
            columns[output_name] = batch.keys.column(key_name).take(pa.array(owners))
        values = pa.Table.from_arrays(list(columns.values()), names=list(columns))
        return _SideRows(
            schema, values, owners, due_ms, can_match, leaves, had_partner, had_partner.copy(), stored_count
        )

    def _find_pairs(self, left: "_SideRows", right: "_SideRows") -> Iterator[Pairs]:
        """Yield the pairs that are new in this batch: new left rows with all right rows, then buffered left rows with
        new right rows.
        """
        for places in _places_of_same_key(left, left.is_new, right, right.can_match):
            yield self._filter_pairs(left, right, places)
        for right_places, left_places in _places_of_same_key(right, right.is_new, left, ~left.is_new):
            yield self._filter_pairs(left, right, (left_places, right_places))

    def _filter_pairs(self, left: "_SideRows", right: "_SideRows", pairs: Pairs) -> Pairs:
        """Return the pairs whose rows fulfil all comparisons."""
        matches = np.ones(len(pairs[0]), np.bool_)
        for comparison in self.spec.comparisons:
            left_values = left.values.column(comparison.left).take(pa.array(pairs[0]))
            right_values = right.values.column(comparison.right).take(pa.array(pairs[1]))
            matches &= _true_mask(pc.call_function(comparison.function, [left_values, right_values]))
        return pairs[0][matches], pairs[1][matches]

    def _make_output(self, left: pa.Table | None, right: pa.Table | None) -> pa.Table:
        """Return output rows from left and right rows. The columns of a side that is ``None`` are null."""
        count = next(table.num_rows for table in (left, right) if table is not None)
        columns = dict[str, pa.Array | pa.ChunkedArray]()
        for side, table in ((self.spec.left, left), (self.spec.right, right)):
            for field in side.output:
                columns[field.name] = pa.nulls(count, field.type) if table is None else table.column(field.name)
        schema = self.spec.output
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _mask_staying_rows(self, name: str, side: "_SideRows") -> BoolArray:
        """Return a mask of a side's rows that are buffered after the batch."""
        return ~side.leaves & ~side.has_partner if self.spec.semi and name == LEFT else ~side.leaves


@dataclass(frozen=True, slots=True)
class _SideRows:
    """The rows of a side. The first ``stored_count`` were buffered before, the others are new in the batch.

    ``had_partner`` is the state before the batch. ``has_partner`` is updated while pairs are found.
    """

    schema: pa.Schema
    values: pa.Table
    owners: npt.NDArray[np.int64]
    due_ms: npt.NDArray[np.int64]
    can_match: BoolArray
    leaves: BoolArray
    had_partner: BoolArray
    has_partner: BoolArray
    stored_count: int

    @property
    def is_new(self) -> BoolArray:
        """A mask of the rows that are new in the batch."""
        return np.arange(len(self.owners)) >= self.stored_count

    def added_elements(self, stays: BoolArray) -> Elements:
        """Return the batch's rows that are buffered from now on. ``stays`` is a mask of all rows."""
        places = np.flatnonzero(stays & self.is_new)
        return Elements(self.owners[places], self._make_elements(places), self.due_ms[places])

    def changed_elements(self) -> tuple[IndexArray, pa.Table]:
        """Return the places of the buffered rows that got their first partner in this batch, and their new values."""
        places = np.flatnonzero(self.has_partner & ~self.had_partner & ~self.is_new & ~self.leaves)
        return places, self._make_elements(places)

    def _make_elements(self, places: IndexArray) -> pa.Table:
        """Return the rows at these places as buffered rows."""
        names = [name for name in self.schema.names if name in self.values.column_names]
        columns = list(self.values.select(names).take(pa.array(places)).columns)
        if len(self.schema) > len(columns):
            columns.append(pa.array(self.has_partner[places]))
        return pa.table(columns, schema=self.schema)


def _places_of_same_key(
    side: _SideRows, mask: BoolArray, other_side: _SideRows, other_mask: BoolArray
) -> Iterator[Pairs]:
    """Yield the places of pairs of rows with the same key, of rows that the masks select, a bounded number at once."""
    places = np.flatnonzero(mask & side.can_match)
    partners = np.flatnonzero(other_mask & other_side.can_match)
    partners = partners[np.argsort(other_side.owners[partners], kind="stable")]
    partner_owners = other_side.owners[partners]
    starts = np.searchsorted(partner_owners, side.owners[places], side="left")
    ends = np.searchsorted(partner_owners, side.owners[places], side="right")
    for part in _slices_of_pairs(ends - starts):
        counts = ends[part] - starts[part]
        offsets = positions_of(counts)
        pair_partners = np.arange(offsets[-1]) + np.repeat(starts[part] - offsets[:-1], counts)
        if len(pair_partners):
            yield np.repeat(places[part], counts), partners[pair_partners]


def _slices_of_pairs(counts: IndexArray) -> Iterator[slice]:
    """Yield slices of rows that together have about ``_PAIRS_AT_ONCE`` partners, and at least one row.

    ``counts`` has the partners of each row.
    """
    totals = np.cumsum(counts)
    start = 0
    while start < len(counts):
        total_before = int(totals[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(totals, total_before + _PAIRS_AT_ONCE, side="right")))
        yield slice(start, end)
        start = end


def _leave_times_ms(side: JoinSide, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return when each row leaves the buffer (ms). Rows without a time never do."""
    if side.due is None:
        return np.full(rows.num_rows, NO_DUE)
    times = one_array(rows.column(side.due))
    return np.where(_true_mask(times.is_null()), NO_DUE, in_milliseconds(times) + side.eviction_delay_ms)


def _true_mask(column: pa.Array | pa.ChunkedArray) -> BoolArray:
    """Return a mask of the booleans that are true. Nulls count as false."""
    return true_mask(one_array(column))
