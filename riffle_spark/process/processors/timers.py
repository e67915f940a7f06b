"""Timers of one key-group in one batch: what was registered and deleted, and what is due, elements whose time to live
is over with them. Knows the order of time. Does not know what a timer does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from riffle_spark.process.processors.cells import KEYS_MAX, DeltaRows, ReadAhead, Scope
from riffle_spark.state.copies.reading import DueElements
from riffle_spark.state.copies.run import Hashes, Indices
from riffle_spark.state.schemas.variable_kinds import TIMER, encoded_keys

__all__ = ["DueTimers", "Expired", "Timers"]

_MORE: Final = 8


class Timers:
    """Times of the key where the scope is at, each at most once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._stored: ReadAhead[int] = ReadAhead(scope, TIMER, lambda rows, _: rows.ids.tolist(), KEYS_MAX)
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
        dues = set(self._stored.of(at))
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


class DueTimers:
    """Looks for what is due. ``keys`` gives the scope's keys from a number on; ``add_keys`` is told of keys that it
    does not have yet, with their hashes, and adds them.
    """

    def __init__(
        self, scope: Scope, timers: Timers, keys: Callable[[int], pa.Table],
        add_keys: Callable[[pa.Table, Hashes], None],
    ) -> None:  # fmt: skip
        self._scope = scope
        self._timers = timers
        self._keys = keys
        self._add_keys = add_keys
        self._from_ms = scope.reading.first_ms
        self._elements: list[DueElements] = []
        self._encoded: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def timers(self, until_ms: int) -> list[tuple[int, int]]:
        """Return due time and key's number of all timers that are due by now, in order of time, then of key."""
        due: set[tuple[int, int]] = set()
        for found in self._advance(until_ms):
            if found.variable == TIMER:
                pairs = zip(found.due_ms.tolist(), self._numbers_of(found), strict=True)
                due.update((due_ms, number) for due_ms, number in pairs if not self._timers.is_changed(number, due_ms))
        due |= {(due_ms, number) for due_ms, number in self._timers.registered() if due_ms <= until_ms}
        self._know_keys()
        return sorted(due, key=lambda one: (one[0], self._encoded[one[1]]))

    def elements(self, cells: Mapping[str, Replaceable]) -> Expired:
        """Return what removes all elements that are expired and were not written since."""
        self._advance(self._scope.now_ms)
        pieces = []
        for found in self._elements:
            numbers, names = self._numbers_of(found), self._names_of(found)
            own = cells[found.variable]
            kept = [at for at, (n, name) in enumerate(zip(numbers, names, strict=True)) if not own.is_replaced(n, name)]
            if kept:
                pieces.append(self._piece(found, [numbers[at] for at in kept], np.array(kept)))
        return Expired(pieces, sum(len(piece.numbers) for piece in pieces))

    def next_ms(self, cells: Mapping[str, Replaceable]) -> int | None:
        """Return when the first of what is left is due, out of what was there before and is still."""
        from_ms, count, reading = self._from_ms, 1, self._scope.reading
        while (until_ms := reading.due_by(from_ms, count)) is not None:
            left = (ms for found in reading.due(from_ms, until_ms) for ms in self._left(found, cells))
            least = min(left, default=None)
            if least is not None:
                return least
            from_ms, count = until_ms + 1, _MORE * count
        return None

    def _left(self, found: DueElements, cells: Mapping[str, Replaceable]) -> Iterator[int]:
        """Yield when what was not written since is due."""
        self._know_keys()
        known, encoded = self._numbers, self._scope.schema.encoded(found.keys).to_pylist()
        for due_ms, key, name in zip(found.due_ms.tolist(), encoded, self._names_of(found), strict=True):
            number = known.get(key, -1)
            if found.variable == TIMER:
                is_gone = self._timers.is_changed(number, due_ms)
            else:
                is_gone = cells[found.variable].is_replaced(number, name)
            if not is_gone:
                yield due_ms

    def _advance(self, until_ms: int) -> list[DueElements]:
        """Read on until this time; keep elements for later and return what was found."""
        if until_ms < self._from_ms:
            return []
        found = self._scope.reading.due(self._from_ms, until_ms)
        self._from_ms = until_ms + 1
        self._elements += [one for one in found if one.variable != TIMER]
        return found

    def _know_keys(self) -> None:
        """Take in the scope's keys that were not seen yet."""
        start = len(self._encoded)
        if start < self._scope.count:
            self._encoded += self._scope.schema.encoded(self._keys(start)).to_pylist()
            self._numbers.update({key: number for number, key in enumerate(self._encoded[start:], start)})

    def _numbers_of(self, found: DueElements) -> list[int]:
        """Return the numbers of what was found's keys; the scope gets keys that it does not have."""
        self._know_keys()
        encoded = self._scope.schema.encoded(found.keys).to_pylist()
        new = {key: at for at, key in enumerate(encoded) if key not in self._numbers}
        if new:
            places = np.array(list(new.values()))
            self._add_keys(found.keys.take(pa.array(places)), found.hashes[places])
            self._know_keys()
        return [self._numbers[key] for key in encoded]

    def _names_of(self, found: DueElements) -> list[bytes]:
        """Return the stored keys of a map's elements; those of others have none."""
        if found.variable == TIMER or self._scope.schema.by_name[found.variable].key is None:
            return [b""] * len(found.ids)
        names: list[bytes] = encoded_keys(found.structs).to_pylist()
        return names

    def _piece(self, found: DueElements, numbers: list[int], at: Indices) -> DeltaRows:
        """Return the rows that remove elements of one variable."""
        variable = self._scope.schema.by_name[found.variable]
        indexes = pa.array(found.ids[at]) if variable.kind == "list" else None
        deleted, structs = np.ones(len(at), dtype=np.bool_), None
        if variable.key is not None and found.structs is not None:
            keys = found.structs.take(pa.array(at)).flatten()[0]
            values = pa.nulls(len(at), pa.struct(list(variable.value)))
            structs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        return DeltaRows(found.variable, numbers, deleted, structs, indexes)
