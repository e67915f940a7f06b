"""The value states of a key-group in a batch."""

import numpy as np

from riffle_spark.process.blocks.block import StateRows
from riffle_spark.process.processors.cells import DeclaredVariable, DeltaRows, Scope, append_nulls, mask_last
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import structs_of

WINDOW = 8192
"""Keys that are read at once."""
WINDOW_ROWS = 1 << 30
"""No limit: a key has at most one row in each part."""


class ValueCells:
    """A value variable: the value of the current key is a tuple or ``None``."""

    def __init__(self, scope: Scope, declared: DeclaredVariable) -> None:
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._can_change = declared.value.can_change
        self._values: dict[int, Values | None] = {}
        self._changed: set[int] = set()

    def get(self) -> Values | None:
        """Return the current key's value, or ``None``."""
        try:
            values = self._values[self._scope.current_key]
        except KeyError:
            values = self._read_ahead(self._scope.current_key)
        return self._fields.copy(values) if self._can_change and values is not None else values

    def exists(self) -> bool:
        """Return whether the current key has a value."""
        return self.get() is not None

    def update(self, values: object) -> None:
        """Set the current key's value. Raises ``Misfit`` if it does not fit its fields."""
        row = self._fields.normalize(values)
        number = self._scope.current_key
        self._values[number] = row
        self._changed.add(number)

    def clear(self) -> None:
        """Remove the current key's value."""
        self._values[self._scope.current_key] = None
        self._changed.add(self._scope.current_key)

    def is_replaced(self, number: int, element: bytes) -> bool:  # noqa: ARG002 - the interface of all cells
        """Return whether the stored value of the key with this number was overwritten or removed in this batch.

        ``element`` is unused.
        """
        return number in self._changed

    def earliest_ms(self) -> int | None:
        """Return when the first written value expires; ``None`` if none does."""
        is_due = any(self._values[number] is not None for number in self._changed)
        return self._scope.due_ms(self._variable.ttl_ms) if is_due else None

    def changes(self) -> list[DeltaRows]:
        """Return the written and removed values of the batch as rows of the delta."""
        values = self._values
        changed = sorted(self._changed)
        if not changed:
            return []
        numbers = [number for number in changed if values[number] is not None]
        removed = [number for number in changed if values[number] is None]
        structs = self._fields.structs([row for number in numbers if (row := values[number]) is not None])
        structs = append_nulls(structs, len(removed))
        dues = self._scope.due_column(self._variable.ttl_ms, len(changed))
        deleted = mask_last(len(changed), len(removed))
        return [DeltaRows(self._variable.name, numbers + removed, deleted, structs, dues=dues)]

    def count_rows(self) -> StateRows:
        """Return how many values the batch added, wrote and removed."""
        if not self._changed:
            return StateRows()
        numbers = np.array(sorted(self._changed), np.int64)
        has_value = np.array([self._values[number] is not None for number in numbers.tolist()])
        stored = self._scope.reading.are_stored(self._variable.name, numbers, np.zeros_like(numbers))
        counts = (has_value & ~stored, has_value, ~has_value & stored)
        return StateRows(*(int(np.count_nonzero(mask)) for mask in counts))

    def _read_ahead(self, number: int) -> Values | None:
        """Return the stored value of the key with this number, and read those of the next keys.

        Values that are already known stay.
        """
        scope = self._scope
        end = min(number + WINDOW, scope.key_count)
        window = scope.reading.read_elements(self._variable.name, number, end, scope.now_ms, WINDOW_ROWS)
        stored: dict[int, Values | None] = dict.fromkeys(range(number, number + len(window.ends)))
        if window.ends[-1]:
            rows = self._fields.tuples(self._variable.values(window.rows.take_column(structs_of)))
            stored.update(zip((window.rows.owners + number).tolist(), rows, strict=True))
        values = self._values
        values.update({key: row for key, row in stored.items() if key not in values})
        return values[number]
