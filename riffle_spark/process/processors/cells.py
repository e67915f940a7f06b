"""What the cells of all variables share: where the session is, and a piece of its delta. Knows no kind of cell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.types.converters import RecordMaker
from riffle_spark.process.types.fields import Fields, plain_records
from riffle_spark.state.copies.elements import ElementRows
from riffle_spark.state.copies.reading import FoundElements, Reading
from riffle_spark.state.formats.due_times import NEVER_MS
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = [
    "ELEMENTS_MAX",
    "DeclaredVariable",
    "DeltaRows",
    "ReadAhead",
    "Scope",
    "declare_all",
    "last_are_deleted",
]

ELEMENTS_MAX: Final = 65_536
KEYS_MAX: Final = 8192
_Element = TypeVar("_Element")


class DeclaredVariable(NamedTuple):
    """A state variable and what converts its values, and a map's keys; made once for many sessions."""

    variable: Variable
    value: Fields
    key: Fields | None


def declare_all(schema: VariableColumns, record: RecordMaker = plain_records) -> tuple[DeclaredVariable, ...]:
    """Return the variables of a schema with their converters."""
    return tuple(
        DeclaredVariable(one, Fields(one.value, record), None if one.key is None else Fields(one.key, record))
        for one in schema.variables
    )


@dataclass(slots=True)
class Scope:
    """One key-group in one batch: its copy, the number of its keys, the batch's time, and the key ``at`` work."""

    schema: VariableColumns
    reading: Reading
    now_ms: int
    count: int
    at: int = -1

    def due_ms(self, ttl_ms: int | None) -> int | None:
        """Return when what is written now expires: never, where no time is as late as that."""
        if ttl_ms is None or self.now_ms + ttl_ms >= NEVER_MS:
            return None
        return self.now_ms + ttl_ms


class DeltaRows(NamedTuple):
    """Rows of a delta, all of one variable: the number of each one's key, which are deleted, and what they hold.

    A deleted row of no element (no index, no struct) clears the variable of its key.
    """

    variable: str
    numbers: Sequence[int] | npt.NDArray[np.int64]
    deleted: npt.NDArray[np.bool_]
    structs: pa.StructArray | None = None
    indexes: pa.Array | None = None
    dues: pa.Array | None = None


def last_are_deleted(count: int, deleted: int) -> npt.NDArray[np.bool_]:
    """Return a mask of ``count`` rows of which so many, the last ones, are deleted."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[count - deleted :] = True
    return mask


class ReadAhead(Generic[_Element]):
    """Reads elements of a variable, of so many keys ``at_once``, and of more as long as they are asked for one after
    the other. ``decode`` returns one element for each that was found.
    """

    def __init__(
        self, scope: Scope, variable: str, decode: Callable[[ElementRows, pa.Array | None], Iterable[_Element]],
        at_once: int = 1,
    ) -> None:  # fmt: skip
        self._scope = scope
        self._variable = variable
        self._decode = decode
        self._found: FoundElements | None = None
        self._elements: list[_Element] | None = None
        self._first = self._end = 0
        self._at_once = self._keys_at_once = at_once

    def of(self, number: int) -> Iterable[_Element]:
        """Return the elements of a key."""
        found, start, end = self._span(number)
        if end > ELEMENTS_MAX:
            return self._pieces(found)
        if self._elements is None:
            self._elements = list(self._decode(found.rows, found.names)) if found.ends[-1] else []
        return self._elements[start:end]

    def has_any(self, number: int) -> bool:
        """Tell whether the key has an element, without decoding it."""
        _, start, end = self._span(number)
        return end > start

    def _span(self, number: int) -> tuple[FoundElements, int, int]:
        """Return what was found, and where a key's elements are in it."""
        if self._found is None or not self._first <= number < self._end:
            self._read(number)
        assert self._found is not None, "it was read just now"
        ends, at = self._found.ends, number - self._first
        return self._found, ends[at - 1] if at else 0, ends[at]

    def _read(self, number: int) -> None:
        follows = 0 <= number - self._end <= self._keys_at_once
        self._keys_at_once = min(self._keys_at_once * 2, KEYS_MAX) if follows else self._at_once
        scope = self._scope
        last = min(number + self._keys_at_once, scope.count)
        self._found = scope.reading.elements(self._variable, number, last, scope.now_ms, ELEMENTS_MAX)
        self._elements, self._first, self._end = None, number, number + len(self._found.ends)

    def _pieces(self, found: FoundElements) -> Iterator[_Element]:
        """Yield the elements of one key that has many."""
        for start in range(0, found.ends[-1], ELEMENTS_MAX):
            names = None if found.names is None else found.names.slice(start, ELEMENTS_MAX)
            yield from self._decode(found.rows.select(slice(start, start + ELEMENTS_MAX)), names)
