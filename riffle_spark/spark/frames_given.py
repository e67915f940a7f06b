"""Arrow tables as DataFrames, and slices of them. Knows how PySpark converts and pandas keeps columns; not keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql.pandas.types import _create_converter_to_pandas, from_arrow_type

__all__ = ["Slices", "frame_of", "series_of"]


def frame_of(rows: pa.Table, timezone: str) -> pd.DataFrame:
    """Return the rows as PySpark gives them to a processor, with an index from 0."""
    columns = {at: _widened(series_of(column, timezone)) for at, column in enumerate(rows.columns)}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(rows.num_rows))
    frame.columns = pd.Index(rows.column_names)
    return frame


def series_of(column: pa.ChunkedArray, timezone: str) -> pd.Series:
    """Return a column as PySpark converts it: dates as objects, times as naive ones of the session's zone."""
    options = {"date_as_object": True, "coerce_temporal_nanoseconds": True}
    return _converter(column.type, timezone)(column.to_pandas(**options))


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
