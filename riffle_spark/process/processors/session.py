"""The state of a key-group in a batch: its keys, the cells of its variables, and its delta.

A session reads one head and never sees another batch. Writes stay in the cells, and ``changes`` makes a table of
them. Keys are numbered: first the keys of the input, then the keys with only due timers or elements.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from riffle_spark.process.blocks.block import StateRows
from riffle_spark.process.processors.cells import DeclaredVariable, DeltaRows, Scope
from riffle_spark.process.processors.list_cells import ListCells
from riffle_spark.process.processors.map_cells import MapCells
from riffle_spark.process.processors.timers import DueTimers, Timers
from riffle_spark.process.processors.value_cells import ValueCells
from riffle_spark.state.copies.reading import CopyRuns
from riffle_spark.state.copies.run import Hashes
from riffle_spark.state.formats.part_codec import DELETED
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, VARIABLE
from riffle_spark.state.schemas.variables import VariableColumns

Cells: TypeAlias = ValueCells | ListCells | MapCells

_CELLS: Final[dict[str, type[ValueCells] | type[ListCells] | type[MapCells]]] = {
    "value": ValueCells,
    "list": ListCells,
    "map": MapCells,
}


class Session:
    """The state of a key-group's keys in a batch.

    ``keys`` holds each key once, and key i has number i. ``cells`` holds the cells of each variable by name.
    """

    def __init__(
        self,
        schema: VariableColumns,
        declared: Sequence[DeclaredVariable],
        copy: CopyRuns,
        keys: pa.Table,
        now_ms: int,
    ) -> None:
        """Open the copy of a key-group for these keys, with the cells of each declared variable.

        ``now_ms`` is the time by which elements have expired.
        """
        self._keys = [keys]
        self._scope = Scope(schema, copy.open_reading(schema, keys), now_ms, keys.num_rows)
        self.cells: dict[str, Cells] = {
            variable.variable.name: _CELLS[variable.variable.kind](self._scope, variable) for variable in declared
        }
        self.timers = Timers(self._scope)
        self._due = DueTimers(self._scope, self.timers, self.keys, self._add_keys)
        self._expired: list[DeltaRows] | None = None

    def select_key(self, number: int) -> None:
        """Make the key with this number the current key of all cells."""
        self._scope.current_key = number

    def keys(self, start: int) -> pa.Table:
        """Return the keys with numbers from ``start`` on. ``fire`` and ``expire`` may add keys."""
        return pa.concat_tables(self._keys).slice(start)

    def fire(self, until_ms: int) -> list[tuple[int, int]]:
        """Return (due time, key number) of each timer that is due at or before ``until_ms``, in order of time.

        As in Spark, timers that are registered during the calls of fired timers are not included.
        """
        return self._due.timers(until_ms)

    def expire(self) -> int:
        """Delete all elements with an expired TTL, and return their number."""
        assert self._expired is None, "elements expire once"
        self._expired = self._due.elements(self.cells)
        return sum(len(piece.numbers) for piece in self._expired)

    def changes(self) -> pa.Table:
        """Return all writes of the batch as the key-group's part of the delta.

        Raises ``Misfit`` for a number out of its field's range.
        """
        schema = self._scope.schema.part_schema(delta=True)
        pieces = [piece for cells in self.cells.values() for piece in cells.changes()]
        pieces += self.timers.changes()
        pieces += self._expired or []
        if not pieces:
            return schema.empty_table()
        keys = pa.concat_tables(self._keys).combine_chunks()
        return pa.concat_tables([_make_delta_rows(piece, keys, schema) for piece in pieces])

    def count_rows(self) -> StateRows:
        """Return how many elements of all variables the batch changed, without timers. Call it after ``expire``."""
        rows = StateRows(removed=sum(len(piece.numbers) for piece in self._expired or ()))
        for cells in self.cells.values():
            rows = rows.plus(cells.count_rows())
        return rows

    def next_due_ms(self) -> int | None:
        """Return a lower bound of the next due time of this key-group; ``None`` if nothing will ever be due."""
        written = [self.timers.earliest_ms(), *(cells.earliest_ms() for cells in self.cells.values())]
        return min((due for due in [self._due.next_ms(self.cells), *written] if due is not None), default=None)

    def _add_keys(self, keys: pa.Table, hashes: Hashes) -> None:
        """Add keys, with their hashes, after the present ones."""
        self._keys.append(keys)
        self._scope.reading.add_keys(keys, hashes)
        self._scope.key_count += keys.num_rows


def _make_delta_rows(piece: DeltaRows, keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of one variable in the delta's schema."""
    count = len(piece.numbers)
    columns = dict(zip(keys.column_names, keys.take(pa.array(piece.numbers, pa.int64())).columns, strict=True))
    columns[VARIABLE] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int8)), [piece.variable])
    columns[DELETED] = pa.array(piece.deleted)
    present = {INDEX: piece.indexes, DUE: piece.dues, f"__state_{piece.variable}": piece.structs}
    columns |= {name: column for name, column in present.items() if column is not None}
    columns |= {field.name: pa.nulls(count, field.type) for field in schema if field.name not in columns}
    return pa.table([columns[name] for name in schema.names], schema=schema)
