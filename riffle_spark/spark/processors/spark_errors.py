"""Build the errors that Spark raises for calls of a processor, and stand-ins for state that raise them."""

from collections.abc import Callable, Iterator
from typing import Final, Literal, NoReturn, TypeAlias

from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkTypeError, PySparkValueError

from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.spark.compat import error_of_class

_PREFIX: Final = "STATEFUL_PROCESSOR_"
Kind: TypeAlias = Literal["value", "list", "map"]
Reason: TypeAlias = Literal["on_driver", "no_key", "deleted"]
_UPDATING: Final = "updating value state"
DOING: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "value": {
        "exists": ("exists", "checking value state exists"),
        "get": ("get", "getting value state"),
        "update": ("update", _UPDATING),
        "clear": ("clear", "clearing value state"),
    },
    "list": {
        "exists": ("exists", "checking value state exists"),
        "get": ("get", "getting list state"),
        "put": ("put", _UPDATING),
        "append": ("appendValue", _UPDATING),
        "extend": ("appendList", _UPDATING),
        "clear": ("clear", "clearing value state"),
    },
    "map": {
        "exists": ("exists", "checking map state exists"),
        "get": ("getValue", "getting value"),
        "contains": ("containsKey", "checking if map state contains key"),
        "update": ("updateValue", "updating map state value"),
        "items": ("iterator", "getting map state entry"),
        "keys": ("keys", "getting map state key"),
        "values": ("values", "getting map state value"),
        "remove": ("removeKey", "removing key from map state"),
        "clear": ("clear", "clearing map state"),
    },
}
"""By kind and method of the cells: Spark's name of the call, and the action that its errors name."""
_ITERATORS: Final = {("list", "get"), ("map", "items"), ("map", "keys"), ("map", "values")}


def wrong_phase(doing: str, operation: str, phase: str) -> PySparkException:
    """Return the error for a call that is not allowed in the processor's ``phase``.

    ``doing`` is the action and ``operation`` the call in Spark's message.
    """
    return _error(
        doing,
        f"{_PREFIX}CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
        f"Failed to perform stateful processor operation={operation} with invalid handle state={phase}.",
    )


def no_timers(doing: str, operation: str) -> PySparkException:
    """Return the error for a timer in the time mode ``None``."""
    return _error(
        doing,
        f"{_PREFIX}CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
        f"Failed to perform stateful processor operation={operation} with invalid timeMode=None",
    )


def already_defined(kind: str, name: str, first_kind: str) -> PySparkException:
    """Return the error for a second variable with the same name."""
    doing = f"initializing {kind} state"
    if kind == first_kind:
        return PySparkRuntimeError(f"Error {doing}: {kind.capitalize()} state {name} already exists")
    return _error(
        doing,
        f"{_PREFIX}DUPLICATE_STATE_VARIABLE_DEFINED",
        f"State variable with name {name} has already been defined in the StatefulProcessor.",
    )


def wrong_name(kind: str, name: str) -> PySparkException:
    """Return the error for an invalid variable name."""
    return _error(
        f"initializing {kind} state",
        "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME",
        f"Failed to perform column family operation=create_col_family with invalid name={name}. Column family name "
        "cannot be empty or include leading/trailing spaces or use the reserved keyword=default",
    )


def no_ttl(kind: str, name: str, time_mode: str) -> PySparkException:
    """Return the error for a TTL in another time mode than ``ProcessingTime``, or a TTL that is not positive."""
    if time_mode != "ProcessingTime":
        return _error(
            f"initializing {kind} state",
            f"{_PREFIX}INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
            f"Cannot use TTL for state={name} in timeMode={time_mode}, use TimeMode.ProcessingTime() instead.",
        )
    return _error(
        f"initializing {kind} state",
        f"{_PREFIX}TTL_DURATION_MUST_BE_POSITIVE",
        f"TTL duration must be greater than zero for State store operation=update on state={name}.",
    )


def empty_list(name: str) -> PySparkException:
    """Return the error for an update of a list state without elements."""
    return _error(
        "updating value state",
        "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE",
        "Illegal value provided to the State Store "
        f"Cannot write empty list values to State Store for StateName {name}.",
        "42601",
    )


def emitted_late(time_us: int, watermark_ms: int) -> PySparkException:
    """Return the error for an output row with an event time that is not after the watermark."""
    return PySparkRuntimeError(
        f"[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with eventTime={time_us} which "
        f"is older than current_watermark_value={watermark_ms}\nThis can lead to correctness issues in the stateful "
        "operators downstream in the execution pipeline.\nPlease correct the operator logic to emit rows after "
        "current global watermark value. SQLSTATE: 42815"
    )


def misfit(doing: str, wrong: Misfit) -> PySparkException:
    """Return PySpark's error for a value that its field cannot hold. ``doing`` is the action in the message."""
    field = wrong.path or "value"
    if wrong.problem == "length":
        counts = f"{wrong.expected} fields are required while {wrong.value} values are provided."
        return _error(
            doing,
            "STRUCT_ARRAY_LENGTH_MISMATCH",
            f"Input row doesn't have expected number of values required by the schema. {counts}",
            "2201E",
        )
    if wrong.problem == "null":
        return error_of_class(PySparkValueError, "FIELD_NOT_NULLABLE_WITH_NAME", {"field_name": f"field {field}"})
    parameters = {
        "field_name": f"field {field}",
        "data_type": str(wrong.expected),
        "obj": repr(wrong.value)[:200],
        "obj_type": type(wrong.value).__name__,
    }
    kind = PySparkTypeError if wrong.problem == "type" else PySparkValueError
    return error_of_class(kind, "FIELD_DATA_TYPE_UNACCEPTABLE_WITH_NAME", parameters)


def _error(doing: str, name: str, message: str, sql_state: str = "42802") -> PySparkRuntimeError:
    return PySparkRuntimeError(f"Error {doing}: [{name}] {message} SQLSTATE: {sql_state}")


class StandIn:
    """Replaces the cells of a state variable that cannot be used. Every method raises Spark's error.

    ``reason`` is ``on_driver``, where variables are only declared, ``no_key`` outside the processing of a key, or
    ``deleted`` after ``init`` deleted the variable. As in Spark, iterating over a deleted variable yields nothing.
    """

    def __init__(self, kind: Kind, name: str, reason: Reason) -> None:
        """Create the stand-in of the state variable ``name``."""
        self._kind = kind
        self._name = name
        self._reason = reason

    def __getattr__(self, method: str) -> Callable[[], Iterator[NoReturn]]:
        """Raise Spark's error for a method of the cells, and ``AttributeError`` for any other name."""
        if method not in DOING[self.__dict__["_kind"]]:
            raise AttributeError(method)
        operation, doing = DOING[self._kind][method]
        if self._reason == "on_driver":
            raise wrong_phase(doing, f"{self._name}.{operation}", "PRE_INIT")
        if self._reason == "no_key":
            message = f"Implicit key not found in state store for stateName={self._name}"
            raise _error(doing, "INTERNAL_ERROR_TWS", message, "XX000")
        if (self._kind, method) in _ITERATORS:
            return lambda: iter(())
        raise PySparkRuntimeError(f"Error {doing}: {self._kind.capitalize()} state {self._name} is not initialized.")
