"""Timers of one key-group in one batch: what was registered and deleted, and what is due, elements whose time to live
is over with them. Knows the order of time. Does not know what a timer does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.process.processors.cells import DeltaRows, Scope
from riffle_spark.state.schemas.variable_keys import due_of, index_of
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable

__all__ = ["DueTimers", "Expired", "Timers"]

_DUE_BYTES = 8
_EVER: Final = 2**62
_PEEKED: Final = 64


class Timers:
    """Times of the key where the scope is at, each at most once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._changed: dict[int, dict[int, bool]] = {}

    def register(self, due_ms: int) -> None:
        """Register a timer; one that is there already stays."""
        self._changed.setdefault(self._scope.at, {})[due_ms] = True

    def delete(self, due_ms: int) -> None:
        """Delete a timer, if it is there."""
        self._changed.setdefault(self._scope.at, {})[due_ms] = False

    def list(self) -> Iterator[int]:
        """Return an iterator over the timers that there are now, in order of time."""
        at = self._scope.at
        stored = self._scope.reading.under(self._scope.prefix(TIMER, at))
        dues = {due_of(key[-_DUE_BYTES:]) for key, _ in stored}
        for due_ms, is_registered in self._changed.get(at, {}).items():
            (dues.add if is_registered else dues.discard)(due_ms)
        return iter(sorted(dues))

    def is_changed(self, number: int, due_ms: int) -> bool:
        """Tell whether the timer of this key was registered or deleted."""
        return due_ms in self._changed.get(number, ())

    def registered(self) -> Iterator[tuple[int, int]]:
        """Yield due time and key's number of what was registered and not deleted since."""
        for number, changed in self._changed.items():
            for due_ms, is_registered in changed.items():
                if is_registered:
                    yield due_ms, number

    def earliest_ms(self) -> int | None:
        """Return when the first of what was registered is due."""
        return min((due_ms for due_ms, _ in self.registered()), default=None)

    def changes(self) -> Iterable[DeltaRows]:
        """Return what was registered and deleted."""
        rows = [
            (number, due_ms, not is_registered)
            for number, changed in sorted(self._changed.items())
            for due_ms, is_registered in changed.items()
        ]
        if not rows:
            return []
        numbers, dues, deleted = zip(*rows, strict=True)
        return [DeltaRows(TIMER, numbers, np.array(deleted), dues=pa.array(dues, pa.int64()))]


class Replaceable(Protocol):
    """The cells of one variable."""

    def is_replaced(self, number: int, element: bytes) -> bool:
        """Tell whether what the store has of this element counts no more."""
        ...


class Expired(NamedTuple):
    """Elements that are removed because their time to live is over."""

    pieces: list[DeltaRows]
    removed: int


class _Entry(NamedTuple):
    """One entry of the index, taken apart; the place is its row among those that came with it."""

    due_ms: int
    stored: bytes
    group_key: bytes
    variable: str
    element: bytes
    place: int


class _Entries(NamedTuple):
    """Entries of the index, and the columns of their keys, row by row."""

    entries: list[_Entry]
    keys: pa.Table


class DueTimers:
    """Looks for what is due. ``add_keys`` is told of keys that the scope does not have yet, and adds them to it."""

    def __init__(self, scope: Scope, timers: Timers, add_keys: Callable[[pa.Table, list[bytes]], None]) -> None:
        self._scope = scope
        self._timers = timers
        self._add_keys = add_keys
        self._index = scope.reading.due_until(_EVER) if scope.schema.indexed else iter(())
        self._next: tuple[int, bytes] | None = next(self._index, None)
        self._elements: list[_Entries] = []
        self._numbers: dict[bytes, int] = {}

    def timers(self, until_ms: int) -> list[tuple[int, int]]:
        """Return due time and key's number of all timers that are due by now, in order of time, then of key."""
        found = self._advance(until_ms)
        of_timers = [entry for entry in found.entries if entry.variable == TIMER]
        numbers = self._numbers_of(of_timers, found.keys)
        due = {
            (entry.due_ms, number)
            for entry, number in zip(of_timers, numbers, strict=True)
            if not self._timers.is_changed(number, entry.due_ms)
        }
        due |= {(due_ms, number) for due_ms, number in self._timers.registered() if due_ms <= until_ms}
        group_keys = self._scope.group_keys
        return sorted(due, key=lambda one: (one[0], group_keys[one[1]]))

    def elements(self, cells: Mapping[str, Replaceable]) -> Expired:
        """Return what removes all elements that are expired and were not written since."""
        self._advance(self._scope.now_ms)
        pieces, removed = [], 0
        for found in self._elements:
            numbers = self._numbers_of(found.entries, found.keys)
            expired: dict[str, list[tuple[int, _Entry]]] = {}
            for number, entry in zip(numbers, found.entries, strict=True):
                if not cells[entry.variable].is_replaced(number, entry.element):
                    expired.setdefault(entry.variable, []).append((number, entry))
            pieces += [self._piece(name, entries) for name, entries in expired.items()]
            removed += sum(map(len, expired.values()))
        return Expired(pieces, removed)

    def next_ms(self, cells: Mapping[str, Replaceable]) -> int | None:
        """Return when the first of what is left is due, out of what was there before and is still."""
        at_once = 1
        while self._next is not None:
            found = self._taken_apart([self._next, *islice(self._index, at_once - 1)])
            for entry in found.entries:
                if not self._is_gone(entry, cells):
                    return entry.due_ms
            self._next, at_once = next(self._index, None), min(2 * at_once, _PEEKED)
        return None

    def _is_gone(self, entry: _Entry, cells: Mapping[str, Replaceable]) -> bool:
        number = self._known_numbers().get(entry.group_key)
        if number is None:
            return False
        if entry.variable == TIMER:
            return self._timers.is_changed(number, entry.due_ms)
        return cells[entry.variable].is_replaced(number, entry.element)

    def _advance(self, until_ms: int) -> _Entries:
        """Read on until this time; keep elements for later and return what was found."""
        found = self._taken_apart(list(self._until(until_ms)))
        elements = [entry for entry in found.entries if entry.variable != TIMER]
        if elements:
            self._elements.append(_Entries(elements, found.keys))
        return found

    def _until(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        while self._next is not None and self._next[0] <= until_ms:
            yield self._next
            self._next = next(self._index, None)

    def _taken_apart(self, found: list[tuple[int, bytes]]) -> _Entries:
        schema, stored = self._scope.schema, [key for _, key in found]
        if not found:
            return _Entries([], schema.key.empty_table())
        keys, groups, variables, elements = schema.places(stored, self._scope.reading.longs(stored))
        dues = [due_ms for due_ms, _ in found]
        return _Entries(list(map(_Entry, dues, stored, groups, variables, elements, range(len(found)))), keys)

    def _known_numbers(self) -> dict[bytes, int]:
        """Return the number of each key of the scope."""
        known, group_keys = self._numbers, self._scope.group_keys
        if len(known) < len(group_keys):
            self._numbers = known = {key: number for number, key in enumerate(group_keys)}
        return known

    def _numbers_of(self, entries: list[_Entry], keys: pa.Table) -> list[int]:
        """Return the numbers of entries' keys; the scope gets keys that it does not have."""
        known = self._known_numbers()
        new = {entry.group_key: entry.place for entry in reversed(entries) if entry.group_key not in known}
        if new:
            in_order = sorted(new.items(), key=lambda one: one[1])
            self._add_keys(keys.take(pa.array([place for _, place in in_order])), [key for key, _ in in_order])
            known = self._known_numbers()
        return [known[entry.group_key] for entry in entries]

    def _piece(self, name: str, expired: list[tuple[int, _Entry]]) -> DeltaRows:
        """Return the rows that remove elements of one variable."""
        variable, numbers = self._scope.schema.variable(name), [number for number, _ in expired]
        indexes = [index_of(entry.element) for _, entry in expired] if variable.kind == "list" else None
        structs = self._removed_keys(variable, [entry.stored for _, entry in expired])
        deleted = np.ones(len(expired), dtype=np.bool_)
        return DeltaRows(name, numbers, deleted, structs, None if indexes is None else pa.array(indexes, pa.int64()))

    def _removed_keys(self, variable: Variable, stored: list[bytes]) -> pa.StructArray | None:
        """Return entries of a map without values; nothing for other variables."""
        if variable.key is None:
            return None
        keys = self._scope.schema.map_keys(variable.name, stored, self._scope.reading.longs(stored))
        of_key = pa.StructArray.from_arrays([one_array(column) for column in keys.columns], fields=list(variable.key))
        values = pa.nulls(len(stored), pa.struct(list(variable.value)))
        return pa.StructArray.from_arrays([of_key, values], names=["key", "value"])
