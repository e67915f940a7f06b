"""Call a PySpark ``StatefulProcessor`` as a ``Processor``."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark import cloudpickle

from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.errors import ConfigError
from riffle_spark.process.processors.cells import DeclaredVariable, declare_variables
from riffle_spark.process.processors.processor import Key
from riffle_spark.process.processors.session import Session
from riffle_spark.spark.compat import ExpiredTimerInfo, StatefulProcessor, TimerValues
from riffle_spark.spark.processors.handle import Handle
from riffle_spark.spark.processors.row_form import row_maker
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns


@dataclass(frozen=True, slots=True)
class Declaration:
    """The state variables that a processor's ``init`` declares, and the names of the variables that it deletes."""

    variables: tuple[Variable, ...]
    deleted: tuple[str, ...]


def declare(processor: StatefulProcessor, time_mode: TimeMode) -> Declaration:
    """Return what the ``init`` of a processor declares.

    Runs ``init`` and ``close`` of a copy, as Spark does on its driver. Raise PySpark's errors for calls that are not
    allowed there, and the processor's own errors.
    """
    copy = _copy_processor(processor)
    handle = Handle(time_mode, "PRE_INIT")
    copy.init(handle)
    copy.close()
    return Declaration(tuple(handle.variables.values()), tuple(handle.deleted))


def declared_with_rows(schema: VariableColumns) -> tuple[DeclaredVariable, ...]:
    """Return the variables of a store, with converters that make PySpark's ``Row`` objects of structs."""
    return declare_variables(schema, row_maker)


class SparkProcessor:
    """A ``Processor`` that calls a copy of the user's processor. Each slot of each batch has its own copy.

    As in Spark, the attributes of a processor do not reach another slot or batch.
    """

    def __init__(
        self, processor: StatefulProcessor, variables: Sequence[Variable], key_names: Sequence[str], times: Times
    ) -> None:
        """Copy the user's processor. ``variables`` are the variables that its ``init`` declared on the driver."""
        self._processor = _copy_processor(processor)
        self._variables = {variable.name: variable for variable in variables}
        self._key = row_maker(key_names)
        self._times = times
        self._handle = Handle(times.mode, "CREATED")
        self._timer_values = self._values(times.watermark_ms)

    def begin(self) -> None:
        """Run the processor's ``init``. Raise ``ConfigError`` if it declares other variables than on the driver."""
        self._processor.init(self._handle)
        if self._handle.variables != self._variables:
            # Cause: init depends on something that differs between processes, such as the environment, a file or the
            # time.
            raise ConfigError(
                f"init declared {_describe_variables(self._handle.variables)}, but on the driver "
                f"{_describe_variables(self._variables)}.",
                remedy="Declare the same state variables in every call of init.",
                id="RIFFLE-0321",
            )
        self._handle.phase = "INITIALIZED"

    def set_session(self, session: Session) -> None:
        """Bind the processor's states and timers to the session of the next key."""
        self._handle.enter(session)

    def initial(self, key: Key, state: object) -> None:
        """Pass a row of initial state to ``handleInitialState``."""
        self._processor.handleInitialState(key, state, self._timer_values)

    def rows(self, key: Key, rows: Iterator[object]) -> Iterable[object]:
        """Pass the rows of a key to ``handleInputRows``; return its output rows."""
        return self._processor.handleInputRows(key, rows, self._timer_values)

    def set_watermark(self, watermark_ms: int | None) -> None:
        """Set the watermark (ms) that the processor sees from now on."""
        self._timer_values = self._values(watermark_ms)

    def expired(self, key: Key, due_ms: int) -> Iterable[object]:
        """Pass an expired timer of a key to ``handleExpiredTimer``; return its output rows."""
        return self._processor.handleExpiredTimer(
            key=self._key(key), timerValues=self._timer_values, expiredTimerInfo=ExpiredTimerInfo(due_ms)
        )

    def end(self) -> None:
        """Run the processor's ``close``."""
        self._handle.leave()
        self._handle.phase = "TIMER_PROCESSED"
        self._processor.close()
        self._handle.phase = "CLOSED"

    def _values(self, watermark_ms: int | None) -> TimerValues:
        """Return the batch time and the watermark for the processor. As in Spark, a missing watermark is 0."""
        if self._times.mode == "None":
            return TimerValues(-1, -1)
        return TimerValues(self._times.now_ms, watermark_ms or 0)


def _copy_processor(processor: StatefulProcessor) -> StatefulProcessor:
    """Return a copy of a processor, made by pickling it."""
    copy: StatefulProcessor = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    return copy


def _describe_variables(variables: dict[str, Variable]) -> str:
    """Return the kinds and names of variables as text for an error."""
    return ", ".join(f"{variable.kind} {name}" for name, variable in variables.items()) or "nothing"
