"""The parts that the cells of all variables share: the current key, reading ahead, and rows of the delta."""

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

ELEMENTS_MAX: Final = 65_536
KEYS_MAX: Final = 8192
_Element = TypeVar("_Element")


class DeclaredVariable(NamedTuple):
    """A state variable with the converters of its values and of a map's keys. It is shared by many sessions."""

    variable: Variable
    value: Fields
    key: Fields | None


def declare_variables(schema: VariableColumns, record: RecordMaker = plain_records) -> tuple[DeclaredVariable, ...]:
    """Return the variables of a schema with the converters of their values and map keys.

    ``record`` makes the tuples that users read.
    """
    return tuple(
        DeclaredVariable(
            variable, Fields(variable.value, record), None if variable.key is None else Fields(variable.key, record)
        )
        for variable in schema.variables
    )


@dataclass(slots=True)
class Scope:
    """A key-group in a batch: its copy, the batch's time, its number of keys, and the number of the current key."""

    schema: VariableColumns
    reading: Reading
    now_ms: int
    key_count: int
    current_key: int = -1

    def due_ms(self, ttl_ms: int | None) -> int | None:
        """Return when a value that is written now with this TTL expires; ``None`` if never or beyond the last time."""
        if ttl_ms is None or self.now_ms + ttl_ms >= NEVER_MS:
            return None
        return self.now_ms + ttl_ms

    def due_column(self, ttl_ms: int | None, count: int) -> pa.Array | None:
        """Return the expiry times of ``count`` values that are written now with this TTL; ``None`` if they never
        expire.
        """
        due_ms = self.due_ms(ttl_ms)
        return None if due_ms is None else pa.array(np.full(count, due_ms))


class DeltaRows(NamedTuple):
    """Rows of a delta for a single variable: the number of each row's key, whether it deletes, and its values.

    A deleting row without an element (no index, no struct) clears the variable of its key.
    """

    variable: str
    numbers: Sequence[int] | npt.NDArray[np.int64]
    deleted: npt.NDArray[np.bool_]
    structs: pa.StructArray | None = None
    indexes: pa.Array | None = None
    dues: pa.Array | None = None


def append_nulls(structs: pa.StructArray, count: int) -> pa.StructArray:
    """Return the structs with ``count`` nulls appended."""
    return pa.concat_arrays([structs, pa.nulls(count, structs.type)]) if count else structs


def mask_last(count: int, deleted_count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of ``count`` rows that is true for the last ``deleted_count`` rows."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[count - deleted_count :] = True
    return mask


class ReadAhead(Generic[_Element]):
    """Reads the elements of a variable for windows of keys.

    A window has ``window_min`` keys, and each next window twice as many while keys are requested in order. ``decode``
    returns one element per row.
    """

    def __init__(
        self,
        scope: Scope,
        variable: str,
        decode: Callable[[ElementRows, pa.Array | None], Iterable[_Element]],
        window_min: int = 1,
    ) -> None:
        """Prepare to read the elements of the variable named ``variable``. Nothing is read yet."""
        self._scope = scope
        self._variable = variable
        self._decode = decode
        self._window: FoundElements | None = None
        self._elements: list[_Element] | None = None
        self._first = 0
        self._end = 0
        self._window_min = window_min
        self._window_size = window_min

    def of(self, number: int) -> Iterable[_Element]:
        """Return the stored elements of the key with this number."""
        window, start, end = self._find_key(number)
        if end > ELEMENTS_MAX:
            return self._decode_in_pieces(window)
        if self._elements is None:
            self._elements = list(self._decode(window.rows, window.names)) if window.ends[-1] else []
        return self._elements[start:end]

    def has_any(self, number: int) -> bool:
        """Return whether the key with this number has a stored element, without decoding it."""
        _, start, end = self._find_key(number)
        return end > start

    def _find_key(self, number: int) -> tuple[FoundElements, int, int]:
        """Return the window with a key, and the start and end of the key's elements in it.

        Reads the window if necessary.
        """
        if self._window is None or not self._first <= number < self._end:
            self._window = self._read_window(number)
        ends = self._window.ends
        index = number - self._first
        return self._window, ends[index - 1] if index else 0, ends[index]

    def _read_window(self, number: int) -> FoundElements:
        """Read the window of keys from this number on. Windows grow while keys are requested in order."""
        is_next = 0 <= number - self._end <= self._window_size
        self._window_size = min(self._window_size * 2, KEYS_MAX) if is_next else self._window_min
        scope = self._scope
        end = min(number + self._window_size, scope.key_count)
        window = scope.reading.read_elements(self._variable, number, end, scope.now_ms, ELEMENTS_MAX)
        self._elements = None
        self._first = number
        self._end = number + len(window.ends)
        return window

    def _decode_in_pieces(self, window: FoundElements) -> Iterator[_Element]:
        """Yield the elements of a key with many elements."""
        for start in range(0, window.ends[-1], ELEMENTS_MAX):
            names = None if window.names is None else window.names.slice(start, ELEMENTS_MAX)
            yield from self._decode(window.rows.select(slice(start, start + ELEMENTS_MAX)), names)
