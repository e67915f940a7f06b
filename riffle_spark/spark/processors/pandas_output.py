"""Many small DataFrames as one Arrow table. Knows how PySpark converts results. Does not know where frames come from.

To make an Arrow table of each frame would take 100 microseconds, to concatenate frames 25. So only their columns are
kept, as arrays, and those of one type are joined and converted together when all are there.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.pandas.types import _create_converter_from_pandas, from_arrow_type

from riffle_spark.state.formats.arrow_casts import with_nan_for_null

__all__ = ["PandasOutput"]

_COERCION: Final = "int_to_decimal_coercion_enabled"
_COERCED: Final = {_COERCION: True} if _COERCION in signature(_create_converter_from_pandas).parameters else {}
"""What says to PySpark's converter, where it knows that, that whole numbers may be decimals."""
_CASTS: Final = bool(_COERCED)
"""Whether PySpark casts what does not convert: since 4.1, where casts are safe by default. In 4.0 they would wrap."""
Values: TypeAlias = "np.ndarray[Any, Any] | pd.api.extensions.ExtensionArray"


class PandasOutput:
    """Takes frames of the columns that a schema declares: by name, or by place if no label is a string."""

    def __init__(
        self, schema: pa.Schema, *, timezone: str, by_name: bool, safe: bool, int_to_decimal: bool = False
    ) -> None:
        self._schema = schema
        self._by_name = by_name
        self._labels: list[object] = []
        self._places: list[int] = []
        self._frames: list[tuple[Sequence[Values], list[int]]] = []
        coerced = _COERCED if int_to_decimal else {}
        self._convert = [_Column(field, timezone, coerced, safe=safe) for field in schema]

    def add(self, frame: object) -> None:
        """Take a frame. Raises PySpark's error for what is none, and ``KeyError`` if a column is missing."""
        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(
                "Invalid return type. Please make sure that the UDF returns a "
                "pandas.DataFrame when the specified return type is StructType."
            )
        labels = frame.columns.tolist()
        if not labels and not len(frame):
            return
        if labels != self._labels:
            self._places = self._places_of(labels)
            self._labels = labels
        self._frames.append((_copied(frame), self._places))

    def table(self) -> pa.Table:
        """Return all rows in the order in which they came, and forget them."""
        frames, self._frames = self._frames, []
        arrays = [
            convert([values[places[at]] for values, places in frames]) for at, convert in enumerate(self._convert)
        ]
        return pa.table(arrays, schema=self._schema)

    def _places_of(self, labels: list[object]) -> list[int]:
        """Return where the declared columns are."""
        if not self._by_name or not any(isinstance(label, str) for label in labels):
            if len(labels) < len(self._schema):
                raise IndexError(f"a frame of {len(labels)} columns where {len(self._schema)} are declared")
            return list(range(len(self._schema)))
        missing = [name for name in self._schema.names if name not in labels]
        if missing:
            raise KeyError(f"{missing} not in the columns of a frame: {labels}")
        return [labels.index(name) for name in self._schema.names]


def _copied(frame: pd.DataFrame) -> Sequence[Values]:
    """Return copies of the columns' values, as the processor may write into its frame again.

    Columns that pandas keeps as rows of one array are copied with it; where it has no such way, or another one for a
    column, each is copied through a series.
    """
    blocks: Any = getattr(getattr(frame, "_mgr", None), "blocks", ())
    if len(blocks) == 1 and _is_in_order(blocks[0], frame.shape[1]):
        return cast("Sequence[Values]", blocks[0].values.copy())
    if hasattr(frame, "_iter_column_arrays"):
        return [values.copy() for values in frame._iter_column_arrays()]
    return [frame.iloc[:, at].array.copy() for at in range(frame.shape[1])]


def _is_in_order(block: Any, columns: int) -> bool:
    """Tell whether the rows of a block's array are the frame's columns."""
    places = block.mgr_locs
    return type(block.values) is np.ndarray and places.is_slice_like and places.as_slice == slice(0, columns, 1)


class _Column:
    """Converts one column. Frames whose values are of one type are converted together."""

    def __init__(self, field: pa.Field, timezone: str, coerced: Mapping[str, Any], *, safe: bool) -> None:
        self._field = field
        self._safe = safe
        spark_type = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        self._converter = _create_converter_from_pandas(
            spark_type, timezone=timezone, error_on_duplicated_field_names=False, **coerced
        )

    def __call__(self, arrays: list[Values]) -> pa.Array:
        """Return the values of all frames."""
        by_type: dict[object, list[int]] = {}
        for at, values in enumerate(arrays):
            by_type.setdefault(values.dtype, []).append(at)
        if len(by_type) <= 1:
            return self._converted(arrays) if arrays else pa.array([], self._field.type)
        parts = [self._converted([arrays[at] for at in places]) for places in by_type.values()]
        rows = [np.full(len(arrays[at]), at) for places in by_type.values() for at in places]
        order = np.argsort(np.concatenate(rows), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    def _converted(self, arrays: Sequence[Values]) -> pa.Array:
        series = pd.Series(_joined(arrays), name=self._field.name)
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
        try:
            array = pa.Array.from_pandas(series, mask=mask, type=self._field.type, safe=self._safe)
        except pa.ArrowInvalid:
            if not _CASTS:
                raise
            array = pa.Array.from_pandas(series, mask=mask).cast(target_type=self._field.type, safe=self._safe)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return with_nan_for_null(array, self._field)

    def _problem(self, series: pd.Series) -> str:
        return (
            f"Cannot convert the output value of the column '{self._field.name}' with type '{series.dtype}' to the "
            f"specified return type of the column: '{self._field.type}'. Please check if the data types match."
        )


def _joined(arrays: Sequence[Values]) -> Values:
    if len(arrays) == 1:
        return arrays[0]
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    joined: Values = type(arrays[0])._concat_same_type(arrays)
    return joined
