"""A slot's call of what computes on elements: those of touched keys and those that are due are read for all key-groups
at once, and what has changed of them becomes the delta. Knows runs of elements. Does not know objects or folders.

Elements of lists alone are had so. What is due goes, whatever the computation says of it, so that nothing of a
key-group is due before the time that it is left with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array, positions_of
from riffle_spark.messages.slot_orders import HASH, KEY_GROUP, SLOT, Order
from riffle_spark.process.blocks.block import BoolArray, ElementBatch, ElementComputation, Elements, IndexArray
from riffle_spark.state.copies import elements
from riffle_spark.state.copies.reading import CopyRuns, FoundDue, Reading
from riffle_spark.state.copies.run import Hashes, Indices
from riffle_spark.state.formats.due_times import NEVER_MS
from riffle_spark.state.formats.key_codec import differing, encode_keys
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.restore.stack_keeper import OpenStack
from riffle_spark.state.schemas import variable_kinds
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker.input import TouchedKeys
from riffle_spark.worker.seal import SlotResult, StateChanges

__all__ = ["HeldElements"]

_LOOKS: Final = 64
"""How many times a key-group's next due time is looked for, where newer runs have removed what was due then."""


class _Stored(NamedTuple):
    """Elements of a variable as they are called with, their ids, and for each touched key the next one."""

    elements: Elements
    ids: Indices
    next_ids: Indices


@dataclass(frozen=True, slots=True)
class HeldElements:
    """What a slot's copies hold of a batch's keys, and of what is due. ``keys`` are the touched ones, and behind them
    the key of each due element that is of none of these; ``key_groups`` are theirs.
    """

    schema: VariableColumns
    touched: TouchedKeys
    keys: pa.Table
    key_groups: npt.NDArray[np.int32]
    stored: Mapping[str, _Stored]
    readings: Mapping[int, Reading]
    until_ms: int

    @staticmethod
    def of(
        order: Order, schema: VariableColumns, touched: TouchedKeys, stacks: Mapping[int, OpenStack],
        entries: Mapping[int, Entry],
    ) -> "HeldElements":  # fmt: skip
        """Read elements. ``stacks`` and ``entries`` are those of touched key-groups and of those with something due."""
        passes = order.times.passes
        until_ms, hashes = passes[-1][0] if passes else variable_kinds.NO_DUE, schema.hashes(touched.keys)
        held = {kg: CopyRuns(stacks[kg].runs, entry.timer_ms) for kg, entry in sorted(entries.items()) if kg in stacks}
        readings = {kg: copy.reading(schema, touched.keys.slice(0, 0)) for kg, copy in held.items()}
        spans = {key_group: slice(start, end) for key_group, start, end in touched.spans}
        due = [
            (kg, found)
            for kg, reading in readings.items()
            for found in reading.due(reading.first_ms, until_ms)
            if found.variable in schema.by_name
        ]
        others = [_others(touched.keys, hashes, spans.get(kg, slice(0, 0)), found) for kg, found in due]
        keys = pa.concat_tables(
            [touched.keys, *(one.keys.take(pa.array(at)) for (_, one), at in zip(due, others, strict=True))]
        )
        counts = np.array([len(at) for at in others], np.int64)
        key_groups = np.repeat(np.array([kg for kg, _ in due], np.int32), counts)
        firsts = positions_of(counts) + touched.keys.num_rows
        beside = [(one, at, int(first)) for (_, one), at, first in zip(due, others, firsts[:-1], strict=True)]
        runs = {kg: stacks[kg].runs for kg in spans if kg in stacks}
        stored = {
            name: _read(schema, name, touched, hashes, runs, [one for one in beside if one[0].variable == name])
            for name in schema.by_name
        }
        return HeldElements(
            schema, touched, keys.combine_chunks(), np.concatenate([touched.key_groups, key_groups]), stored, readings,
            until_ms,
        )  # fmt: skip

    def computed(self, compute: ElementComputation, rows: pa.Table, order: Order) -> SlotResult:
        """Call once, and return what became of rows and elements."""
        rows = rows.drop_columns([SLOT, KEY_GROUP, HASH])
        given = {name: one.elements for name, one in self.stored.items()}
        batch = ElementBatch(rows, self.touched.codes, self.keys, given, self.until_ms, order.store)
        update = compute.over(batch)
        pieces = [
            piece for name in self.stored for piece in self._pieces(name, update.added, update.changed, update.removed)
        ]
        numbers = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in pieces)])
        table = pa.concat_tables([self.schema.part_schema(delta=True).empty_table(), *(table for _, table in pieces)])
        key_groups = self.key_groups[numbers]
        by_group = np.argsort(key_groups, kind="stable")
        table, key_groups = table.combine_chunks().take(pa.array(by_group)), key_groups[by_group]
        changes = StateChanges(self.schema.sealed_by_group(table, key_groups), key_groups, self._timers(update.added))
        expired = sum(int(self._are_due(one.elements).sum()) for one in self.stored.values())
        output = update.output.select(order.output.names).cast(order.output)
        return SlotResult(output, changes, expired=expired)

    def _pieces(
        self, name: str, added: Mapping[str, Elements], changed: Mapping[str, tuple[IndexArray, pa.Table]],
        removed: Mapping[str, IndexArray],
    ) -> Iterator[tuple[IndexArray, pa.Table]]:  # fmt: skip
        """Yield rows of the delta, and the number of the key of each: of new elements, of others, of those that go."""
        stored, gone = self.stored[name], self._are_due(self.stored[name].elements)
        if name in removed:
            gone[removed[name]] = True
        if name in added and len(added[name].owners):
            new = added[name]
            yield self._piece(
                name, new.owners, stored.next_ids[new.owners] + _ranks(new.owners), new.due_ms, new.values
            )
        if name in changed:
            at, values = changed[name]
            stays = ~gone[at]
            at, values = at[stays], values.filter(pa.array(stays))
            if len(at):
                yield self._piece(name, stored.elements.owners[at], stored.ids[at], stored.elements.due_ms[at], values)
        at = np.flatnonzero(gone)
        if len(at):
            yield self._piece(name, stored.elements.owners[at], stored.ids[at], None, None)

    def _piece(
        self, name: str, owners: IndexArray, ids: Indices, due_ms: Indices | None, values: pa.Table | None
    ) -> tuple[IndexArray, pa.Table]:
        count, schema, variable = len(owners), self.schema.part_schema(delta=True), self.schema.by_name[name]
        columns = dict(zip(self.keys.column_names, self.keys.take(pa.array(owners)).columns, strict=True))
        columns[variable_kinds.VARIABLE] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), [name])
        columns[variable_kinds.INDEX] = pa.array(ids)
        columns[DELETED] = pa.array(np.full(count, values is None))
        if due_ms is not None and values is not None:
            columns[variable_kinds.DUE] = pa.array(due_ms, mask=due_ms == variable_kinds.NO_DUE)
            fields = [one_array(column) for column in values.select(variable.value.names).columns]
            columns[variable.column] = pa.StructArray.from_arrays(fields, fields=list(variable.value))
        columns |= {field.name: pa.nulls(count, field.type) for field in schema if field.name not in columns}
        return owners, pa.table([columns[field.name] for field in schema], schema=schema)

    def _are_due(self, given: Elements) -> BoolArray:
        return (given.due_ms != variable_kinds.NO_DUE) & (given.due_ms <= self.until_ms)

    def _timers(self, added: Mapping[str, Elements]) -> dict[int, int | None]:
        """Return when the first element of each key-group is due that is there from now on."""
        first = {int(kg): NEVER_MS for kg in np.unique(self.touched.key_groups)}
        first |= {kg: _next_ms(reading, self.until_ms + 1) for kg, reading in self.readings.items()}
        for new in added.values():
            key_groups, codes = np.unique(self.key_groups[new.owners], return_inverse=True)
            dues = np.full(len(key_groups), NEVER_MS)
            np.minimum.at(dues, codes, np.where(new.due_ms == variable_kinds.NO_DUE, NEVER_MS, new.due_ms))
            first |= {kg: min(first[kg], ms) for kg, ms in zip(key_groups.tolist(), dues.tolist(), strict=True)}
        return {kg: None if ms == NEVER_MS else ms for kg, ms in first.items()}


def _others(keys: pa.Table, hashes: Hashes, span: slice, found: FoundDue) -> Indices:
    """Return which due elements are of none of the keys that a key-group's rows touch."""
    touched, own = keys.slice(span.start, span.stop - span.start), hashes[span]
    known = np.flatnonzero(np.isin(found.hashes, own))
    if not len(known):
        return np.arange(len(found.hashes))
    by_hash = np.argsort(own)
    places = by_hash[np.searchsorted(own, found.hashes[known], sorter=by_hash)]
    if len(differing(found.keys.take(pa.array(known)), touched.take(pa.array(places)))):  # two keys have one hash
        is_known = pc.is_in(encode_keys(found.keys.columns), value_set=encode_keys(touched.columns))
        return np.flatnonzero(~is_known.to_numpy(zero_copy_only=False))
    return np.setdiff1d(np.arange(len(found.hashes)), known)


def _read(
    schema: VariableColumns, name: str, touched: TouchedKeys, hashes: Hashes,
    stacks: Mapping[int, Sequence[object]], due: Sequence[tuple[FoundDue, Indices, int]],
) -> _Stored:  # fmt: skip
    """Return the newest elements of touched keys, and those that are due beside them."""
    next_ids, variable = np.zeros(touched.keys.num_rows, np.int64), schema.by_name[name]
    runs, places, owners = list[elements.ElementRun](), list[Indices](), [np.empty(0, np.int64)]
    for key_group, start, end in touched.spans:
        mine = [
            run for run in stacks.get(key_group, ()) if isinstance(run, elements.ElementRun) and run.variable == name
        ]
        keys = touched.keys.slice(start, end - start)
        for run, (first, last) in zip(mine, elements.located(mine, hashes[start:end], keys), strict=True):
            at = np.flatnonzero(last > first)
            if not len(at):
                continue
            next_ids[start + at] = np.maximum(next_ids[start + at], run.ids[last[at] - 1] + 1)
            runs.append(run)
            places.append(elements.ranges_of(first[at], last[at]))
            owners.append(np.repeat(start + at, last[at] - first[at]))
    ids, dues, tables = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [variable.value.empty_table()]
    if runs:
        rows = elements.ElementRows(runs, places, np.concatenate(owners)).newest()
        rows = rows.only(~rows.deleted())
        owners, ids, dues = [rows.owners.astype(np.int64)], [rows.ids], [rows.dues()]
        tables = [variable.values(rows.column(elements.structs_of))]
    for found, at, first_key in due:
        owners.append(np.arange(first_key, first_key + len(at)))
        ids.append(found.ids[at])
        dues.append(found.due_ms[at])
        tables.append(variable.values(one_array(found.structs).take(pa.array(at))))
    values = pa.concat_tables(tables).combine_chunks()
    return _Stored(Elements(np.concatenate(owners), values, np.concatenate(dues)), np.concatenate(ids), next_ids)


def _ranks(owners: IndexArray) -> Indices:
    """Return the number of each element among those of its owner."""
    order = np.argsort(owners, kind="stable")
    starts = positions_of(np.bincount(owners))
    ranks = np.empty(len(owners), np.int64)
    ranks[order] = np.arange(len(owners)) - starts[owners[order]]
    return ranks


def _next_ms(reading: Reading, from_ms: int) -> int:
    """Return a time before which nothing is due from then on; nearly always the first at which something is."""
    first_ms = max(from_ms, reading.first_ms)
    for _ in range(_LOOKS):
        found = reading.due_by(first_ms, 0)
        if found is None:
            return NEVER_MS
        if reading.due(found, found):
            return found
        first_ms = found + 1
    return first_ms
