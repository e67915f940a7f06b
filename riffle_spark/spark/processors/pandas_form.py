"""The form of ``transformWithStateInPandas``: rows as DataFrames. Knows frames in and frames out. Does not know
processors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

from riffle_spark.process.processors.processor import Key, windows
from riffle_spark.process.types.fields import converted, pylist
from riffle_spark.spark.processors.pandas_output import PandasOutput

__all__ = ["PandasForm", "PandasOptions", "Slices", "frame_of", "series_of"]

_NO_LIMIT = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class PandasOptions:
    """What Spark's configuration says of pandas: the session's time zone, rows and bytes in one frame at most, whether
    columns are matched by name, whether a conversion must lose nothing, whether whole numbers may be decimals.
    """

    timezone: str = "UTC"
    rows_max: int = 10_000
    by_name: bool = True
    safe: bool = False
    bytes_max: int = _NO_LIMIT
    int_to_decimal: bool = False


class PandasForm:
    """A ``Form`` of DataFrames: one a key, or several where a key has more rows than fit one.

    Types are those that PySpark 4.1 and newer give: integers of 64 bits, floats of 64 bits, and floats also for
    integers where nulls are among the rows that are converted together.
    """

    def __init__(self, output: pa.Schema, options: PandasOptions) -> None:
        self._options = options
        self._rows_max = options.rows_max if options.rows_max > 0 else _NO_LIMIT
        self._taken = PandasOutput(
            output, timezone=options.timezone, by_name=options.by_name, safe=options.safe,
            int_to_decimal=options.int_to_decimal,
        )  # fmt: skip

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        """See ``Form``."""
        return zip(*map(self._key_values, keys.column_names, keys.columns), strict=True)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """See ``Form``."""
        rows_max = self._rows_of(rows)
        together = rows_max if rows_max == self._rows_max else 0  # keys of large rows are converted one by one
        for first, end in windows(positions, together):
            start, stop = positions[first], positions[end]
            if stop - start > rows_max:
                yield self._pieces(rows.slice(start, stop - start), rows_max)
                continue
            slices = Slices(self._frame(rows.slice(start, stop - start)))
            for key in range(first, end):
                begin, after = positions[key] - start, positions[key + 1] - start
                yield iter((slices[begin, after],) if begin < after else ())

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        """See ``Form``."""
        return self.rows(states, positions)

    def collect(self, output: Iterable[object]) -> None:
        """See ``Form``."""
        for frame in output:
            self._taken.add(frame)

    def output(self) -> pa.Table:
        """See ``Form``."""
        return self._taken.table()

    def _rows_of(self, rows: pa.Table) -> int:
        """Return how many rows go into one frame at most; by bytes, as Spark does, of rows of average size."""
        if self._options.bytes_max == _NO_LIMIT or not rows.num_rows:
            return self._rows_max
        by_bytes: int = -(-self._options.bytes_max * rows.num_rows // max(int(rows.nbytes), 1))
        return min(self._rows_max, max(by_bytes, 1))

    def _pieces(self, rows: pa.Table, rows_max: int) -> Iterator[pd.DataFrame]:
        """Yield the rows of one key, some at a time."""
        for start in range(0, rows.num_rows, rows_max):
            yield self._frame(rows.slice(start, rows_max))

    def _frame(self, rows: pa.Table) -> pd.DataFrame:
        return frame_of(rows, self._options.timezone)

    def _key_values(self, name: str, column: pa.ChunkedArray) -> Iterable[object]:
        """Return the values of one column of keys; times as pandas has them, all else as Python has it."""
        if pa.types.is_timestamp(column.type):
            return list(series_of(name, column, self._options.timezone))
        return converted(name, column, pylist)


def frame_of(rows: pa.Table, timezone: str) -> pd.DataFrame:
    """Return the rows as PySpark gives them to a processor, with an index from 0."""
    named = zip(rows.column_names, rows.columns, strict=True)
    columns = {at: _widened(series_of(name, column, timezone)) for at, (name, column) in enumerate(named)}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(rows.num_rows))
    frame.columns = pd.Index(rows.column_names)
    return frame


def series_of(name: str, column: pa.ChunkedArray, timezone: str) -> pd.Series:
    """Return a column as PySpark converts it: dates as objects, times as naive ones of the session's zone.

    Raises ``NotText`` if the column of this name holds text that is not UTF-8.
    """
    options = {"date_as_object": True, "coerce_temporal_nanoseconds": True}
    return converted(name, column, lambda one: _converter(one.type, timezone)(one.to_pandas(**options)))


@cache
def _converter(kind: pa.DataType, timezone: str) -> Callable[[pd.Series], pd.Series]:
    spark_type = from_arrow_type(kind, prefer_timestamp_ntz=True)
    return _create_converter_to_pandas(spark_type, nullable=True, timezone=timezone, struct_in_pandas="dict")


def _widened(series: pd.Series) -> pd.Series:
    """Return numbers as pandas infers them from Python's: of 64 bits."""
    if series.dtype.kind == "i" and series.dtype.itemsize < np.dtype(np.int64).itemsize:
        return series.astype(np.int64)
    return series.astype(np.float64) if series.dtype == np.float32 else series


class Slices:
    """Frames of consecutive rows of one frame, each with an index from 0.

    pandas takes some 25 microseconds for such a slice through its public methods, and 6 this way. Where it has not
    what this needs, the public way is taken.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self._indexes: dict[int, pd.RangeIndex] = {}
        manager = getattr(frame, "_mgr", None)
        self._slice = getattr(manager, "get_slice", None) if hasattr(pd.DataFrame, "_from_mgr") else None

    def __getitem__(self, span: tuple[int, int]) -> pd.DataFrame:
        """Return the rows from one place to before another."""
        start, stop = span
        if self._slice is None:
            return self._frame.iloc[start:stop].reset_index(drop=True)
        index = self._indexes.get(stop - start)
        if index is None:
            index = self._indexes[stop - start] = pd.RangeIndex(stop - start)
        manager = self._slice(slice(start, stop), axis=1)
        manager.axes[:] = [self._frame.columns.view(), index.view()]  # whose names a processor may set
        return pd.DataFrame._from_mgr(manager, axes=manager.axes)
