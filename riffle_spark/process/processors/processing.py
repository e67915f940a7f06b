"""One slot's processor over its key-groups in one batch. Knows the order of calls. Does not know what a processor is.

The order is Spark's: a processor is begun; then, key-group by key-group, each key's initial states and rows, the
output of each call taken to its end before the next one; then, in order of time, the timers that are due, each deleted
after its call; at last the processor is closed. Spark does so by partition, and here a key-group is one.
"""

import gc
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from riffle_spark.batch_times import Times
from riffle_spark.errors import RiffleError, UserFunctionError
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.blocks.failed_keys import Collects, FailedKeys, Failure
from riffle_spark.process.processors.cells import DeclaredVariable
from riffle_spark.process.processors.processor import Form, InputByKey, Key, Processor
from riffle_spark.process.processors.session import Session
from riffle_spark.process.types.fields import NotText
from riffle_spark.process.types.missing_modules import failure_remedy
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.state.copies.reading import CopyRuns
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["Outcome", "Processing", "ProcessorComputation", "seldom_collected"]

_Result = TypeVar("_Result")
_COLLECTED_EVERY: Final = 10_000
_OLD_EVERY: Final = 100
_OURS: Final = "riffle_spark."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one key-group: its part of the delta, when something is due next, what fired and expired."""

    changes: pa.Table
    timer_ms: int | None
    timers_fired: int
    expired: int


class Processing:
    """Runs a processor over one slot's input. ``where`` is told with what the processor raises. Where
    ``collects`` takes what rows of a key raise, it goes on, for what the others do; then ``output`` raises, and nothing
    else counts.
    """

    def __init__(
        self, schema: VariableColumns, declared: Sequence[DeclaredVariable], processor: Processor, form: Form,
        times: Times, *, where: str = "",
    ) -> None:  # fmt: skip
        self._schema = schema
        self._declared = declared
        self._processor = processor
        self._form = form
        self._times = times
        self._where = where
        self.collects: Collects | None = None
        self._failed: dict[int, Failure] = {}
        self._first: RiffleError | None = None
        self._next = 0

    def begin(self, grouped: InputByKey) -> None:
        """Begin with this input."""
        self._called(self._processor.begin, "init")
        self._grouped = grouped
        self._keys = self._made(lambda: list(self._form.keys(grouped.keys)), "keys that it cannot be given")
        self._rows = self._form.rows(grouped.rows, grouped.positions)
        states = grouped.states
        self._states = None if states is None else self._form.states(states, grouped.state_positions)

    def key_group(self, count: int, held: CopyRuns = CopyRuns()) -> Outcome:
        """Process the next ``count`` keys of the input, all of one key-group, and what is due in it.

        Raises ``UserFunctionError`` with what the processor raised.
        """
        start, end = self._next, self._next + count
        self._next = end
        keys = self._grouped.keys.slice(start, count)
        session = Session(self._schema, self._declared, held, keys, self._times.now_ms)
        self._processor.enter(session)
        self._processor.as_of(self._times.watermark_ms)
        try:
            for number, at in enumerate(range(start, end)):
                session.at(number)
                self._key(at)
        except RiffleError:
            raise
        except Exception as error:  # such as a time that pandas does not have, or text that is not UTF-8
            if not isinstance(error, NotText) and (self.collects is None or not self.collects(error)):
                raise
            problem = self._told(error, "rows that it cannot be given")
            raise (FailedKeys(problem, self._failed) if self.collects else problem) from error
        if self._first is not None:
            return Outcome(self._schema.part_schema(delta=True).empty_table(), None, 0, 0)
        fired = sum(self._fire(session, start, until_ms, watermark) for until_ms, watermark in self._times.passes)
        expired = session.expire() if self._times.mode == "ProcessingTime" else 0
        changes = self._made(session.changes, "what it wrote")
        return Outcome(changes, session.next_due_ms(), fired, expired)

    def output(self) -> pa.Table:
        """Return the output since the last call. Raises ``FailedKeys`` if it collects, and keys failed."""
        if self._first is not None:
            raise FailedKeys(self._first, self._failed)
        return self._made(self._form.output, "its output")

    def end(self) -> None:
        """End after the last key-group."""
        assert self._next == self._grouped.keys.num_rows, "every key belongs to a key-group"
        self._called(self._processor.end, "close")

    def _key(self, at: int) -> None:
        """Call the processor for one key."""
        key, rows, grouped = self._keys[at], next(self._rows), self._grouped
        try:
            if self._states is not None:
                self._initial(key, next(self._states))
            if grouped.positions[at] < grouped.positions[at + 1]:
                self._form.take(self._processor.rows(key, rows))
        except Exception as error:
            raised = self._raised(error, f"key {key!r}")
            if raised is error:
                raise
            if self.collects is None or not self.collects(error):
                raise raised from error
            self._failed[at], self._first = Failure.of(error), self._first or raised

    def _initial(self, key: Key, states: Iterator[object]) -> None:
        """Give a key its initial state, which comes only once: no letter stands for it."""
        try:
            for state in states:
                self._processor.initial(key, state)
        except Exception as error:
            raise self._raised(error, f"the initial state of key {key!r}") from error

    def _fire(self, session: Session, start: int, until_ms: int, watermark_ms: int | None) -> int:
        due = session.fire(until_ms)
        if not due:
            return 0
        given = self._keys[start : self._next]
        keys = [*given, *self._form.keys(session.keys(len(given)))]
        self._processor.as_of(watermark_ms)
        for due_ms, number in due:
            session.at(number)
            try:
                self._form.take(self._processor.expired(keys[number], due_ms))
            except Exception as error:
                raise self._raised(error, f"the timer of key {keys[number]!r} at {due_ms}") from error
            session.timers.delete(due_ms)
        return len(due)

    def _called(self, call: Callable[[], _Result], what: str) -> _Result:
        try:
            return call()
        except Exception as error:
            raise self._raised(error, what) from error

    def _made(self, call: Callable[[], _Result], what: str) -> _Result:
        """Return what is made of what all keys did."""
        try:
            return self._called(call, what)
        except UserFunctionError as error:
            if self.collects is not None:
                raise FailedKeys(error, {}) from error.__cause__
            raise

    def _raised(self, error: Exception, what: str) -> RiffleError:
        """Return what tells that the processor raised; an error of riffle's own as it is, not one a user derived."""
        if isinstance(error, RiffleError) and type(error).__module__.startswith(_OURS):
            return error
        return self._told(error, what)

    def _told(self, error: Exception, what: str) -> UserFunctionError:
        if isinstance(error, NotText):
            problem = f"The processor cannot be given its input: {error}"
            return UserFunctionError(problem, remedy=error.remedy, where=self._where, id="RIFFLE-0192")
        if isinstance(error, Misfit):
            told = str(error)
        else:
            told = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
        return UserFunctionError(
            f"The processor raised {type(error).__name__}, {what}:\n{told}",
            remedy=failure_remedy(error, "processor"),
            where=self._where,
            id="RIFFLE-0193",
        )


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python look for cycles less often while a slot's keys are processed: rows and values are many objects and no
    cycles, and a sixth of the time would go into looking at them. Once for the whole slot: where it ends, Python
    looks at once. What is young is looked at still, or a processor that makes cycles would keep them all.
    """
    before = gc.get_threshold()
    young, old, oldest = before
    gc.set_threshold(max(_COLLECTED_EVERY, young) if young else 0, max(_OLD_EVERY, old), oldest)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@runtime_checkable
class ProcessorComputation(Computation, Protocol):
    """A processor's computation: it declares variables."""

    def processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """Return the processing of one slot in one batch; ``where`` is told with what the processor raises."""
        ...
