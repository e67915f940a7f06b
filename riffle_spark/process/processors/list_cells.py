"""The list states of a key-group in a batch.

Appending does not read the list. The index of an element only has to be above the indexes of earlier elements. It
is looked up when the delta is made.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Offsets, positions_of
from riffle_spark.process.blocks.block import StateRows
from riffle_spark.process.processors import cells
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import ElementRows, structs_of


class ListCells:
    """A list variable: the elements of the current key are tuples, in insertion order."""

    def __init__(self, scope: cells.Scope, declared: cells.DeclaredVariable) -> None:
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._stored: cells.ReadAhead[Values] = cells.ReadAhead(scope, declared.variable.name, self._decode)
        self._added: dict[int, list[Values]] = {}
        self._cleared: set[int] = set()

    def get(self) -> Iterator[Values]:
        """Return an iterator over the current key's elements, in insertion order."""
        number = self._scope.current_key
        added = self._added.get(number)
        stored: Iterable[Values] = () if number in self._cleared else self._stored.of(number)
        elements = chain(stored, tuple(added)) if added else iter(stored)
        return map(self._fields.copy, elements) if self._fields.can_change else elements

    def exists(self) -> bool:
        """Return whether the current key has an element."""
        number = self._scope.current_key
        if self._added.get(number):
            return True
        return number not in self._cleared and self._stored.has_any(number)

    def put(self, elements: Iterable[object]) -> None:
        """Replace all elements of the current key. Raises ``Misfit`` for an element that does not fit the fields."""
        rows = self._fields.normalize_all(elements)
        self.clear()
        self._added[self._scope.current_key] = rows

    def append(self, element: object) -> None:
        """Append an element to the current key's list. Raises ``Misfit`` if it does not fit the fields."""
        row = self._fields.normalize(element)
        self._added.setdefault(self._scope.current_key, []).append(row)

    def extend(self, elements: Iterable[object]) -> None:
        """Append all elements, or none: raises ``Misfit`` if one does not fit the fields."""
        rows = self._fields.normalize_all(elements)
        self._added.setdefault(self._scope.current_key, []).extend(rows)

    def clear(self) -> None:
        """Remove all elements of the current key."""
        self._added.pop(self._scope.current_key, None)
        self._cleared.add(self._scope.current_key)

    def is_replaced(self, number: int, element: bytes) -> bool:  # noqa: ARG002 - the interface of all cells
        """Return whether the stored elements of the key with this number were removed in this batch.

        ``element`` is unused.
        """
        return number in self._cleared

    def earliest_ms(self) -> int | None:
        """Return when the first added element expires; ``None`` if none does."""
        return self._scope.due_ms(self._variable.ttl_ms) if any(self._added.values()) else None

    def changes(self) -> list[cells.DeltaRows]:
        """Return the appended elements and the cleared keys of the batch as rows of the delta."""
        added = sorted((number, elements) for number, elements in self._added.items() if elements)
        rows = list(chain.from_iterable(elements for _, elements in added))
        cleared = sorted(self._cleared)
        count = len(rows) + len(cleared)
        if not count:
            return []
        structs = cells.append_nulls(self._fields.structs(rows), len(cleared))
        dues = self._scope.due_column(self._variable.ttl_ms, count)
        counts = np.array([len(elements) for _, elements in added] + [1] * len(cleared), np.int64)
        numbers = np.repeat(np.array([number for number, _ in added] + cleared, np.int64), counts)
        deleted = cells.mask_last(count, len(cleared))
        indexes = pa.array(self._make_indexes(added, counts), mask=deleted)
        return [cells.DeltaRows(self._variable.name, numbers, deleted, structs, indexes, dues)]

    def count_rows(self) -> StateRows:
        """Return how many elements the batch appended and removed. Elements of a list that is replaced are removed."""
        added = sum(map(len, self._added.values()))
        cleared = np.array(sorted(self._cleared), np.int64)
        removed = self._scope.reading.count_stored(self._variable.name, cleared) if len(cleared) else 0
        return StateRows(added, added, removed)

    def _make_indexes(self, added: Sequence[tuple[int, list[Values]]], counts: Offsets) -> Offsets:
        """Return the index in its list of each appended element.

        ``counts`` holds the number of rows per key. Counts of cleared keys are unused.
        """
        first = np.zeros(len(counts), np.int64)
        numbers = np.array([number for number, _ in added], np.int64)
        has_stored = np.flatnonzero(~np.isin(numbers, list(self._cleared)))
        first[has_stored] = self._scope.reading.next_indexes(self._variable.name, numbers[has_stored])
        starts = positions_of(counts)
        return np.arange(starts[-1]) + np.repeat(first - starts[:-1], counts)

    def _decode(self, rows: ElementRows, names: pa.Array | None) -> Iterable[Values]:  # noqa: ARG002 - the interface of all cells
        """Return stored rows as tuples for the user. ``names`` is unused."""
        return self._fields.tuples(self._variable.values(rows.take_column(structs_of)))
