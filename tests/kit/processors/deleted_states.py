"""Uses state variables after ``init`` deleted them, and tells what was raised. Knows PySpark's calls. Does not know who
runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

__all__ = ["CALLS", "TOLD", "Gone"]

CALLS: dict[str, Callable[[Any], Any]] = {
    "value.exists": lambda s: s.value.exists(),
    "value.get": lambda s: s.value.get(),
    "value.update": lambda s: s.value.update((1,)),
    "value.clear": lambda s: s.value.clear(),
    "list.exists": lambda s: s.list.exists(),
    "list.get": lambda s: list(s.list.get()),
    "list.appendValue": lambda s: s.list.appendValue((1,)),
    "list.clear": lambda s: s.list.clear(),
    "map.exists": lambda s: s.map.exists(),
    "map.getValue": lambda s: s.map.getValue(("a",)),
    "map.containsKey": lambda s: s.map.containsKey(("a",)),
    "map.updateValue": lambda s: s.map.updateValue(("a",), (1,)),
    "map.iterator": lambda s: list(s.map.iterator()),
    "map.keys": lambda s: list(s.map.keys()),
    "map.values": lambda s: list(s.map.values()),
    "map.removeKey": lambda s: s.map.removeKey(("a",)),
    "map.clear": lambda s: s.map.clear(),
}  # fmt: skip
"""All calls but ``put`` and ``appendList``, after which Spark 4.0's connection is of no use."""
_RAISED = "PySparkRuntimeError: Error "
TOLD = {
    "value.exists": f"{_RAISED}checking value state exists: Value state v is not initialized.",
    "value.get": f"{_RAISED}getting value state: Value state v is not initialized.",
    "value.update": f"{_RAISED}updating value state: Value state v is not initialized.",
    "value.clear": f"{_RAISED}clearing value state: Value state v is not initialized.",
    "list.exists": f"{_RAISED}checking value state exists: List state l is not initialized.",
    "list.get": "[]",
    "list.appendValue": f"{_RAISED}updating value state: List state l is not initialized.",
    "list.clear": f"{_RAISED}clearing value state: List state l is not initialized.",
    "map.exists": f"{_RAISED}checking map state exists: Map state m is not initialized.",
    "map.getValue": f"{_RAISED}getting value: Map state m is not initialized.",
    "map.containsKey": f"{_RAISED}checking if map state contains key: Map state m is not initialized.",
    "map.updateValue": f"{_RAISED}updating map state value: Map state m is not initialized.",
    "map.iterator": "[]",
    "map.keys": "[]",
    "map.values": "[]",
    "map.removeKey": f"{_RAISED}removing key from map state: Map state m is not initialized.",
    "map.clear": f"{_RAISED}clearing map state: Map state m is not initialized.",
}
"""What Spark 4.0.5 and 4.3.0 answer, in ``init`` on the driver and on executors, and with rows."""


class Gone(StatefulProcessor):
    """Makes all calls in ``init`` and with rows, and writes what came of each, a line a place, into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a variable of each kind, and delete it."""
        self.value = handle.getValueState("v", "n int")
        self.list = handle.getListState("l", "n int")
        self.map = handle.getMapState("m", "k string", "n int")
        for name in "vlm":
            handle.deleteIfExists(name)
        self._tell("init")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Make all calls."""
        self._tell("rows")
        return iter(())

    def _tell(self, place: str) -> None:
        told = {name: self._told(call) for name, call in CALLS.items()}
        with self._path.open("a") as file:
            print(json.dumps([place, told]), file=file)

    def _told(self, call: Callable[[Any], Any]) -> str:
        try:
            return repr(call(self))
        except Exception as error:  # noqa: BLE001 - whatever there is, it is told
            return f"{type(error).__name__}: {error}"
