"""What stands for cells where there are none: every call raises as in Spark. Knows Spark's words. Knows no state.

Spark's client begins each of its errors with what it was doing. What follows depends on the place: on the driver a
variable is only declared, outside of keys nothing says whose it would be, and what ``init`` deleted is no more.
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal, NoReturn, TypeAlias

from pyspark.errors import PySparkException, PySparkRuntimeError

from riffle_spark.spark.processors.spark_errors import no_key, wrong_phase

__all__ = ["DOING", "Deleted", "Keyless", "Kind", "OnDriver"]

Kind: TypeAlias = Literal["value", "list", "map"]
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
"""By kind and what is asked of cells: Spark's name of the call, and what its errors say is being done."""
_ITERATORS: Final = {("list", "get"), ("map", "items"), ("map", "keys"), ("map", "values")}


class _Nowhere:
    """Stands for the cells of one variable."""

    def __init__(self, kind: Kind, name: str) -> None:
        self._kind = kind
        self._name = name

    def __getattr__(self, asked: str) -> Callable[[], Iterator[NoReturn]]:
        if asked not in DOING[self.__dict__["_kind"]]:
            raise AttributeError(asked)
        return self._answer(asked, *DOING[self._kind][asked])

    def _answer(self, asked: str, operation: str, doing: str) -> Callable[[], Iterator[NoReturn]]:  # noqa: ARG002
        raise self._error(operation, doing)

    def _error(self, operation: str, doing: str) -> PySparkException:
        raise NotImplementedError


class OnDriver(_Nowhere):
    """Stands for cells where variables are only declared."""

    def _error(self, operation: str, doing: str) -> PySparkException:
        return wrong_phase(doing, f"{self._name}.{operation}", "PRE_INIT")


class Keyless(_Nowhere):
    """Stands for cells where no key is at work."""

    def _error(self, operation: str, doing: str) -> PySparkException:  # noqa: ARG002
        return no_key(doing, self._name)


class Deleted(_Nowhere):
    """Stands for the cells of a variable that ``init`` deleted: as in Spark, to go through them finds nothing."""

    def _answer(self, asked: str, operation: str, doing: str) -> Callable[[], Iterator[NoReturn]]:
        if (self._kind, asked) in _ITERATORS:
            return lambda: iter(())
        return super()._answer(asked, operation, doing)

    def _error(self, operation: str, doing: str) -> PySparkException:  # noqa: ARG002
        return PySparkRuntimeError(f"Error {doing}: {self._kind.capitalize()} state {self._name} is not initialized.")
