"""What a join of two streams computes on a slot: rows of both sides that have a key in common are pairs where all that
is compared holds, and are kept until no partner can come any more. Knows specs. Does not know Spark's plans, nor how
late rows are told.

Each side is a list variable, an element a row. A batch reads the rows of touched keys, pairs what is new with all that
the other side has, keeps what is new, and lets go of what is due: rows of an outer side that never had a partner are
answered then. Left rows of a semi join go when they have one.
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
from riffle_spark.process.blocks.folding import hold
from riffle_spark.process.types.stage_specs import JoinSide, JoinSpec, free_name
from riffle_spark.state.formats.arrow_casts import cast_column
from riffle_spark.state.formats.due_times import in_milliseconds
from riffle_spark.state.schemas.variable_kinds import NO_DUE, Variable

__all__ = ["LEFT", "RIGHT", "PairedRows"]

LEFT: Final = "left"
RIGHT: Final = "right"
_SIDES: Final = (LEFT, RIGHT)
_AT_ONCE: Final = 1 << 20
"""How many pairs are looked at together: those of one key may be more than memory holds."""

Pairs = tuple[IndexArray, IndexArray]


@dataclass(frozen=True, slots=True)
class PairedRows:
    """An ``ElementComputation`` of a join. Output modes make no difference: Spark has append mode alone."""

    spec: JoinSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare a list a side."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        of_sides = [name for side in (spec.left, spec.right) for name in (*side.kept.names, side.passes) if name]
        needed = tuple(name for name in dict.fromkeys([spec.is_left, *of_sides, *spec.times]) if name not in key.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        variables = tuple(Variable(name, "list", self._kept(name)) for name in _SIDES)
        mode: TimeMode = "EventTime" if spec.times else "None"
        return Declared(pa.schema([]), spec.answer, needed, per_key_group=False, time_mode=mode, variables=variables)

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Pair the rows, answer those that have to go alone, and keep the others."""
        left, right = (self._rows(name, batch) for name in _SIDES)
        output = [self.spec.answer.empty_table()]
        for at, other in self._pairs(left, right):
            if not self.spec.semi:
                output.append(self._answered(left.values.take(pa.array(at)), right.values.take(pa.array(other))))
            left.has_partner[at] = right.has_partner[other] = True
        if self.spec.semi:
            output.append(self._answered(left.values.filter(pa.array(left.has_partner & ~left.had_partner)), None))
        for name, side in zip(_SIDES, (left, right), strict=True):
            if name in self.spec.outer:
                alone = side.values.filter(pa.array(~side.has_partner & side.goes))
                output.append(self._answered(alone, None) if name == LEFT else self._answered(None, alone))
        whole = dict(zip(_SIDES, (left, right), strict=True))
        return ElementUpdate(
            pa.concat_tables(output),
            {name: side.added(self._stays(name, side)) for name, side in whole.items()},
            {name: side.changed() for name, side in whole.items() if name in self.spec.outer},
            {LEFT: np.flatnonzero(left.has_partner[: left.stored])} if self.spec.semi else {},
        )

    def _side(self, name: str) -> JoinSide:
        return self.spec.left if name == LEFT else self.spec.right

    def _kept(self, name: str) -> pa.Schema:
        """Return the columns of a side's elements: of outer sides whether a row has had a partner, too;
        and of those that have nothing else.
        """
        kept = self._side(name).kept
        fields = [field.with_nullable(True) for field in kept]
        if name in self.spec.outer or not fields:
            told = [*kept.names, *self._side(name).told.names]
            fields.append(pa.field(free_name("has_partner", told), pa.bool_()))
        return pa.schema(fields)

    def _rows(self, name: str, batch: ElementBatch) -> "_Rows":
        """Return all rows of a side: those that are kept, and behind them those of the batch."""
        side, schema, held = self._side(name), self._kept(name), batch.elements[name]
        is_own = batch.rows.column(self.spec.is_left)
        own = pa.array(_mask(is_own if name == LEFT else pc.invert(is_own)))
        rows, codes = batch.rows.filter(own), batch.codes[own.to_numpy(zero_copy_only=False)]
        had = np.zeros(len(held.owners) + rows.num_rows, np.bool_)
        if name in self.spec.outer:
            had[: len(held.owners)] = _mask(held.values.column(schema.names[-1]))
        passes = np.ones(len(had), np.bool_)
        if side.passes is not None:
            passes[len(held.owners) :] = _mask(rows.column(side.passes))
        due_ms = np.concatenate([held.due_ms, _due_ms(side, rows)])
        owners = np.concatenate([held.owners, codes]).astype(np.int64)
        columns = {
            field.name: pa.chunked_array(
                [*held.values.column(field.name).chunks, *cast_column(rows.column(field.name), field.type).chunks],
                field.type,
            ).combine_chunks()
            for field in list(schema)[: len(side.kept)]
        }
        columns |= {name: batch.keys.column(of_key).take(pa.array(owners)) for name, of_key in side.of_key}
        values = pa.Table.from_arrays(list(columns.values()), names=list(columns))
        return _Rows(
            schema, values, owners, due_ms, passes,
            ((due_ms != NO_DUE) & (due_ms <= batch.until_ms)) | ~passes, had, had.copy(), len(held.owners),
        )  # fmt: skip

    def _pairs(self, left: "_Rows", right: "_Rows") -> Iterator[Pairs]:
        """Yield the pairs that are new: new left rows with all of the other side, and new right ones with kept rows."""
        for one, of_ones, other, of_others, turned in (
            (left, left.new, right, right.all, False), (right, right.new, left, left.old, True),
        ):  # fmt: skip
            for at, partner in _of_same_key(one.owners, of_ones & one.passes, other.owners, of_others & other.passes):
                pairs = (partner, at) if turned else (at, partner)
                holds = self._holds(left, right, pairs)
                yield pairs[0][holds], pairs[1][holds]

    def _holds(self, left: "_Rows", right: "_Rows", pairs: Pairs) -> BoolArray:
        """Tell for which pairs all that is compared holds."""
        holds = np.ones(len(pairs[0]), np.bool_)
        for one in self.spec.compared:
            of_left, of_right = (
                side.values.column(name).take(pa.array(at))
                for side, name, at in ((left, one.left, pairs[0]), (right, one.right, pairs[1]))
            )
            holds &= _mask(pc.call_function(one.function, [of_left, of_right]))
        return holds

    def _answered(self, left: pa.Table | None, right: pa.Table | None) -> pa.Table:
        """Return rows of what is answered; a side that is not there is null."""
        count = next(table.num_rows for table in (left, right) if table is not None)
        columns = dict[str, pa.Array | pa.ChunkedArray]()
        for side, table in ((self.spec.left, left), (self.spec.right, right)):
            for field in side.told:
                columns[field.name] = pa.nulls(count, field.type) if table is None else table.column(field.name)
        schema = self.spec.answer
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _stays(self, name: str, side: "_Rows") -> BoolArray:
        """Tell which rows are kept on."""
        return ~side.goes & ~side.has_partner if self.spec.semi and name == LEFT else ~side.goes


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one side: the first ones, so many as are ``stored``, are kept, the others are those of the batch.

    ``passes`` tells which may have a partner, ``goes`` which are not kept any longer, ``had_partner`` which had one
    before the batch. ``has_partner`` is filled in.
    """

    schema: pa.Schema
    values: pa.Table
    owners: npt.NDArray[np.int64]
    due_ms: npt.NDArray[np.int64]
    passes: BoolArray
    goes: BoolArray
    had_partner: BoolArray
    has_partner: BoolArray
    stored: int

    @property
    def new(self) -> BoolArray:
        """Which rows are the batch's."""
        return np.arange(len(self.owners)) >= self.stored

    @property
    def old(self) -> BoolArray:
        """Which rows were kept before."""
        return ~self.new

    @property
    def all(self) -> BoolArray:
        """All of them."""
        return np.ones(len(self.owners), np.bool_)

    def added(self, stays: BoolArray) -> Elements:
        """Return rows of the batch that are kept from now on."""
        at = np.flatnonzero(stays & self.new)
        return Elements(self.owners[at], self._elements(at), self.due_ms[at])

    def changed(self) -> tuple[IndexArray, pa.Table]:
        """Return which kept rows have a partner now that had none, and what they are kept with."""
        at = np.flatnonzero(self.has_partner & ~self.had_partner & self.old & ~self.goes)
        return at, self._elements(at)

    def _elements(self, at: IndexArray) -> pa.Table:
        names = [name for name in self.schema.names if name in self.values.column_names]
        columns = list(self.values.select(names).take(pa.array(at)).columns)
        if len(self.schema) > len(columns):
            columns.append(pa.array(self.has_partner[at]))
        return pa.table(columns, schema=self.schema)


def _of_same_key(owners: IndexArray, some: BoolArray, others: IndexArray, of_others: BoolArray) -> Iterator[Pairs]:
    """Yield pairs of rows of two sides that have one key, not too many at once: of one row at least."""
    ones, partners = np.flatnonzero(some), np.flatnonzero(of_others)
    partners = partners[np.argsort(others[partners], kind="stable")]
    starts, ends = (np.searchsorted(others[partners], owners[ones], side=side) for side in ("left", "right"))
    for part in _in_parts(ends - starts):
        counts = ends[part] - starts[part]
        at = positions_of(counts)
        places = np.arange(at[-1]) + np.repeat(starts[part] - at[:-1], counts)
        if len(places):
            yield np.repeat(ones[part], counts), partners[places]


def _in_parts(counts: IndexArray) -> Iterator[slice]:
    """Yield slices of rows that have about so many partners together as are looked at at once."""
    reached, start = np.cumsum(counts), 0
    while start < len(counts):
        before = int(reached[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(reached, before + _AT_ONCE, side="right")))
        yield slice(start, end)
        start = end


def _due_ms(side: JoinSide, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return when rows leave; those without a time never do."""
    if side.due is None:
        return np.full(rows.num_rows, NO_DUE)
    times = one_array(rows.column(side.due))
    return np.where(_mask(times.is_null()), NO_DUE, in_milliseconds(times) + side.later_ms)


def _mask(column: pa.Array | pa.ChunkedArray) -> BoolArray:
    """Return truth values, a null for false."""
    return hold(one_array(column))
