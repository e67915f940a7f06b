"""``applyInPandasWithState`` on a slot: a user's function gets the rows of each key as DataFrames, and its state. Knows
frames, and what Spark asks of a function. Does not know how states are kept, or how late rows are told.

One table is read, the function is called key by key, and one table is written. Frames are slices of one frame: to make
each of a table of its own would take ten times as long. Spark makes each of its key's rows alone, which shows in whole
numbers and truth values where there are nulls: those keys get frames of their own.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.blocks.failed_keys import FailedKeys, Failure
from riffle_spark.process.processors.processing import rare_garbage_collection
from riffle_spark.process.processors.processor import InputByKey, Key, windows
from riffle_spark.process.types.fields import NotText
from riffle_spark.process.types.missing_modules import failure_remedy
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.processors import pandas_form, pandas_output
from riffle_spark.spark.processors.group_state import GroupStates, StateColumns

__all__ = ["GroupedFrames"]

_NO_LIMIT: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class GroupedFrames:
    """A ``BlockComputation`` of a function for ``applyInPandasWithState``, with its state's fields and Spark's name of
    what its time-outs go by. ``pandas`` is what Spark's configuration says of conversions.
    """

    spec: GroupsSpec
    function: Callable[..., object]
    state: pa.Schema
    timeout: str
    pandas: Mapping[str, object]

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - the specification has them
        """Declare the columns of the state's fields and of time-outs."""
        kept = self._kept()
        needed = tuple(dict.fromkeys(column for _, column in self.spec.visible_columns if column not in key.names))
        return Declared(
            kept.schema, self.spec.output, needed, per_key_group=False, time_mode=kept.time_mode, due=kept.due
        )

    def __call__(self, batch: Batch) -> Update:
        """Call the function for each key with its rows. Raises ``UserFunctionError`` for what it does wrong."""
        rows = self._shown(batch.rows)
        grouped = InputByKey.of(batch.keys, rows, batch.codes)
        frames = FramesByKey(grouped, self._options())
        return self._called(batch, frames, _changes, has_timed_out=False)

    def expired(self, batch: Batch) -> Update:
        """Call the function for each key that has timed out, with one frame without rows."""
        frames = ([_nothing(self._names)] for _ in range(batch.keys.num_rows))
        return self._called(batch, frames, _stays, has_timed_out=True)

    def _called(
        self, batch: Batch, frames: Iterable[Iterable[pd.DataFrame]], update: Callable[[pa.Table, GroupStates], Update],
        *, has_timed_out: bool,
    ) -> Update:  # fmt: skip
        """Call the function for each key, and return what ``update`` makes of its output and of states as they are
        then. If the batch collects, a key that fails does not keep others from their turn.
        """
        options, function = self._options(), self.function
        states = GroupStates(
            self._kept(), batch, has_timed_out=has_timed_out, has_watermark=self.spec.event_time is not None
        )
        taken = pandas_output.PandasOutput(
            self.spec.output, timezone=options.timezone, by_name=options.by_name, safe=options.safe,
            int_to_decimal=options.int_to_decimal,
        )  # fmt: skip
        key: Key | None = None
        failed, first = dict[int, Failure](), None
        try:
            with rare_garbage_collection():
                every = zip(_keys(batch.keys, options.timezone), frames, states, strict=True)
                for at, (key, given, state) in enumerate(every):
                    try:
                        for frame in _iterable(function(key, given, state)):
                            if len(_checked(frame, len(self.spec.output))):
                                taken.add(frame)
                        states.take(at, state)
                    except Exception as error:
                        if batch.collects is None or not batch.collects(error):
                            raise
                        failed[at] = Failure.of(error)
                        first = first or _raised(error, key, batch.store)
                key = None
                if first is None:
                    return update(taken.table(), states)
        except Exception as error:
            raised = first or _raised(error, key, batch.store)
            if batch.collects is None or not batch.collects(error):
                raise raised from error
            raise FailedKeys(raised, failed) from error
        raise FailedKeys(first, failed)

    def _kept(self) -> StateColumns:
        return StateColumns.of(self.spec.keys.names, self.state, self.timeout)

    def _options(self) -> pandas_form.PandasOptions:
        return pandas_form.PandasOptions(**self.pandas)  # type: ignore[arg-type] # their names are those of the settings

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.spec.visible_columns]

    def _shown(self, rows: pa.Table) -> pa.Table:
        """Return the columns that the function sees, by the names that it has for them: one may be there twice."""
        return pa.Table.from_arrays([rows.column(column) for _, column in self.spec.visible_columns], names=self._names)


def _changes(output: pa.Table, states: GroupStates) -> Update:
    """Return what rows did to states."""
    changed, kept = states.changed()
    return Update(output, changed, kept, states.deleted())


def _stays(output: pa.Table, states: GroupStates) -> Update:
    """Return what is left of states that have timed out."""
    staying, kept = states.staying()
    return Update(output, staying, kept, staying[:0])


class FramesByKey:
    """Goes through the rows of each key as frames, of so many rows at most: one for most keys."""

    def __init__(self, grouped: InputByKey, options: pandas_form.PandasOptions) -> None:
        self._rows, self._positions = grouped.rows, grouped.positions
        self._timezone = options.timezone
        self._rows_max = options.rows_max if options.rows_max > 0 else _NO_LIMIT

    def __iter__(self) -> Iterator[Iterator[pd.DataFrame]]:
        """Yield the frames of each key, made when they are asked for."""
        positions = self._positions
        for first, end in windows(positions, self._rows_max):
            start, stop = positions[first], positions[end]
            if stop - start > self._rows_max:
                yield self._pieces(start, stop)
                continue
            within = [at - start for at in positions[first : end + 1]]
            yield from self._slices(self._rows.slice(start, stop - start), within)

    def _pieces(self, start: int, stop: int) -> Iterator[pd.DataFrame]:
        for at in range(start, stop, self._rows_max):
            yield self._frame(self._rows.slice(at, min(self._rows_max, stop - at)))

    def _slices(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[pd.DataFrame]]:
        """Yield the frames of keys that have few rows: slices of one frame, but where nulls would show in it."""
        rows, nulls = _without_nulls(rows), rows
        slices = pandas_form.Slices(self._frame(rows))
        own = _are_there(nulls, positions) if nulls is not rows else ()
        for at in range(len(positions) - 1):
            start, stop = positions[at], positions[at + 1]
            if own and own[at]:
                yield iter((self._frame(nulls.slice(start, stop - start)),))
            else:
                yield iter((slices[start, stop],))

    def _frame(self, rows: pa.Table) -> pd.DataFrame:
        named = zip(rows.column_names, rows.columns, strict=True)
        return _frame_of([pandas_form.series_of(name, column, self._timezone) for name, column in named], rows)


def _frame_of(series: Sequence[pd.Series], rows: pa.Table) -> pd.DataFrame:
    frame = pd.DataFrame(dict(enumerate(series)), index=pd.RangeIndex(rows.num_rows))
    frame.columns = pd.Index(rows.column_names)
    return frame


def _nothing(names: Sequence[str]) -> pd.DataFrame:
    """Return a frame without rows, as Spark gives one for a time-out."""
    return pd.DataFrame(columns=pd.Index(names))


def _shows_nulls(column: pa.ChunkedArray) -> bool:
    """Tell whether a null changes what pandas makes of all values beside it."""
    return bool(column.null_count) and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))


def _without_nulls(rows: pa.Table) -> pa.Table:
    """Return rows with some value in place of nulls that would show in others; the same table, if there are none."""
    for at, column in enumerate(rows.columns):
        if _shows_nulls(column):
            filled = column.fill_null(pa.scalar(0).cast(column.type))
            rows = rows.set_column(at, rows.field(at), filled)
    return rows


def _are_there(rows: pa.Table, positions: Sequence[int]) -> list[bool]:
    """Tell of each key whether its rows have nulls that would show."""
    count = np.zeros(rows.num_rows + 1, np.int64)
    for column in rows.columns:
        if _shows_nulls(column):
            count[1:] += np.cumsum(column.is_null().to_numpy())
    told: list[bool] = (np.diff(count[np.array(positions)]) > 0).tolist()
    return told


def _keys(keys: pa.Table, timezone: str) -> Iterator[Key]:
    """Return each key with the scalars that pandas has for its values."""
    named = zip(keys.column_names, keys.columns, strict=True)
    return zip(*(_scalars(name, column, timezone) for name, column in named), strict=True)


def _scalars(name: str, column: pa.ChunkedArray, timezone: str) -> list[Any]:
    filled = column.fill_null(pa.scalar(0).cast(column.type)) if _shows_nulls(column) else column
    series = pandas_form.series_of(name, filled, timezone)
    values = list(series.to_numpy()) if series.dtype.kind in "iufb" else list(series)
    if filled is not column:
        null = None if pa.types.is_boolean(column.type) else np.float64("nan")
        for at in np.flatnonzero(column.is_null().to_numpy()).tolist():
            values[at] = null
    return values


def _iterable(returned: object) -> Iterable[object]:
    """Return what a function returned, if one can go through it. Raises PySpark's error."""
    if isinstance(returned, pd.DataFrame):
        raise _of_type("iterable of pandas.DataFrame", returned)
    try:
        return iter(returned)  # type: ignore[call-overload, no-any-return] # what has no iterator says so
    except TypeError:
        raise _of_type("iterable", returned) from None


def _checked(frame: object, columns: int) -> pd.DataFrame:
    """Return a frame of output. Raises PySpark's error for what is none, and for one of too many columns or too few."""
    if not isinstance(frame, pd.DataFrame):
        raise _of_type("iterator of pandas.DataFrame", frame, "iterator of ")
    if frame.shape[1] != columns and not (frame.shape[1] == 0 and frame.empty):
        told = {"expected": str(columns), "actual": str(frame.shape[1])}
        raise PySparkRuntimeError(errorClass="RESULT_COLUMN_SCHEMA_MISMATCH", messageParameters=told)
    return frame


def _of_type(expected: str, given: object, said: str = "") -> PySparkTypeError:
    told = {"expected": expected, "actual": f"{said}{type(given).__name__}"}
    return PySparkTypeError(errorClass="UDF_RETURN_TYPE", messageParameters=told)


def _raised(error: Exception, key: Key | None, store: str) -> UserFunctionError:
    if isinstance(error, NotText):
        problem = f"The function cannot be given its input: {error}"
        return UserFunctionError(problem, remedy=error.remedy, where=f"store {store!r}", id="RIFFLE-0319")
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    of = "its output" if key is None else f"key {key!r}"
    return UserFunctionError(
        f"The function raised {type(error).__name__}, {of}:\n{told}",
        remedy=failure_remedy(error, "function"),
        where=f"store {store!r}",
        id="RIFFLE-0320",
    )
