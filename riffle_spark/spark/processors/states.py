"""Implement PySpark's ``ValueState``, ``ListState`` and ``MapState`` on cells.

They subclass PySpark's classes. Each call uses the cells of the current session in this process. Outside the processing
of a key every call raises.
"""

# ruff: noqa: N802, N803 - PySpark names these methods

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, TypeAlias

from pyspark.errors import PySparkTypeError

from riffle_spark.process.processors.list_cells import ListCells
from riffle_spark.process.processors.map_cells import MapCells
from riffle_spark.process.processors.value_cells import ValueCells
from riffle_spark.process.types.simple_converters import Misfit
from riffle_spark.spark.compat import ListState, MapState, ValueState
from riffle_spark.spark.processors.row_form import RowMaker
from riffle_spark.spark.processors.spark_errors import DOING, Kind, empty_list, misfit

Fields: TypeAlias = tuple[Any, ...]
_UPDATING: Final = DOING["value"]["update"][1]
_MAP: Final = DOING["map"]


class _StateOfCells:
    """The common part of the states: a name, and the cells of the current session."""

    cells: ValueCells | ListCells | MapCells

    def __init__(self, name: str) -> None:
        """Create a state without cells. ``name`` is the name of the variable."""
        self.name = name

    def exists(self) -> bool:
        """Return whether the current key has a value."""
        return self.cells.exists()

    def clear(self) -> None:
        """Remove the current key's value."""
        self.cells.clear()


class ValueOfCells(_StateOfCells, ValueState):
    """A ``ValueState`` of PySpark on cells."""

    cells: ValueCells
    kind: ClassVar[Kind] = "value"

    def get(self) -> Fields | None:
        """Return the value of the current key, or ``None``."""
        return self.cells.get()

    def update(self, newValue: Fields) -> None:
        """Set the value of the current key. Raise PySpark's error for a value that does not fit its type."""
        try:
            self.cells.update(newValue)
        except Misfit as wrong:
            raise misfit(_UPDATING, wrong) from None


class ListOfCells(_StateOfCells, ListState):
    """A ``ListState`` of PySpark on cells."""

    cells: ListCells
    kind: ClassVar[Kind] = "list"

    def get(self) -> Iterator[Fields]:
        """Return an iterator over the values of the current key."""
        return self.cells.get()

    def put(self, newState: list[Fields]) -> None:
        """Replace the list of the current key. Raise PySpark's error for an empty list and for a misfit."""
        self._add(self.cells.put, newState)

    def appendValue(self, newState: Fields) -> None:
        """Append one value to the list of the current key. Raise PySpark's error for a misfit."""
        try:
            self.cells.append(newState)
        except Misfit as wrong:
            raise misfit(_UPDATING, wrong) from None

    def appendList(self, newState: list[Fields]) -> None:
        """Append values to the list of the current key. Raise PySpark's error for an empty list and for a misfit."""
        self._add(self.cells.extend, newState)

    def _add(self, add: Callable[[list[Fields]], None], elements: list[Fields]) -> None:
        """Pass elements to ``add``, a method of the cells.

        Raise PySpark's error for none, an empty list or a misfit.
        """
        if elements is None:
            raise PySparkTypeError("'NoneType' object is not iterable")
        elements = list(elements)
        if not elements:
            raise empty_list(self.name)
        try:
            add(elements)
        except Misfit as wrong:
            raise misfit(_UPDATING, wrong) from None


class MapOfCells(_StateOfCells, MapState):
    """A ``MapState`` of PySpark on cells. ``row`` makes the ``Row`` that PySpark returns for a value."""

    cells: MapCells
    kind: ClassVar[Kind] = "map"

    def __init__(self, name: str, row: RowMaker) -> None:
        """Create a map state without cells. ``row`` makes the ``Row`` of a value."""
        super().__init__(name)
        self._row = row

    def getValue(self, key: Fields) -> Fields | None:
        """Return the value under a key of the current key's map, or ``None``."""
        try:
            value = self.cells.get(key)
        except Misfit as wrong:
            raise misfit(_MAP["get"][1], wrong) from None
        return None if value is None else self._row(value)

    def containsKey(self, key: Fields) -> bool:
        """Return whether the current key's map has a key."""
        try:
            return self.cells.contains(key)
        except Misfit as wrong:
            raise misfit(_MAP["contains"][1], wrong) from None

    def updateValue(self, key: Fields, value: Fields) -> None:
        """Set the value under a key of the current key's map. Raise PySpark's error for a misfit."""
        try:
            self.cells.update(key, value)
        except Misfit as wrong:
            raise misfit(_MAP["update"][1], wrong) from None

    def iterator(self) -> Iterator[tuple[Fields, Fields]]:
        """Return an iterator over the (key, value) pairs of the current key's map."""
        return self.cells.items()

    def keys(self) -> Iterator[Fields]:
        """Return an iterator over the keys of the current key's map."""
        return self.cells.keys()

    def values(self) -> Iterator[Fields]:
        """Return an iterator over the values of the current key's map."""
        return self.cells.values()

    def removeKey(self, key: Fields) -> None:
        """Remove a key from the current key's map, if it has it."""
        try:
            self.cells.remove(key)
        except Misfit as wrong:
            raise misfit(_MAP["remove"][1], wrong) from None


CellsState: TypeAlias = ValueOfCells | ListOfCells | MapOfCells
