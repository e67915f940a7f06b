"""List states of one key-group in one batch. Knows what was put and appended. Does not know a user.

To append never reads the list: an element's index only has to be above those before it, and the next one is looked up
when the delta is made.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Offsets, positions_of
from riffle_spark.process.processors import cells
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import ElementRows, structs_of

__all__ = ["ListCells"]


class ListCells:
    """One list variable: tuples in the order in which they were added, of the key where the scope is at."""

    def __init__(self, scope: cells.Scope, declared: cells.DeclaredVariable) -> None:
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._stored: cells.ReadAhead[Values] = cells.ReadAhead(scope, declared.variable.name, self._decoded)
        self._added: dict[int, list[Values]] = {}
        self._cleared: set[int] = set()

    def get(self) -> Iterator[Values]:
        """Return an iterator over the elements that there are now."""
        at = self._scope.at
        added = self._added.get(at)
        stored: Iterable[Values] = () if at in self._cleared else self._stored.of(at)
        elements = chain(stored, tuple(added)) if added else iter(stored)
        return map(self._fields.copied, elements) if self._fields.can_change else elements

    def exists(self) -> bool:
        """Tell whether there is any element."""
        at = self._scope.at
        if self._added.get(at):
            return True
        return at not in self._cleared and self._stored.has_any(at)

    def put(self, elements: Iterable[object]) -> None:
        """Replace all elements. Raises ``Misfit`` for one that does not fit."""
        taken = self._fields.take_all(elements)
        self.clear()
        self._added[self._scope.at] = taken

    def append(self, element: object) -> None:
        """Add an element. Raises ``Misfit`` if it does not fit."""
        taken = self._fields.take(element)
        self._added.setdefault(self._scope.at, []).append(taken)

    def extend(self, elements: Iterable[object]) -> None:
        """Add several elements. Raises ``Misfit`` for one that does not fit, and adds none."""
        taken = self._fields.take_all(elements)
        self._added.setdefault(self._scope.at, []).extend(taken)

    def clear(self) -> None:
        """Remove all elements."""
        self._added.pop(self._scope.at, None)
        self._cleared.add(self._scope.at)

    def is_replaced(self, number: int, element: bytes) -> bool:  # noqa: ARG002 - as of all cells
        """Tell whether what the store has of this element counts no more."""
        return number in self._cleared

    def earliest_ms(self) -> int | None:
        """Return when the first of what was written expires."""
        return self._scope.due_ms(self._variable.ttl_ms) if any(self._added.values()) else None

    def changes(self) -> list[cells.DeltaRows]:
        """Return what was written."""
        added = sorted((number, of_key) for number, of_key in self._added.items() if of_key)
        rows = list(chain.from_iterable(of_key for _, of_key in added))
        cleared = sorted(self._cleared)
        count = len(rows) + len(cleared)
        if not count:
            return []
        structs = self._fields.structs(rows)
        structs = pa.concat_arrays([structs, pa.nulls(len(cleared), structs.type)]) if cleared else structs
        due = self._scope.due_ms(self._variable.ttl_ms)
        dues = None if due is None else pa.array(np.full(count, due))
        counts = np.array([len(of_key) for _, of_key in added] + [1] * len(cleared), np.int64)
        numbers = np.repeat(np.array([number for number, _ in added] + cleared, np.int64), counts)
        deleted = cells.last_are_deleted(count, len(cleared))
        elements = pa.array(self._indexes(added, counts), mask=deleted)
        return [cells.DeltaRows(self._variable.name, numbers, deleted, structs, elements, dues)]

    def _indexes(self, added: Sequence[tuple[int, list[Values]]], counts: Offsets) -> Offsets:
        """Return the index of each element, by counts of keys; those of cleared keys, which come last, mean nothing."""
        first, numbers = np.zeros(len(counts), np.int64), np.array([number for number, _ in added], np.int64)
        goes_on = np.flatnonzero(~np.isin(numbers, list(self._cleared)))
        first[goes_on] = self._scope.reading.next_indexes(self._variable.name, numbers[goes_on])
        starts = positions_of(counts)
        return np.arange(starts[-1]) + np.repeat(first - starts[:-1], counts)

    def _decoded(self, rows: ElementRows, names: pa.Array | None) -> Iterable[Values]:  # noqa: ARG002 - as of all cells
        return self._fields.tuples(self._variable.values(rows.column(structs_of)))
