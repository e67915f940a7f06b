"""Convert rows to and from ``Row`` objects for ``transformWithState``, and check the event times of output."""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark.process.processors.processor import Form, Key, split_into_windows
from riffle_spark.process.types.fields import rows_as_tuples
from riffle_spark.spark.processors.spark_errors import emitted_late

ROWS_MAX: Final = 16_384
"""The maximal number of rows that are Python objects at the same time."""
_PER_MS: Final = 1_000
RowMaker: TypeAlias = Callable[[Iterable[object]], Row]


class RowForm:
    """A ``Form`` of ``Row`` objects. Output rows are matched with the schema ``output`` by name.

    As in PySpark, Arrow converts the values to Python.
    """

    def __init__(self, output: pa.Schema) -> None:
        """Create a form whose output has the columns ``output``."""
        self._output = output
        self._is_flat = not any(pa.types.is_nested(kind) for kind in output.types)
        self._rows: list[Row] = []

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """Return each key as a tuple."""
        return rows_as_tuples(keys)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield an iterator over each key's rows. ``positions`` has the first row of each key, and the end."""
        for first, end in split_into_windows(positions, ROWS_MAX):
            start = positions[first]
            stop = positions[end]
            if stop - start > ROWS_MAX:
                yield _pieces(rows.slice(start, stop - start))
                continue
            objects = _objects(rows.slice(start, stop - start))
            for key in range(first, end):
                yield iter(objects[positions[key] - start : positions[key + 1] - start])

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield an iterator over each key's initial states.

        ``positions`` has the first row of each key, and the end.
        """
        return self.rows(states, positions)

    def collect(self, output: Iterable[object]) -> None:
        """Add the rows that the processor returned for a key to the output."""
        self._rows.extend(output)  # type: ignore[arg-type]  # other types fail when they are read

    def output(self) -> pa.Table:
        """Return all collected rows as a table, and forget them."""
        rows = self._rows
        self._rows = []
        if not rows:
            return self._output.empty_table()
        columns = self._by_position(rows) or self._by_name(rows)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._output, strict=True)]
        return pa.table(arrays, schema=self._output)

    def _by_position(self, rows: list[Row]) -> list[tuple[object, ...]]:
        """Return the columns of rows that all have exactly the declared fields in order, none of them nested.

        Return an empty list for any other rows.
        """
        names = self._output.names
        if self._is_flat and all(getattr(row, "__fields__", None) == names for row in rows):
            return list(zip(*rows, strict=True))
        return []

    def _by_name(self, rows: list[Row]) -> list[list[object]]:
        """Return the columns as PySpark does: a missing field is null, and an undeclared field is dropped."""
        dictionaries = [row.asDict(True) for row in rows]
        return [[fields.get(name) for fields in dictionaries] for name in self._output.names]


class EventTimeForm:
    """A ``Form`` that checks that the event times of its output are after the watermark, as Spark does."""

    def __init__(self, form: Form, column: str, watermark_ms: int) -> None:
        """Wrap a form. ``column`` is the output column with the event time."""
        self._form = form
        self._column = column
        self._watermark_ms = watermark_ms
        self.keys = form.keys
        self.rows = form.rows
        self.states = form.states
        self.collect = form.collect

    def output(self) -> pa.Table:
        """Return and clear the collected output. Raise Spark's error for a row that is not after the watermark."""
        table = self._form.output()
        times_us = table.column(self._column).drop_null().cast(pa.int64()).to_numpy()
        if len(times_us) and times_us.min() <= self._watermark_ms * _PER_MS:
            raise emitted_late(int(times_us.min()), self._watermark_ms)
        return table


def _objects(rows: pa.Table) -> list[Row]:
    """Return rows as PySpark's ``Row`` objects."""
    return list(map(row_maker(rows.column_names), rows_as_tuples(rows)))


def _pieces(rows: pa.Table) -> Iterator[Row]:
    """Yield the rows of a key, converted piece by piece."""
    for start in range(0, rows.num_rows, ROWS_MAX):
        yield from _objects(rows.slice(start, ROWS_MAX))


def row_maker(names: Sequence[str]) -> RowMaker:
    """Return a function that makes a ``Row`` with the fields ``names`` from a tuple of its values.

    The rows have a subclass of ``Row`` of their own. It holds the field names, so that they are not set on every row,
    and finds fields without a search unless a method of ``Row`` has the same name.
    """
    return _make_maker(tuple(names))


@cache
def _make_maker(names: tuple[str, ...]) -> RowMaker:
    """Return the function of ``row_maker``, cached by the names."""
    fields = namedtuple("Fields", [f"field{index}" for index in range(len(names))])  # type: ignore[misc] # no literal
    # The first of equal names wins. The class is referenced until the getters are, as its collection would empty them.
    getters = {name: getattr(fields, f"field{index}") for index, name in reversed(list(enumerate(names)))}
    visible = {name: getter for name, getter in getters.items() if not hasattr(Row, name) and not name.startswith("__")}
    row = type("Row", (Row,), {"__fields__": list(names), "__module__": Row.__module__, **visible})
    return partial(tuple.__new__, row)
