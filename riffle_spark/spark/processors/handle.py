"""Provide the ``StatefulProcessorHandle`` of a processor. It checks the phase of each call."""

# ruff: noqa: N802, N803 - PySpark names these methods

from collections.abc import Iterator
from operator import index
from typing import Final, Literal, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import DataType

from riffle_spark.batch_times import TimeMode
from riffle_spark.errors import ConfigError
from riffle_spark.process.processors.session import Session
from riffle_spark.process.types.spark_schemas import schema_of_ddl, schema_of_json
from riffle_spark.spark.compat import ListState, MapState, StatefulProcessorHandle, ValueState
from riffle_spark.spark.processors import spark_errors
from riffle_spark.spark.processors.row_form import row_maker
from riffle_spark.spark.processors.states import CellsState, ListOfCells, MapOfCells, ValueOfCells
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable

Phase: TypeAlias = Literal["PRE_INIT", "CREATED", "INITIALIZED", "TIMER_PROCESSED", "CLOSED"]
"""The phase of a processor, by Spark's names. ``PRE_INIT`` is on the driver, where variables are only declared."""
Schema: TypeAlias = DataType | str
_State = TypeVar("_State", ValueOfCells, ListOfCells, MapOfCells)

_DECLARING: Final = ("PRE_INIT", "CREATED")
_RESERVED: Final = ("", "default", TIMER)
_TIME_BOUND: Final = 2**63


class Handle(StatefulProcessorHandle):
    """The handle that a processor gets: it declares state variables during ``init`` and registers timers later.

    ``phase`` is the processor's phase. ``variables`` are the declared variables by name, ``deleted`` the names to
    delete.
    """

    def __init__(self, time_mode: TimeMode, phase: Phase) -> None:
        """Create a handle without variables, for a processor in this phase."""
        self._time_mode = time_mode
        self.phase: Phase = phase
        self.variables: dict[str, Variable] = {}
        self.deleted: list[str] = []
        self._states: dict[str, CellsState] = {}
        self._session: Session | None = None

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState:
        """Declare and return a state variable with one value per key. ``schema`` is the type of the value."""
        self._declare(stateName, "value", schema, None, ttlDurationMs)
        return self._add(ValueOfCells(stateName))

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState:
        """Declare and return a state variable with a list of values per key. ``schema`` is the type of a value."""
        self._declare(stateName, "list", schema, None, ttlDurationMs)
        return self._add(ListOfCells(stateName))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Declare and return a state variable with a map per key."""
        variable = self._declare(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)
        return self._add(MapOfCells(stateName, row_maker(variable.value.names)))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer for the current key at a time (milliseconds since the epoch)."""
        self._current_session("register timer", "register_timer").timers.register(_time(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete the timer of the current key at a time, if there is one."""
        self._current_session("deleting timer", "delete_timer").timers.delete(_time(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, as in PySpark, in ascending order of time."""
        return self._current_session("listing timers", "list_timers").timers.list()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable of an earlier version of the processor, during ``init``."""
        if self.phase not in _DECLARING:
            raise spark_errors.wrong_phase("deleting state", "delete_if_exists", self.phase)
        self.variables.pop(stateName, None)
        state = self._states.pop(stateName, None)
        if state is not None:
            _unbind(state, "deleted")
        self.deleted.append(stateName)

    def enter(self, session: Session) -> None:
        """Bind the state variables and timers to the session of a key, before the processor is called for it."""
        self._session = session
        for name, state in self._states.items():
            vars(state)["cells"] = session.cells[name]

    def leave(self) -> None:
        """Unbind the state variables and timers, after the last key."""
        self._session = None
        for state in self._states.values():
            _unbind(state)

    def _current_session(self, doing: str, operation: str) -> Session:
        """Return the session of the current key. Raise Spark's error if timers cannot be used now.

        ``doing`` and ``operation`` describe the call in the error.
        """
        if self._time_mode == "None":
            raise spark_errors.no_timers(doing, operation)
        if self._session is None:
            raise spark_errors.wrong_phase(doing, operation, self.phase)
        return self._session

    def _declare(
        self, name: str, kind: spark_errors.Kind, value: Schema, key: Schema | None, ttl_ms: int | None
    ) -> Variable:
        """Record and return a state variable that ``init`` requests. Raise Spark's error if it is not allowed.

        ``kind`` is ``value``, ``list`` or ``map``. ``value`` and ``key`` are the schemas of its values and of a map's
        keys.
        """
        doing = f"initializing {kind} state"
        if self.phase not in _DECLARING:
            raise spark_errors.wrong_phase(doing, f"get_{kind}_state", self.phase)
        if name in _RESERVED or name != name.strip():
            raise spark_errors.wrong_name(kind, name)
        if name in self.variables:
            raise spark_errors.already_defined(kind, name, self.variables[name].kind)
        if name in self.deleted:
            raise PySparkRuntimeError(f"Error {doing}: init deletes state {name}, so no later batch would have it")
        map_key = None if key is None else _arrow_schema(key)
        variable = Variable(name, kind, _arrow_schema(value), map_key, self._ttl(name, kind, ttl_ms))
        self.variables[name] = variable
        return variable

    def _ttl(self, name: str, kind: spark_errors.Kind, ttl_ms: int | None) -> int | None:
        """Return the TTL (ms) of a variable, or ``None`` without one. Spark treats 0 as none.

        Raise Spark's error if this time mode has no TTL.
        """
        if not ttl_ms:
            return None
        if self._time_mode != "ProcessingTime" or ttl_ms < 0:
            raise spark_errors.no_ttl(kind, name, self._time_mode)
        return _time(ttl_ms)

    def _add(self, state: _State) -> _State:
        """Add a state variable that has no cells yet, and return it."""
        _unbind(state, "on_driver" if self.phase == "PRE_INIT" else "no_key")
        self._states[state.name] = state
        return state


def _unbind(state: CellsState, reason: spark_errors.Reason = "no_key") -> None:
    """Replace the cells of a state by a stand-in whose methods raise Spark's error."""
    vars(state)["cells"] = spark_errors.StandIn(state.kind, state.name, reason)


def _arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a Spark type or of DDL. Raise PySpark's error for invalid DDL."""
    if isinstance(schema, DataType):
        return schema_of_json(schema.json())
    try:
        return schema_of_ddl(schema)
    except ConfigError as error:
        raise PySparkRuntimeError(f"Error parsing string schema: {error}") from error


def _time(expiry_ms: int) -> int:
    """Return a time in milliseconds as an ``int``. Raise ``ValueError`` if it is out of range."""
    time_ms = index(expiry_ms)
    if not -_TIME_BOUND < time_ms < _TIME_BOUND:
        raise ValueError(f"Value out of range: {time_ms}")
    return time_ms
