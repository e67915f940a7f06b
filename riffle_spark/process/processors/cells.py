"""What the cells of all variables share: where the session is, and a piece of its delta. Knows no kind of cell."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.process.types.converters import RecordMaker
from riffle_spark.process.types.fields import Fields, plain_records
from riffle_spark.state.copies.reading import Reading
from riffle_spark.state.schemas.variable_keys import NO_DUE, due_of
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = [
    "ELEMENTS_MAX",
    "DeclaredVariable",
    "DeltaRows",
    "FoundElements",
    "ReadAhead",
    "Scope",
    "declare_all",
    "last_are_deleted",
    "visible",
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
    """One key-group in one batch: its copy, its keys by number, the batch's time, and the key ``at`` work."""

    schema: VariableColumns
    reading: Reading
    now_ms: int
    group_keys: list[bytes] = field(default_factory=list)
    at: int = -1

    def prefix(self, variable: str, number: int) -> bytes:
        """Return the beginning of what a variable of the key of this number holds."""
        return self.schema.prefix(self.group_keys[number], variable)

    def due_ms(self, ttl_ms: int | None) -> int | None:
        """Return when what is written now expires."""
        return None if ttl_ms is None else self.now_ms + ttl_ms

    def is_expired(self, due_ms: int) -> bool:
        """Tell whether an element's time has come. Spark: at the very time."""
        return due_ms != NO_DUE and due_ms <= self.now_ms


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


def visible(dues: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
    """Return which elements of these due times are not expired."""
    is_visible: npt.NDArray[np.bool_] = (dues > now_ms) | (dues == NO_DUE)
    return is_visible


class FoundElements(NamedTuple):
    """Elements as they are stored: whole stored keys, what of them names the element, and values."""

    keys: list[bytes]
    elements: list[bytes]
    values: list[bytes]

    def take(self, stored: Iterator[tuple[bytes, bytes]], prefix_bytes: int, count: int) -> int:
        """Take so many more, or what is left; return how many there are now."""
        pairs = list(islice(stored, count))
        self.keys.extend([key for key, _ in pairs])
        self.elements.extend([key[prefix_bytes:] for key, _ in pairs])
        self.values.extend([value for _, value in pairs])
        return len(self.keys)


class ReadAhead(Generic[_Element]):
    """Reads elements of a variable. ``decode`` returns one element, or ``None`` for one that is expired, for each that
    it gets.
    """

    def __init__(
        self, scope: Scope, variable: str, decode: Callable[[FoundElements], Iterable[_Element | None]]
    ) -> None:
        self._scope = scope
        self._variable = variable
        self._decode = decode
        self._known: dict[int, list[_Element]] = {}
        self._keys_at_once = 1
        self._next = 0

    def of(self, number: int) -> Iterable[_Element]:
        """Return the elements of a key, in the order of their stored keys."""
        known = self._known.get(number)
        return known if known is not None else self._read(number)

    def has_any(self, number: int) -> bool:
        """Tell whether the key has an element, without reading them all."""
        if number in self._known:
            return bool(self._known[number])
        scope = self._scope
        stored = scope.reading.under(scope.prefix(self._variable, number))
        return any(not scope.schema.indexed or not scope.is_expired(due_of(value)) for _, value in stored)

    def _read(self, number: int) -> Iterable[_Element]:
        follows = 0 <= number - self._next <= self._keys_at_once
        self._keys_at_once = min(self._keys_at_once * 2, KEYS_MAX) if follows else 1
        found, ends = FoundElements([], [], []), [0]
        for following in range(number, min(number + self._keys_at_once, len(self._scope.group_keys))):
            prefix = self._scope.prefix(self._variable, following)
            stored = self._scope.reading.under(prefix)
            count = found.take(stored, len(prefix), ELEMENTS_MAX + 1 - ends[-1])
            if count > ELEMENTS_MAX:
                break
            ends.append(count)
        if len(ends) == 1:
            return self._pieces(found, stored, len(prefix))
        self._next = number + len(ends) - 1
        self._known = self._cut(number, found, ends)
        return self._known[number]

    def _cut(self, number: int, found: FoundElements, ends: list[int]) -> dict[int, list[_Element]]:
        whole = FoundElements(*(column[: ends[-1]] for column in found))
        elements = list(self._decode(whole)) if whole.keys else []
        spans = enumerate(pairwise(ends), number)
        return {key: [one for one in elements[start:end] if one is not None] for key, (start, end) in spans}

    def _pieces(
        self, found: FoundElements, rest: Iterator[tuple[bytes, bytes]], prefix_bytes: int
    ) -> Iterator[_Element]:
        while found.keys:
            yield from (element for element in self._decode(found) if element is not None)
            found = FoundElements([], [], [])
            found.take(rest, prefix_bytes, ELEMENTS_MAX)
