"""One slot's processor over its key-groups in a batch.

The order of calls is Spark's, with key-groups in place of partitions:

1. The processor is opened.
2. For each key of a key-group: its initial states, then its rows. The output of each call is read to its end before
   the next call.
3. The due timers of the key-group, in order of time. Each is deleted after its call.
4. After the last key-group the processor is closed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from riffle_spark.batch_times import Times
from riffle_spark.errors import RiffleError, UserFunctionError
from riffle_spark.process.blocks.block import NO_STATE_ROWS, Computation, StateRows
from riffle_spark.process.blocks.failed_keys import Collects, FailedKeys, Failure
from riffle_spark.process.processors.cells import DeclaredVariable
from riffle_spark.process.processors.processor import Form, InputByKey, Key, Processor
from riffle_spark.process.processors.session import Session
from riffle_spark.process.types.conform import user_error
from riffle_spark.process.types.fields import NotText
from riffle_spark.state.copies.reading import CopyRuns
from riffle_spark.state.schemas.variables import VariableColumns

_Result = TypeVar("_Result")
_OWN_MODULES: Final = "riffle_spark."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a key-group: its part of the delta, its next due time, fired timers, expired elements and the
    number of changed elements.
    """

    changes: pa.Table
    timer_ms: int | None
    timers_fired: int
    expired: int
    rows: StateRows = NO_STATE_ROWS


class Processing:
    """Runs a user's processor over the input of one slot. ``where`` is the place in its errors.

    If ``collects`` accepts an error of a key, processing continues with the other keys. Then ``output`` raises
    ``FailedKeys``, and no other result counts.
    """

    def __init__(
        self,
        schema: VariableColumns,
        declared: Sequence[DeclaredVariable],
        processor: Processor,
        form: Form,
        times: Times,
        *,
        where: str = "",
    ) -> None:
        """Prepare to call a processor that declared these variables. ``form`` converts its input and output."""
        self._schema = schema
        self._declared = declared
        self._processor = processor
        self._form = form
        self._times = times
        self._where = where
        self.collects: Collects | None = None
        self._failures: dict[int, Failure] = {}
        self._first_error: RiffleError | None = None
        self._next_key = 0

    def begin(self, grouped: InputByKey) -> None:
        """Start the processor on this input."""
        self._call(self._processor.begin, "init")
        self._grouped = grouped
        self._keys = self._call_for_all_keys(lambda: list(self._form.keys(grouped.keys)), "converting the keys")
        self._rows = self._form.rows(grouped.rows, grouped.positions)
        states = grouped.states
        self._states = None if states is None else self._form.states(states, grouped.state_positions)

    def process_key_group(self, count: int, copy: CopyRuns = CopyRuns()) -> Outcome:
        """Process the next ``count`` keys of the input, all of one key-group, and the key-group's due timers. ``copy``
        is its stored state.

        Raises ``UserFunctionError`` if the processor raises.
        """
        start = self._next_key
        self._next_key += count
        keys = self._grouped.keys.slice(start, count)
        session = Session(self._schema, self._declared, copy, keys, self._times.now_ms)
        self._processor.set_session(session)
        self._processor.set_watermark(self._times.watermark_ms)
        try:
            for number in range(count):
                session.select_key(number)
                self._process_key(start + number)
        except RiffleError:
            raise
        except Exception as error:  # For example a time that pandas cannot hold, or a string that is not UTF-8.
            if not isinstance(error, NotText) and (self.collects is None or not self.collects(error)):
                raise
            raised = user_error("processor", error, "converting the rows", self._where)
            raise (FailedKeys(raised, self._failures) if self.collects else raised) from error
        if self._first_error is not None:
            return Outcome(self._schema.part_schema(delta=True).empty_table(), None, 0, 0)
        fired = sum(
            self._fire_timers(session, start, until_ms, watermark) for until_ms, watermark in self._times.passes
        )
        expired = session.expire() if self._times.mode == "ProcessingTime" else 0
        changes = self._call_for_all_keys(session.changes, "converting its state")
        return Outcome(changes, session.next_due_ms(), fired, expired, session.count_rows())

    def output(self) -> pa.Table:
        """Return the output since the last call. Raises ``FailedKeys`` if keys failed."""
        if self._first_error is not None:
            raise FailedKeys(self._first_error, self._failures)
        return self._call_for_all_keys(self._form.output, "converting its output")

    def end(self) -> None:
        """Finish the processor after the last key-group."""
        assert self._next_key == self._grouped.keys.num_rows, "every key belongs to a key-group"
        self._call(self._processor.end, "close")

    def _process_key(self, index: int) -> None:
        """Pass the rows and initial states of the key with this index to the processor, and collect its output."""
        key = self._keys[index]
        rows = next(self._rows)
        positions = self._grouped.positions
        try:
            if self._states is not None:
                self._process_initial_states(key, next(self._states))
            if positions[index] < positions[index + 1]:
                self._form.collect(self._processor.rows(key, rows))
        except Exception as error:
            raised = self._as_riffle_error(error, f"key {key!r}")
            if raised is error:
                raise
            if self.collects is None or not self.collects(error):
                raise raised from error
            self._failures[index] = Failure.of(error)
            self._first_error = self._first_error or raised

    def _process_initial_states(self, key: Key, states: Iterator[object]) -> None:
        """Pass a key's initial states to the processor.

        They arrive only once, so their errors cannot become dead letters.
        """
        try:
            for state in states:
                self._processor.initial(key, state)
        except Exception as error:
            raise self._as_riffle_error(error, f"the initial state of key {key!r}") from error

    def _fire_timers(self, session: Session, start: int, until_ms: int, watermark_ms: int | None) -> int:
        """Call the processor for each timer that is due, with this watermark, and delete the timers.

        Return their number. ``start`` is the index of the session's first key.
        """
        due = session.fire(until_ms)
        if not due:
            return 0
        input_keys = self._keys[start : self._next_key]
        keys = [*input_keys, *self._form.keys(session.keys(len(input_keys)))]
        self._processor.set_watermark(watermark_ms)
        for due_ms, number in due:
            session.select_key(number)
            try:
                self._form.collect(self._processor.expired(keys[number], due_ms))
            except Exception as error:
                raise self._as_riffle_error(error, f"the timer of key {keys[number]!r} at {due_ms}") from error
            session.timers.delete(due_ms)
        return len(due)

    def _call(self, call: Callable[[], _Result], step: str) -> _Result:
        """Return the result of ``call``.

        Raises the processor's error as an error of riffle_spark, in which ``step`` names the call.
        """
        try:
            return call()
        except Exception as error:
            raise self._as_riffle_error(error, step) from error

    def _call_for_all_keys(self, call: Callable[[], _Result], step: str) -> _Result:
        """Return the result of a call that concerns all keys, so its error belongs to no single key."""
        try:
            return self._call(call, step)
        except UserFunctionError as error:
            if self.collects is not None:
                raise FailedKeys(error, {}) from error.__cause__
            raise

    def _as_riffle_error(self, error: Exception, step: str) -> RiffleError:
        """Return riffle_spark's own errors unchanged, and all others (also a user's subclass) as ``UserFunctionError``.
        ``step`` names the call.
        """
        if isinstance(error, RiffleError) and type(error).__module__.startswith(_OWN_MODULES):
            return error
        return user_error("processor", error, step, self._where)


@runtime_checkable
class ProcessorComputation(Computation, Protocol):
    """A computation by a processor. It declares variables."""

    def make_processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """Return an object that runs the processor on one slot of a batch. ``where`` is the place in its errors."""
        ...
