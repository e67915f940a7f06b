"""Value states of one key-group in one batch. Knows what was read ahead and what was written. Does not know a user."""

import numpy as np
import pyarrow as pa

from riffle_spark.process.processors.cells import DeclaredVariable, DeltaRows, Scope, last_are_deleted
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import structs_of

__all__ = ["ValueCells"]

WINDOW = 8192
"""So many keys are read ahead with the first that is asked for."""
WINDOW_ROWS = 1 << 30
"""A key has one row in each part at most."""


class ValueCells:
    """One value variable: a tuple or nothing for each key, of the key where the scope is at."""

    def __init__(self, scope: Scope, declared: DeclaredVariable) -> None:
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._can_change = declared.value.can_change
        self._values: dict[int, Values | None] = {}
        self._changed: set[int] = set()

    def get(self) -> Values | None:
        """Return the value, ``None`` if there is none."""
        try:
            values = self._values[self._scope.at]
        except KeyError:
            values = self._read(self._scope.at)
        return self._fields.copied(values) if self._can_change and values is not None else values

    def exists(self) -> bool:
        """Tell whether there is a value."""
        return self.get() is not None

    def update(self, values: object) -> None:
        """Set the value. Raises ``Misfit`` for what does not fit its fields."""
        taken = self._fields.take(values)
        at = self._scope.at
        self._values[at] = taken
        self._changed.add(at)

    def clear(self) -> None:
        """Remove the value."""
        self._values[self._scope.at] = None
        self._changed.add(self._scope.at)

    def is_replaced(self, number: int, element: bytes) -> bool:  # noqa: ARG002 - as of all cells
        """Tell whether what the store has of this element counts no more."""
        return number in self._changed

    def earliest_ms(self) -> int | None:
        """Return when the first of what was written expires."""
        is_due = any(self._values[number] is not None for number in self._changed)
        return self._scope.due_ms(self._variable.ttl_ms) if is_due else None

    def changes(self) -> list[DeltaRows]:
        """Return what was written."""
        values, changed = self._values, sorted(self._changed)
        numbers = [number for number in changed if values[number] is not None]
        removed = [number for number in changed if values[number] is None]
        structs = self._fields.structs([row for number in numbers if (row := values[number]) is not None])
        if removed:
            structs = pa.concat_arrays([structs, pa.nulls(len(removed), structs.type)])
        due = self._scope.due_ms(self._variable.ttl_ms)
        dues = None if due is None else pa.array(np.full(len(changed), due))
        deleted = last_are_deleted(len(changed), len(removed))
        return [DeltaRows(self._variable.name, numbers + removed, deleted, structs, dues=dues)] if changed else []

    def _read(self, at: int) -> Values | None:
        """Read a window of keys that are not known yet, this one and those after it."""
        scope, values = self._scope, self._values
        last = min(at + WINDOW, scope.count)
        found = scope.reading.elements(self._variable.name, at, last, scope.now_ms, WINDOW_ROWS)
        read: dict[int, Values | None] = dict.fromkeys(range(at, at + len(found.ends)))
        if found.ends[-1]:
            rows = self._fields.tuples(self._variable.values(found.rows.column(structs_of)))
            read.update(zip((found.rows.owners + at).tolist(), rows, strict=True))
        values.update({number: row for number, row in read.items() if number not in values})
        return values[at]
