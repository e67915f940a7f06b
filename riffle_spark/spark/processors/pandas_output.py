"""Convert many small DataFrames to an Arrow table, as PySpark converts results.

An Arrow table per frame takes 100 microseconds, and concatenating frames takes 25 per frame. So the columns are kept as
arrays. Arrays of the same type are joined and converted together at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.pandas.types import _create_converter_from_pandas, from_arrow_type

from riffle_spark.state.formats.arrow_casts import replace_nulls_by_nan

_COERCION: Final = "int_to_decimal_coercion_enabled"
_COERCED: Final = {_COERCION: True} if _COERCION in signature(_create_converter_from_pandas).parameters else {}
"""The argument that lets PySpark's converter make decimals of integers, if it has one."""
_CASTS: Final = bool(_COERCED)
"""Whether PySpark casts values that do not convert. It does since 4.1, whose casts are safe. In 4.0 they overflow."""
NO_LIMIT: Final = 0x7FFFFFFF
Values: TypeAlias = "np.ndarray[Any, Any] | pd.api.extensions.ExtensionArray"


@dataclass(frozen=True, slots=True)
class PandasOptions:
    """Spark's settings for conversions to and from pandas.

    They are the session's time zone, the maximal rows and bytes of a frame, whether columns are matched by name,
    whether a lossy conversion fails, and whether integers may become decimals.
    """

    timezone: str = "UTC"
    rows_max: int = 10_000
    by_name: bool = True
    safe: bool = False
    bytes_max: int = NO_LIMIT
    int_to_decimal: bool = False


class PandasOutput:
    """Collects frames with the columns of a schema, matched by name, or by position if no label is a string."""

    def __init__(self, schema: pa.Schema, options: PandasOptions) -> None:
        """Create an output without rows. ``schema`` has the declared columns."""
        self._schema = schema
        self._by_name = options.by_name
        self._labels: list[object] = []
        self._positions: list[int] = []
        self._frames: list[tuple[Sequence[Values], list[int]]] = []
        coercion = _COERCED if options.int_to_decimal else {}
        self._columns = [_Column(field, options.timezone, coercion, safe=options.safe) for field in schema]

    def add(self, frame: object) -> None:
        """Add a frame. Raise PySpark's error for another type, and ``KeyError`` if a column is missing."""
        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(
                "Invalid return type. Please make sure that the UDF returns a "
                "pandas.DataFrame when the specified return type is StructType."
            )
        labels = frame.columns.tolist()
        if not labels and not len(frame):
            return
        if labels != self._labels:
            self._positions = self._positions_of(labels)
            self._labels = labels
        self._frames.append((_copy_columns(frame), self._positions))

    def table(self) -> pa.Table:
        """Return the rows of all frames in their order, and remove the frames."""
        frames = self._frames
        self._frames = []
        arrays = [
            column.convert([values[positions[index]] for values, positions in frames])
            for index, column in enumerate(self._columns)
        ]
        return pa.table(arrays, schema=self._schema)

    def _positions_of(self, labels: list[object]) -> list[int]:
        """Return the position of each declared column in a frame with these labels.

        Raise ``KeyError`` or ``IndexError`` if a column is missing.
        """
        if not self._by_name or not any(isinstance(label, str) for label in labels):
            if len(labels) < len(self._schema):
                raise IndexError(f"a frame has {len(labels)} columns, but {len(self._schema)} are declared")
            return list(range(len(self._schema)))
        missing = [name for name in self._schema.names if name not in labels]
        if missing:
            raise KeyError(f"a frame lacks the columns {missing}: it has {labels}")
        return [labels.index(name) for name in self._schema.names]


def _copy_columns(frame: pd.DataFrame) -> Sequence[Values]:
    """Return copies of a frame's columns, because the processor may change its frame later.

    Columns that pandas stores in a single array are copied together. Otherwise each column is copied.
    """
    blocks = frame._mgr.blocks
    if len(blocks) == 1 and _is_in_order(blocks[0], frame.shape[1]):
        return cast("Sequence[Values]", blocks[0].values.copy())
    return [values.copy() for values in frame._iter_column_arrays()]


def _is_in_order(block: Any, columns: int) -> bool:
    """Return whether the rows of a block's array are the frame's columns in order."""
    locations = block.mgr_locs
    return type(block.values) is np.ndarray and locations.is_slice_like and locations.as_slice == slice(0, columns, 1)


class _Column:
    """Converts a column. Arrays of the same type are converted together."""

    def __init__(self, field: pa.Field, timezone: str, coercion: Mapping[str, Any], *, safe: bool) -> None:
        """Create the converter of a column. ``coercion`` are further arguments of PySpark's converter."""
        self._field = field
        self._safe = safe
        spark_type = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        self._converter = _create_converter_from_pandas(
            spark_type, timezone=timezone, error_on_duplicated_field_names=False, **coercion
        )

    def convert(self, arrays: list[Values]) -> pa.Array:
        """Return the Arrow array of all arrays of the column, in their order."""
        by_type: dict[object, list[int]] = {}
        for index, values in enumerate(arrays):
            by_type.setdefault(values.dtype, []).append(index)
        if len(by_type) <= 1:
            return self._convert_alike(arrays) if arrays else pa.array([], self._field.type)
        parts = [self._convert_alike([arrays[index] for index in indexes]) for indexes in by_type.values()]
        owners = [np.full(len(arrays[index]), index) for indexes in by_type.values() for index in indexes]
        order = np.argsort(np.concatenate(owners), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    def _convert_alike(self, arrays: Sequence[Values]) -> pa.Array:
        """Return the Arrow array of arrays with the same type. Raise PySpark's error if a value does not convert."""
        series = pd.Series(_join_arrays(arrays), name=self._field.name)
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.dtype.categories.dtype)
        series = self._converter(series)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        try:
            return self._array(series, mask)
        except TypeError as error:
            raise PySparkTypeError(self._problem(series)) from error
        except ValueError as error:
            raise PySparkValueError(self._problem(series)) from error

    def _array(self, series: pd.Series, mask: Any) -> pa.Array:
        """Return a series as an Arrow array of the declared type. Values under ``mask`` become null."""
        try:
            array = pa.Array.from_pandas(series, mask=mask, type=self._field.type, safe=self._safe)
        except pa.ArrowInvalid:
            if not _CASTS:
                raise
            array = pa.Array.from_pandas(series, mask=mask).cast(target_type=self._field.type, safe=self._safe)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return replace_nulls_by_nan(array, self._field)

    def _problem(self, series: pd.Series) -> str:
        """Return PySpark's error text for a series that does not convert."""
        return (
            f"Cannot convert the output value of the column '{self._field.name}' with type '{series.dtype}' to the "
            f"specified return type of the column: '{self._field.type}'. Please check if the data types match."
        )


def _join_arrays(arrays: Sequence[Values]) -> Values:
    """Return arrays of the same type as one array."""
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    joined: Values = type(arrays[0])._concat_same_type(arrays)
    return joined
