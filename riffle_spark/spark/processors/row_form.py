"""The form of ``transformWithState``: rows as ``Row`` objects; and what holds output of any form against a watermark.
Knows rows in and rows out. Does not know processors.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark.process.processors.processor import Form, Key, windows
from riffle_spark.process.types.fields import rows_of
from riffle_spark.spark.processors.spark_errors import emitted_late

__all__ = ["EventTimeForm", "RowForm", "RowMaker", "row_maker"]

ROWS_MAX: Final = 16_384
"""So many rows are Python objects at once."""
_PER_MS: Final = 1_000
RowMaker: TypeAlias = Callable[[Iterable[object]], Row]


class RowForm:
    """A ``Form`` of ``Row`` objects. ``output`` is the schema of what comes out, matched by name.

    What a row holds is what PySpark puts into it: what Arrow makes of each value.
    """

    def __init__(self, output: pa.Schema) -> None:
        self._output = output
        self._is_flat = not any(pa.types.is_nested(kind) for kind in output.types)
        self._rows: list[Row] = []

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """See ``Form``."""
        return rows_of(keys)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """See ``Form``."""
        for first, end in windows(positions, ROWS_MAX):
            start, stop = positions[first], positions[end]
            if stop - start > ROWS_MAX:
                yield _pieces(rows.slice(start, stop - start))
                continue
            objects = _objects(rows.slice(start, stop - start))
            for key in range(first, end):
                yield iter(objects[positions[key] - start : positions[key + 1] - start])

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """See ``Form``."""
        return self.rows(states, positions)

    def collect(self, output: Iterable[object]) -> None:
        """See ``Form``."""
        self._rows.extend(output)  # type: ignore[arg-type]  # what is no row shows when it is read

    def output(self) -> pa.Table:
        """See ``Form``."""
        rows, self._rows = self._rows, []
        if not rows:
            return self._output.empty_table()
        columns = self._by_position(rows) or self._by_name(rows)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._output, strict=True)]
        return pa.table(arrays, schema=self._output)

    def _by_position(self, rows: list[Row]) -> list[tuple[object, ...]]:
        """Return the columns, if all rows have just the declared fields in their order, and none holds others."""
        names = self._output.names
        if self._is_flat and all(getattr(row, "__fields__", None) == names for row in rows):
            return list(zip(*rows, strict=True))
        return []

    def _by_name(self, rows: list[Row]) -> list[list[object]]:
        """Return the columns as PySpark makes them: what a row does not have is null, what is not declared is lost."""
        found = [row.asDict(True) for row in rows]
        return [[row.get(name) for row in found] for name in self._output.names]


class EventTimeForm:
    """A ``Form`` whose output has an event time that is ahead of the watermark: what follows would not take it else."""

    def __init__(self, form: Form, column: str, watermark_ms: int) -> None:
        self._form = form
        self._column = column
        self._watermark_ms = watermark_ms
        self.keys, self.rows, self.states, self.collect = form.keys, form.rows, form.states, form.collect

    def output(self) -> pa.Table:
        """See ``Form``. Raises Spark's error for a row that is not ahead of the watermark."""
        table = self._form.output()
        told = table.column(self._column).drop_null().cast(pa.int64()).to_numpy()
        if len(told) and told.min() <= self._watermark_ms * _PER_MS:
            raise emitted_late(int(told.min()), self._watermark_ms)
        return table


def _objects(rows: pa.Table) -> list[Row]:
    return list(map(row_maker(rows.column_names), rows_of(rows)))


def _pieces(rows: pa.Table) -> Iterator[Row]:
    """Yield the rows of one key, some at a time."""
    for start in range(0, rows.num_rows, ROWS_MAX):
        yield from _objects(rows.slice(start, ROWS_MAX))


def row_maker(names: Sequence[str]) -> RowMaker:
    """Return what makes rows of these fields out of their values.

    The rows are of a class of their own below ``Row``: the names are the class's, so that they need not be put into
    every row, and fields that a ``Row`` does not hide behind methods of its own are found without a search.
    """
    return _maker(tuple(names))


@cache
def _maker(names: tuple[str, ...]) -> RowMaker:
    found = _getters(names, namedtuple("Fields", [f"field{at}" for at in range(len(names))]))
    own = {name: getter for name, getter in found.items() if not hasattr(Row, name) and not name.startswith("__")}
    row = type("Row", (Row,), {"__fields__": list(names), "__module__": Row.__module__, **own})
    return partial(tuple.__new__, row)


def _getters(names: tuple[str, ...], fields: type) -> dict[str, Any]:
    """Return the getter of each name, the first of equal ones. The class is held meanwhile: collected as garbage, it is
    emptied, even under those who hold its ``vars``.
    """
    return {name: getattr(fields, f"field{at}") for at, name in reversed(list(enumerate(names)))}
