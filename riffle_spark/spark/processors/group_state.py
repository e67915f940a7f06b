"""Convert the state of groups between columns and PySpark's ``GroupState``, for ``applyInPandasWithState``.

The columns of a key are the fields of its state and, with timeouts, its due time and whether it has a state: a function
may leave a timeout without a state. Spark calls a key if its timeout is *before* the current time. A due column is
reached *at* its time. So the due time is a millisecond later than the timeout.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from riffle_spark.batch_times import TimeMode
from riffle_spark.process.blocks.block import Batch, IndexArray
from riffle_spark.process.types.fields import Fields, Values
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.process.types.stage_specs import make_unique_name
from riffle_spark.spark.processors.row_form import row_maker
from riffle_spark.spark.processors.spark_errors import misfit
from riffle_spark.state.formats.arrow_casts import cast_table

TIME_OUTS: dict[str, TimeMode] = {
    "NoTimeout": "None",
    "ProcessingTimeTimeout": "ProcessingTime",
    "EventTimeTimeout": "EventTime",
}
"""The time mode of each timeout, by Spark's names."""
_NEVER = GroupState.NO_TIMESTAMP
_AFTER_MS = 1
"""The delay from a key's timeout to its due time."""


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The stored columns of a key: the columns of its timeout, if it has one, and the fields of its state.

    ``timeout`` is Spark's name of the timeout.
    """

    timeout_fields: tuple[pa.Field, ...]
    state: pa.Schema
    timeout: str

    @staticmethod
    def of(key: Iterable[str], state: pa.Schema, timeout: str) -> "StateColumns":
        """Return the columns for a group state with these fields. ``key`` are the names of the key columns.

        A name that is already used gets a number appended. The names of the timeout columns do not depend on the fields
        of the state.
        """
        names = list(key)
        timeout_fields = list[pa.Field]()
        for name, kind in (("due_ms", pa.int64()), ("has_state", pa.bool_())) if timeout != "NoTimeout" else ():
            timeout_fields.append(pa.field(make_unique_name(name, names), kind))
            names.append(timeout_fields[-1].name)
        fields = list[pa.Field]()
        for field in state:
            fields.append(field.with_name(make_unique_name(field.name, names)).with_nullable(True))
            names.append(fields[-1].name)
        return StateColumns(tuple(timeout_fields), pa.schema(fields), timeout)

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of all stored columns."""
        return pa.schema([*self.timeout_fields, *self.state])

    @property
    def due(self) -> str | None:
        """Return the name of the column with the due time, or ``None`` without timeouts."""
        return self.timeout_fields[0].name if self.timeout_fields else None

    @property
    def time_mode(self) -> TimeMode:
        """Return the time mode of the timeout."""
        return TIME_OUTS[self.timeout]

    def values(self, batch: Batch) -> Iterator[Values | None]:
        """Yield the state of each key of a batch as a tuple, or ``None`` for a key without a state."""
        has_state = batch.has_state.tolist()
        if self.timeout_fields:
            flags = batch.state.column(self.timeout_fields[1].name).to_pylist()  # null if stored without timeouts
            has_state = [exists and flag is not False for exists, flag in zip(has_state, flags, strict=True)]
        names = self.state.names
        rows: Iterator[Values] = Fields(self.state, row_maker).tuples(batch.state.select(names)) if names else iter(())
        for is_present in has_state:
            values = next(rows, ())
            yield values if is_present else None

    def table(self, states: Sequence[tuple[Values | None, int | None]]) -> pa.Table:
        """Return the stored columns for these (state, due time in ms) pairs, a row for each.

        The state or the time may be ``None``.
        """
        nulls = (None,) * len(self.state)
        fields = Fields(self.state, row_maker).columns([nulls if values is None else values for values, _ in states])
        if not self.timeout_fields:
            return pa.table(fields, schema=self.schema)
        timeouts = [[due_ms for _, due_ms in states], [values is not None for values, _ in states]]
        columns = [pa.array(values, field.type) for values, field in zip(timeouts, self.timeout_fields, strict=True)]
        return pa.table([*columns, *fields], schema=self.schema)


class GroupStates:
    """The states of a batch's keys, passed to the user's function one by one and read back after each call."""

    def __init__(self, columns: StateColumns, batch: Batch, *, has_timed_out: bool, has_watermark: bool) -> None:
        """Create the states of a batch's keys.

        The flags are those that the user's function reads from a ``GroupState``.
        """
        self._columns = columns
        self._batch = batch
        self._values = columns.values(batch)
        self._fields = Fields(columns.state, row_maker)
        self._make_state = partial(
            GroupState,
            batchProcessingTimeMs=batch.time_ms,
            eventTimeWatermarkMs=batch.watermark_ms or 0,
            timeoutConf=columns.timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=has_watermark,
            updated=False,
            removed=False,
            timeoutTimestamp=_NEVER,
            keyAsUnsafe=b"",
            valueSchema=None,  # type: ignore[arg-type] # never read
        )
        self._changed_states: list[tuple[Values | None, int | None]] = []
        self._changed: list[int] = []
        self._deleted: list[int] = []
        self._unchanged: list[int] = []

    def __iter__(self) -> Iterator[GroupState]:
        """Yield the ``GroupState`` of each key, in the order of the batch's keys."""
        for values in self._values:
            yield self._make_state(optionalValue=values, defined=values is not None)  # type: ignore[arg-type] # a Row is a tuple

    def take(self, index: int, state: GroupState) -> None:
        """Read back the state of the key at ``index`` after the user's function was called with it.

        A call that sets no timeout removes it. If the function changed nothing at all, Spark writes nothing, so the
        earlier timeout remains. Raise PySpark's error for a state that does not fit its fields.
        """
        timeout_ms = int(state._timeout_timestamp)
        if state._removed and timeout_ms == _NEVER:
            self._deleted.append(index)
        elif state._updated or state._removed or timeout_ms != _NEVER:
            self._changed.append(index)
            value = self._state_values(state) if state.exists else None
            self._changed_states.append((value, None if timeout_ms == _NEVER else timeout_ms + _AFTER_MS))
        else:
            self._unchanged.append(index)

    def _state_values(self, state: GroupState) -> Values:
        """Return the values of a state in its fields' types. Raise PySpark's error if one does not fit."""
        values = tuple(state.get)
        try:
            return self._fields.normalize(values)
        except Misfit:
            filled = _nan_as_null(values, self._columns.state)
        try:
            return self._fields.normalize(filled)
        except Misfit as wrong:
            raise misfit("updating the state of a group", wrong) from None

    def changed(self) -> tuple[IndexArray, pa.Table]:
        """Return the indexes of the keys whose state or timeout changed, and their stored columns."""
        return np.array(self._changed, np.int64), self._columns.table(self._changed_states)

    def deleted(self) -> IndexArray:
        """Return the indexes of the keys whose stored state is deleted."""
        deleted = np.array(self._deleted, np.int64)
        return deleted[self._batch.has_state[deleted]]

    def remaining(self) -> tuple[IndexArray, pa.Table]:
        """Return the indexes of the keys that still have a state after the calls, and their stored columns."""
        changed, states = self.changed()
        unchanged = np.array(self._unchanged, np.int64)
        old = self._batch.state.select(self._columns.schema.names).take(pa.array(unchanged))
        return np.concatenate([changed, unchanged]), pa.concat_tables([states, cast_table(old, states.schema)])


def _nan_as_null(values: Values, fields: pa.Schema) -> Values:
    """Return a state's values with null for NaN in fields that cannot hold it, as Spark stores it.

    pandas has NaN for the null of an integer or boolean column, for example in the key of a group. Texts are left out:
    Spark stores the text "NaN".
    """
    if len(values) != len(fields):
        return values
    can_hold_nan = [pa.types.is_floating(kind) or pa.types.is_string(kind) for kind in fields.types]
    return tuple(
        None if isinstance(value, float) and isnan(value) and not holds else value
        for value, holds in zip(values, can_hold_nan, strict=True)
    )
