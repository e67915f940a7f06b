"""Convert rows to and from DataFrames for ``transformWithStateInPandas``."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

from riffle_spark.process.processors.processor import Key, split_into_windows
from riffle_spark.process.types.fields import convert_column, to_python_list
from riffle_spark.spark import compat
from riffle_spark.spark.processors.pandas_output import NO_LIMIT, PandasOptions, PandasOutput

__all__ = ["PandasForm", "PandasOptions", "Slices", "frame_of", "series_of"]


class PandasForm:
    """A ``Form`` of DataFrames: one per key, or several if a key has more rows than a frame may have.

    Types are as in PySpark 4.1 and newer: 64-bit integers and floats, and floats also for integers if there are
    nulls among the rows that are converted together.
    """

    def __init__(self, output: pa.Schema, options: PandasOptions) -> None:
        """Create a form whose output has the columns ``output``."""
        self._options = options
        self._rows_max = options.rows_max if options.rows_max > 0 else NO_LIMIT
        self._frames = PandasOutput(output, options)

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """Return each key as a tuple."""
        return zip(*map(self._key_values, keys.column_names, keys.columns), strict=True)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield the frames of each key's rows. ``positions`` has the first row of each key, and the end."""
        rows_max = self._max_rows_per_frame(rows)
        together = rows_max if rows_max == self._rows_max else 0  # keys with large rows are converted one by one
        for first, end in split_into_windows(positions, together):
            start = positions[first]
            stop = positions[end]
            if stop - start > rows_max:
                yield self._pieces(rows.slice(start, stop - start), rows_max)
                continue
            slices = Slices(self._frame(rows.slice(start, stop - start)))
            for key in range(first, end):
                span = positions[key] - start, positions[key + 1] - start
                yield iter((slices[span],) if span[0] < span[1] else ())

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """Yield the frames of each key's initial state. ``positions`` has the first row of each key, and the end."""
        return self.rows(states, positions)

    def collect(self, output: Iterable[object]) -> None:
        """Add the frames that the processor returned for a key to the output."""
        for frame in output:
            self._frames.add(frame)

    def output(self) -> pa.Table:
        """Return all collected frames as a table, and forget them."""
        return self._frames.table()

    def _max_rows_per_frame(self, rows: pa.Table) -> int:
        """Return the maximal number of rows of a frame. As in Spark, a byte limit assumes rows of average size."""
        if self._options.bytes_max == NO_LIMIT or not rows.num_rows:
            return self._rows_max
        by_bytes: int = -(-self._options.bytes_max * rows.num_rows // max(int(rows.nbytes), 1))
        return min(self._rows_max, max(by_bytes, 1))

    def _pieces(self, rows: pa.Table, rows_max: int) -> Iterator[pd.DataFrame]:
        """Yield the rows of one key as frames of at most ``rows_max`` rows."""
        for start in range(0, rows.num_rows, rows_max):
            yield self._frame(rows.slice(start, rows_max))

    def _frame(self, rows: pa.Table) -> pd.DataFrame:
        """Return rows as the frame that PySpark passes to a processor."""
        return frame_of(rows, self._options.timezone)

    def _key_values(self, name: str, column: pa.ChunkedArray) -> Iterable[object]:
        """Return the values of a key column. Timestamps are pandas objects, all other values Python objects."""
        if pa.types.is_timestamp(column.type):
            return list(series_of(name, column, self._options.timezone))
        return convert_column(name, column, to_python_list)


def frame_of(rows: pa.Table, timezone: str) -> pd.DataFrame:
    """Return the frame that PySpark passes to a processor for ``rows``, with an index from 0."""
    named = zip(rows.column_names, rows.columns, strict=True)
    columns = {index: _widen(series_of(name, column, timezone)) for index, (name, column) in enumerate(named)}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(rows.num_rows))
    frame.columns = pd.Index(rows.column_names)
    return frame


def series_of(name: str, column: pa.ChunkedArray, timezone: str) -> pd.Series:
    """Return a column as PySpark converts it: dates as objects, timestamps without zone in the session's ``timezone``.

    Raise ``NotText`` if the column holds text that is not UTF-8.
    """
    options = compat.TO_PANDAS
    return convert_column(name, column, lambda array: _converter(array.type, timezone)(array.to_pandas(**options)))


@cache
def _converter(kind: pa.DataType, timezone: str) -> Callable[[pd.Series], pd.Series]:
    """Return PySpark's function that converts a series of this Arrow type for the user."""
    spark_type = from_arrow_type(kind, prefer_timestamp_ntz=True)
    return _create_converter_to_pandas(spark_type, nullable=True, timezone=timezone, struct_in_pandas="dict")


def _widen(series: pd.Series) -> pd.Series:
    """Return a series of numbers with 64 bits, as pandas infers them from Python objects.

    Others are returned unchanged.
    """
    if series.dtype.kind == "i" and series.dtype.itemsize < np.dtype(np.int64).itemsize:
        return series.astype(np.int64)
    return series.astype(np.float64) if series.dtype == np.float32 else series


class Slices:
    """Frames of consecutive rows of a frame, each with an index from 0.

    A slice takes about 25 microseconds with the public methods of pandas, and 6 with its private ones. All supported
    versions of pandas have them.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        """Create slices of ``frame``."""
        self._frame = frame
        self._indexes: dict[int, pd.RangeIndex] = {}

    def __getitem__(self, span: tuple[int, int]) -> pd.DataFrame:
        """Return the frame of the rows from a start to before a stop, given as (start, stop)."""
        start, stop = span
        index = self._indexes.get(stop - start)
        if index is None:
            index = self._indexes[stop - start] = pd.RangeIndex(stop - start)
        manager = self._frame._mgr.get_slice(slice(start, stop), axis=1)
        manager.axes[:] = [self._frame.columns.view(), index.view()]  # new objects, because a processor may rename them
        return pd.DataFrame._from_mgr(manager, axes=manager.axes)
