"""Run a user's function for ``applyInPandasWithState`` on a slot: it gets each key's rows as DataFrames, and its state.

A table is read, the function is called key by key, and a table is written. Frames are slices of one large frame,
because a frame from a table of its own takes ten times as long. Spark makes the frame of each key on its own. That is
visible in integer and boolean columns with nulls, so keys with such nulls get frames of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError

from riffle_spark.errors import UserFunctionError
from riffle_spark.garbage import collect_garbage_rarely
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.blocks.failed_keys import FailedKeys, Failure
from riffle_spark.process.processors.processor import InputByKey, Key, split_into_windows
from riffle_spark.process.types.conform import user_error
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.compat import error_of_class
from riffle_spark.spark.processors import pandas_form, pandas_output
from riffle_spark.spark.processors.group_state import GroupStates, StateColumns
from riffle_spark.spark.processors.pandas_output import PandasOptions


@dataclass(frozen=True, slots=True)
class GroupedFrames:
    """A ``BlockComputation`` that calls a function for ``applyInPandasWithState``.

    ``state`` has the fields of the state. ``timeout`` is Spark's name of the timeout. ``pandas`` holds Spark's settings
    for conversions to and from pandas.
    """

    spec: GroupsSpec
    function: Callable[..., object]
    state: pa.Schema
    timeout: str
    pandas: Mapping[str, object]

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - the specification has them
        """Declare the columns of the state and the timeout."""
        stored = self._stored_columns()
        needed = tuple(dict.fromkeys(column for _, column in self.spec.visible_columns if column not in key.names))
        return Declared(
            stored.schema, self.spec.output, needed, per_key_group=False, time_mode=stored.time_mode, due=stored.due
        )

    def __call__(self, batch: Batch) -> Update:
        """Call the function for each key of the batch with its rows. Raise ``UserFunctionError`` if it fails."""
        rows = self._visible_rows(batch.rows)
        grouped = InputByKey.of(batch.keys, rows, batch.codes)
        frames = FramesByKey(grouped, self._options())
        return self._call(batch, frames, _changed_update, has_timed_out=False)

    def expire_keys(self, batch: Batch) -> Update:
        """Call the function for each key of the batch, which has timed out, with an empty frame.

        Return the update for its output and the new states. Raise ``UserFunctionError`` if the function fails.
        """
        frames = ([pd.DataFrame(columns=pd.Index(self._names))] for _ in range(batch.keys.num_rows))
        return self._call(batch, frames, _remaining_update, has_timed_out=True)

    def _call(
        self,
        batch: Batch,
        frames: Iterable[Iterable[pd.DataFrame]],
        make_update: Callable[[pa.Table, GroupStates], Update],
        *,
        has_timed_out: bool,
    ) -> Update:
        """Call the function for each key with its frames. Return the update for its output and the new states.

        ``make_update`` makes the update. If the batch collects errors, the function is still called for keys after a
        failing key, and ``FailedKeys`` is raised at the end.
        """
        options = self._options()
        has_watermark = self.spec.event_time is not None
        states = GroupStates(self._stored_columns(), batch, has_timed_out=has_timed_out, has_watermark=has_watermark)
        output = pandas_output.PandasOutput(self.spec.output, options)
        key: Key | None = None
        failures = dict[int, Failure]()
        first_error: UserFunctionError | None = None

        def raised(error: Exception) -> UserFunctionError:
            step = "converting its output" if key is None else f"key {key!r}"
            return first_error or user_error("function", error, step, f"store {batch.store!r}")

        try:
            with collect_garbage_rarely():
                calls = zip(_keys(batch.keys, options.timezone), frames, states, strict=True)
                for index, (key, key_frames, state) in enumerate(calls):
                    try:
                        for frame in _iterable(self.function(key, key_frames, state)):
                            if len(_check_frame(frame, len(self.spec.output))):
                                output.add(frame)
                        states.take(index, state)
                    except Exception as error:
                        if batch.collects is None or not batch.collects(error):
                            raise
                        failures[index] = Failure.of(error)
                        first_error = raised(error)
                key = None
                if first_error is None:
                    return make_update(output.table(), states)
        except Exception as error:
            if batch.collects is None or not batch.collects(error):
                raise raised(error) from error
            raise FailedKeys(raised(error), failures) from error
        raise FailedKeys(first_error, failures)

    def _stored_columns(self) -> StateColumns:
        """Return the columns that are stored per key."""
        return StateColumns.of(self.spec.keys.names, self.state, self.timeout)

    def _options(self) -> PandasOptions:
        """Return Spark's settings for conversions to and from pandas."""
        return PandasOptions(**self.pandas)  # type: ignore[arg-type] # the keys are the names of its fields

    @property
    def _names(self) -> list[str]:
        """Return the names of the columns that the function sees."""
        return [name for name, _ in self.spec.visible_columns]

    def _visible_rows(self, rows: pa.Table) -> pa.Table:
        """Return the columns that the function sees, under its names. Two may have the same name."""
        return pa.Table.from_arrays([rows.column(column) for _, column in self.spec.visible_columns], names=self._names)


def _changed_update(output: pa.Table, states: GroupStates) -> Update:
    """Return the update for keys with rows: changed states and deleted states."""
    changed, table = states.changed()
    return Update(output, changed, table, states.deleted())


def _remaining_update(output: pa.Table, states: GroupStates) -> Update:
    """Return the update for keys that have timed out: the states that remain. All other states are deleted."""
    remaining, table = states.remaining()
    return Update(output, remaining, table, remaining[:0])


class FramesByKey:
    """Iterates over the rows of each key as frames of at most ``rows_max`` rows."""

    def __init__(self, grouped: InputByKey, options: pandas_form.PandasOptions) -> None:
        """Create the frames of rows that are grouped by key."""
        self._rows = grouped.rows
        self._positions = grouped.positions
        self._timezone = options.timezone
        self._rows_max = options.rows_max if options.rows_max > 0 else pandas_output.NO_LIMIT

    def __iter__(self) -> Iterator[Iterator[pd.DataFrame]]:
        """Yield the frames of each key. They are made when they are read."""
        positions = self._positions
        for first, end in split_into_windows(positions, self._rows_max):
            start = positions[first]
            stop = positions[end]
            if stop - start > self._rows_max:
                yield self._pieces(start, stop)
                continue
            relative = [position - start for position in positions[first : end + 1]]
            yield from self._slices(self._rows.slice(start, stop - start), relative)

    def _pieces(self, start: int, stop: int) -> Iterator[pd.DataFrame]:
        """Yield the rows ``start`` to ``stop`` of one key as frames of at most ``rows_max`` rows."""
        for first in range(start, stop, self._rows_max):
            yield self._frame(self._rows.slice(first, min(self._rows_max, stop - first)))

    def _slices(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[pd.DataFrame]]:
        """Yield the frames of keys as slices of a single frame. Keys with visible nulls get frames of their own."""
        filled = _fill_visible_nulls(rows)
        slices = pandas_form.Slices(self._frame(filled))
        has_nulls = _have_visible_nulls(rows, positions) if filled is not rows else ()
        for index, (start, stop) in enumerate(pairwise(positions)):
            if has_nulls and has_nulls[index]:
                yield iter((self._frame(rows.slice(start, stop - start)),))
            else:
                yield iter((slices[start, stop],))

    def _frame(self, rows: pa.Table) -> pd.DataFrame:
        """Return rows as the frame that Spark would pass."""
        named = zip(rows.column_names, rows.columns, strict=True)
        series = [pandas_form.series_of(name, column, self._timezone) for name, column in named]
        frame = pd.DataFrame(dict(enumerate(series)), index=pd.RangeIndex(rows.num_rows))
        frame.columns = pd.Index(rows.column_names)  # Two may have the same name.
        return frame


def _has_visible_nulls(column: pa.ChunkedArray) -> bool:
    """Return whether nulls change how pandas represents the other values of a column."""
    return bool(column.null_count) and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))


def _fill_visible_nulls(rows: pa.Table) -> pa.Table:
    """Return rows with zeros in place of visible nulls, or the same table if there are none."""
    for index, column in enumerate(rows.columns):
        if _has_visible_nulls(column):
            filled = column.fill_null(pa.scalar(0).cast(column.type))
            rows = rows.set_column(index, rows.field(index), filled)
    return rows


def _have_visible_nulls(rows: pa.Table, positions: Sequence[int]) -> list[bool]:
    """Return for each key whether its rows have nulls that change how pandas represents other values.

    ``positions`` has the first row of each key, and the end.
    """
    counts = np.zeros(rows.num_rows + 1, np.int64)
    for column in rows.columns:
        if _has_visible_nulls(column):
            counts[1:] += np.cumsum(column.is_null().to_numpy())
    has_nulls: list[bool] = (np.diff(counts[np.array(positions)]) > 0).tolist()
    return has_nulls


def _keys(keys: pa.Table, timezone: str) -> Iterator[Key]:
    """Yield each key as a tuple of pandas scalars."""
    named = zip(keys.column_names, keys.columns, strict=True)
    return zip(*(_scalars(name, column, timezone) for name, column in named), strict=True)


def _scalars(name: str, column: pa.ChunkedArray, timezone: str) -> list[Any]:
    """Return the values of a key column as pandas scalars."""
    filled = column.fill_null(pa.scalar(0).cast(column.type)) if _has_visible_nulls(column) else column
    series = pandas_form.series_of(name, filled, timezone)
    values = list(series.to_numpy()) if series.dtype.kind in "iufb" else list(series)
    if filled is not column:
        null = None if pa.types.is_boolean(column.type) else np.float64("nan")
        for index in np.flatnonzero(column.is_null().to_numpy()).tolist():
            values[index] = null
    return values


def _iterable(returned: object) -> Iterable[object]:
    """Return an iterator over what a function returned. Raise PySpark's error if it is not iterable, or is a frame."""
    if isinstance(returned, pd.DataFrame):
        raise _type_error("iterable of pandas.DataFrame", returned)
    try:
        return iter(returned)  # type: ignore[call-overload, no-any-return] # a TypeError is handled
    except TypeError:
        raise _type_error("iterable", returned) from None


def _check_frame(frame: object, columns: int) -> pd.DataFrame:
    """Return a frame of the function's output. Raise PySpark's error for another type or number of ``columns``."""
    if not isinstance(frame, pd.DataFrame):
        raise _type_error("iterator of pandas.DataFrame", frame, "iterator of ")
    if frame.shape[1] != columns and not (frame.shape[1] == 0 and frame.empty):
        parameters = {"expected": str(columns), "actual": str(frame.shape[1])}
        raise error_of_class(PySparkRuntimeError, "RESULT_COLUMN_SCHEMA_MISMATCH", parameters)
    return frame


def _type_error(expected: str, value: object, prefix: str = "") -> PySparkTypeError:
    """Return PySpark's error for a function that returned ``value`` instead of the ``expected`` type."""
    parameters = {"expected": expected, "actual": f"{prefix}{type(value).__name__}"}
    return error_of_class(PySparkTypeError, "UDF_RETURN_TYPE", parameters)
