"""The state of groups as ``applyInPandasWithState`` has it: PySpark's own ``GroupState`` of each key, made of columns
and read back into them. Knows PySpark's class and when Spark writes a key's state. Does not know frames or functions.

A key's columns are the fields of its state and, where there are time-outs, when it is due and whether it has a state at
all: a function may leave a time-out and no state. Spark calls a key whose time-out is *before* the time it is, and a
due column says when it is reached: one millisecond later.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from riffle_spark.batch_times import TimeMode
from riffle_spark.process.blocks.block import Batch, IndexArray
from riffle_spark.process.types.fields import Fields, Values
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.process.types.stage_specs import free_name
from riffle_spark.spark.processors.row_form import row_maker
from riffle_spark.spark.processors.spark_errors import misfit
from riffle_spark.state.formats.arrow_casts import cast_table

__all__ = ["TIME_OUTS", "GroupStates", "StateColumns"]

TIME_OUTS: dict[str, TimeMode] = {
    "NoTimeout": "None",
    "ProcessingTimeTimeout": "ProcessingTime",
    "EventTimeTimeout": "EventTime",
}
"""What time-outs go by, by Spark's names of them."""
_NEVER = GroupState.NO_TIMESTAMP
_AFTER_MS = 1
"""How long after its time-out a key is due."""


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns that are kept of a key: those of time-outs, if there are any, and the fields of its state.
    ``timeout`` is Spark's name of what they go by.
    """

    extra: tuple[pa.Field, ...]
    state: pa.Schema
    timeout: str

    @staticmethod
    def of(key: Iterable[str], state: pa.Schema, timeout: str) -> "StateColumns":
        """Return the columns of a state's fields; those that are called as another is get a number behind their names.

        The names of what goes before the state's fields do not change with these.
        """
        taken, extra = list(key), list[pa.Field]()
        for name, kind in (("due_ms", pa.int64()), ("has_state", pa.bool_())) if timeout != "NoTimeout" else ():
            extra.append(pa.field(free_name(name, taken), kind))
            taken.append(extra[-1].name)
        fields = list[pa.Field]()
        for field in state:
            fields.append(field.with_name(free_name(field.name, taken)).with_nullable(True))
            taken.append(fields[-1].name)
        return StateColumns(tuple(extra), pa.schema(fields), timeout)

    @property
    def schema(self) -> pa.Schema:
        """All of them."""
        return pa.schema([*self.extra, *self.state])

    @property
    def due(self) -> str | None:
        """The column that says when a key is due."""
        return self.extra[0].name if self.extra else None

    @property
    def time_mode(self) -> TimeMode:
        """What time-outs go by."""
        return TIME_OUTS[self.timeout]

    def values(self, batch: Batch) -> Iterator[Values | None]:
        """Yield the state of each key of a batch as a user sees it."""
        has_state = batch.has_state.tolist()
        if self.extra:
            told = batch.state.column(self.extra[1].name).to_pylist()  # of before there were time-outs: null
            has_state = [found and one is not False for found, one in zip(has_state, told, strict=True)]
        names = self.state.names
        every: Iterator[Values] = Fields(self.state, row_maker).tuples(batch.state.select(names)) if names else iter(())
        for there in has_state:
            values = next(every, ())
            yield values if there else None

    def table(self, states: Sequence[tuple[Values | None, int | None]]) -> pa.Table:
        """Return what is kept of states and due times, row for row."""
        nothing = (None,) * len(self.state)
        fields = Fields(self.state, row_maker).columns([nothing if one is None else one for one, _ in states])
        if not self.extra:
            return pa.table(fields, schema=self.schema)
        extra = [[due_ms for _, due_ms in states], [one is not None for one, _ in states]]
        columns = [pa.array(values, field.type) for values, field in zip(extra, self.extra, strict=True)]
        return pa.table([*columns, *fields], schema=self.schema)


class GroupStates:
    """The states of a batch's keys: given out one by one, and taken back when the function is through with one."""

    def __init__(self, columns: StateColumns, batch: Batch, *, has_timed_out: bool, has_watermark: bool) -> None:
        self._columns = columns
        self._batch = batch
        self._values = columns.values(batch)
        self._fields = Fields(columns.state, row_maker)
        self._made = partial(
            GroupState, batchProcessingTimeMs=batch.time_ms, eventTimeWatermarkMs=batch.watermark_ms or 0,
            timeoutConf=columns.timeout, hasTimedOut=has_timed_out, watermarkPresent=has_watermark, updated=False,
            removed=False, timeoutTimestamp=_NEVER, keyAsUnsafe=b"", valueSchema=None,  # type: ignore[arg-type] # unread
        )  # fmt: skip
        self._kept: list[tuple[Values | None, int | None]] = []
        self._changed: list[int] = []
        self._deleted: list[int] = []
        self._same: list[int] = []

    def __iter__(self) -> Iterator[GroupState]:
        """Yield the state of each key."""
        for values in self._values:
            yield self._made(optionalValue=values, defined=values is not None)  # type: ignore[arg-type] # as a Row is

    def take(self, at: int, state: GroupState) -> None:
        """Take back the state of the key at a place, and do with it what Spark does.

        A time-out is told with each call, or there is none: but where a function changed nothing at all, Spark writes
        nothing, and the time-out of before holds on. Raises PySpark's error for a state that does not fit its fields.
        """
        timeout_ms = int(state._timeout_timestamp)
        if state._removed and timeout_ms == _NEVER:
            self._deleted.append(at)
        elif state._updated or state._removed or timeout_ms != _NEVER:
            self._changed.append(at)
            value = self._taken(state) if state.exists else None
            self._kept.append((value, None if timeout_ms == _NEVER else timeout_ms + _AFTER_MS))
        else:
            self._same.append(at)

    def _taken(self, state: GroupState) -> Values:
        try:
            return self._fields.normalize(tuple(state.get))
        except Misfit as wrong:
            raise misfit("updating the state of a group", wrong) from None

    def changed(self) -> tuple[IndexArray, pa.Table]:
        """Return which keys have another state now, and these states."""
        return np.array(self._changed, np.int64), self._columns.table(self._kept)

    def deleted(self) -> IndexArray:
        """Return which keys have none any more, and had one."""
        gone = np.array(self._deleted, np.int64)
        return gone[self._batch.has_state[gone]]

    def staying(self) -> tuple[IndexArray, pa.Table]:
        """Return which keys have a state now, be it another one or the same, and these states."""
        changed, states = self.changed()
        same = np.array(self._same, np.int64)
        old = self._batch.state.select(self._columns.schema.names).take(pa.array(same))
        return np.concatenate([changed, same]), pa.concat_tables([states, cast_table(old, states.schema)])
