"""The timers of a key-group in a batch, and the search for due timers and expired elements."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from riffle_spark.process.processors.cells import KEYS_MAX, DeltaRows, ReadAhead, Scope
from riffle_spark.state.copies.reading import DueElements
from riffle_spark.state.copies.run import Hashes, Indices
from riffle_spark.state.schemas.variable_kinds import TIMER, encoded_keys

_WINDOW_GROWTH: Final = 8


class Timers:
    """The timers of the current key, each time at most once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._stored: ReadAhead[int] = ReadAhead(scope, TIMER, lambda rows, _: rows.ids.tolist(), KEYS_MAX)
        self._changed: dict[int, dict[int, bool]] = {}

    def register(self, due_ms: int) -> None:
        """Register a timer. Registering it twice has no effect."""
        self._changed.setdefault(self._scope.current_key, {})[due_ms] = True

    def delete(self, due_ms: int) -> None:
        """Delete a timer, if it exists."""
        self._changed.setdefault(self._scope.current_key, {})[due_ms] = False

    def list(self) -> Iterator[int]:
        """Return an iterator over the current key's timers, in order of time."""
        number = self._scope.current_key
        dues = set(self._stored.of(number))
        for due_ms, is_registered in self._changed.get(number, {}).items():
            (dues.add if is_registered else dues.discard)(due_ms)
        return iter(sorted(dues))

    def is_changed(self, number: int, due_ms: int) -> bool:
        """Return whether the timer of the key with this number at ``due_ms`` was registered or deleted in this
        batch.
        """
        return due_ms in self._changed.get(number, ())

    def registered_timers(self) -> Iterator[tuple[int, int]]:
        """Yield (due time, key number) of the timers that were registered in this batch and not deleted since."""
        for number, changed in self._changed.items():
            for due_ms, is_registered in changed.items():
                if is_registered:
                    yield due_ms, number

    def earliest_ms(self) -> int | None:
        """Return when the first registered timer is due; ``None`` if there is none."""
        return min((due_ms for due_ms, _ in self.registered_timers()), default=None)

    def changes(self) -> Iterable[DeltaRows]:
        """Return the registered and deleted timers as rows of the delta."""
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
    """The cells of a variable."""

    def is_replaced(self, number: int, element: bytes) -> bool:
        """Return whether the stored element of the key with this number was overwritten or removed in this batch.

        ``element`` is a map's encoded map key.
        """
        ...


class DueTimers:
    """Finds due timers and expired elements in the copy.

    ``keys`` returns the session's keys from a number on. ``add_keys`` adds keys, with their hashes, to the session.
    """

    def __init__(
        self,
        scope: Scope,
        timers: Timers,
        keys: Callable[[int], pa.Table],
        add_keys: Callable[[pa.Table, Hashes], None],
    ) -> None:
        """Prepare to search the copy of ``scope``. ``timers`` holds the timers of this batch. Nothing is read yet."""
        self._scope = scope
        self._timers = timers
        self._keys = keys
        self._add_keys = add_keys
        self._from_ms = scope.reading.first_ms
        self._expired_elements: list[DueElements] = []
        self._encoded: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def timers(self, until_ms: int) -> list[tuple[int, int]]:
        """Return (due time, key number) of each timer, stored or registered, that is due at or before ``until_ms``, in
        order of time, then of key.
        """
        due: set[tuple[int, int]] = set()
        for rows in self._read_until(until_ms):
            if rows.variable == TIMER:
                pairs = zip(rows.due_ms.tolist(), self._find_key_numbers(rows), strict=True)
                due.update((due_ms, number) for due_ms, number in pairs if not self._timers.is_changed(number, due_ms))
        due |= {(due_ms, number) for due_ms, number in self._timers.registered_timers() if due_ms <= until_ms}
        self._number_new_keys()
        return sorted(due, key=lambda timer: (timer[0], self._encoded[timer[1]]))

    def elements(self, cells: Mapping[str, Replaceable]) -> list[DeltaRows]:
        """Return rows of the delta that delete all expired elements, except those written in this batch."""
        self._read_until(self._scope.now_ms)
        pieces = []
        for rows in self._expired_elements:
            variable_cells = cells[rows.variable]
            elements = zip(self._find_key_numbers(rows), self._encode_map_keys(rows), strict=True)
            removed = [
                (index, number)
                for index, (number, map_key) in enumerate(elements)
                if not variable_cells.is_replaced(number, map_key)
            ]
            if removed:
                indices = np.array([index for index, _ in removed])
                pieces.append(self._make_deletions(rows, [number for _, number in removed], indices))
        return pieces

    def next_ms(self, cells: Mapping[str, Replaceable]) -> int | None:
        """Return the first due time of the stored timers and elements that this batch did not change; ``None`` without
        any.
        """
        from_ms = self._from_ms
        count = 1
        reading = self._scope.reading
        while (until_ms := reading.find_due_time(from_ms, count)) is not None:
            unchanged = (
                ms
                for rows in reading.find_due_elements(from_ms, until_ms)
                for ms in self._unchanged_due_ms(rows, cells)
            )
            first_ms = min(unchanged, default=None)
            if first_ms is not None:
                return first_ms
            from_ms = until_ms + 1
            count *= _WINDOW_GROWTH
        return None

    def _unchanged_due_ms(self, rows: DueElements, cells: Mapping[str, Replaceable]) -> Iterator[int]:
        """Yield the due time of each row that was not changed in this batch."""
        self._number_new_keys()
        encoded_keys_of_rows = self._scope.schema.encoded(rows.keys).to_pylist()
        for due_ms, key, map_key in zip(
            rows.due_ms.tolist(), encoded_keys_of_rows, self._encode_map_keys(rows), strict=True
        ):
            number = self._numbers.get(key, -1)
            if rows.variable == TIMER:
                is_changed = self._timers.is_changed(number, due_ms)
            else:
                is_changed = cells[rows.variable].is_replaced(number, map_key)
            if not is_changed:
                yield due_ms

    def _read_until(self, until_ms: int) -> list[DueElements]:
        """Read the rows that are due after the last read time and until ``until_ms``, and return them.

        Expired elements are also kept for ``elements``.
        """
        if until_ms < self._from_ms:
            return []
        due = self._scope.reading.find_due_elements(self._from_ms, until_ms)
        self._from_ms = until_ms + 1
        self._expired_elements += [rows for rows in due if rows.variable != TIMER]
        return due

    def _number_new_keys(self) -> None:
        """Encode and number the keys that were added to the session since the last call."""
        start = len(self._encoded)
        if start < self._scope.key_count:
            self._encoded += self._scope.schema.encoded(self._keys(start)).to_pylist()
            self._numbers.update({key: number for number, key in enumerate(self._encoded[start:], start)})

    def _find_key_numbers(self, rows: DueElements) -> list[int]:
        """Return the key number of each row. Keys that are not in the session are added to it."""
        self._number_new_keys()
        encoded = self._scope.schema.encoded(rows.keys).to_pylist()
        new = {key: index for index, key in enumerate(encoded) if key not in self._numbers}
        if new:
            places = np.array(list(new.values()))
            self._add_keys(rows.keys.take(pa.array(places)), rows.hashes[places])
            self._number_new_keys()
        return [self._numbers[key] for key in encoded]

    def _encode_map_keys(self, rows: DueElements) -> list[bytes]:
        """Return the encoded map key of each row; empty for variables that are not maps."""
        if rows.variable == TIMER or self._scope.schema.by_name[rows.variable].key is None:
            return [b""] * len(rows.ids)
        map_keys: list[bytes] = encoded_keys(rows.structs).to_pylist()
        return map_keys

    def _make_deletions(self, rows: DueElements, numbers: list[int], indices: Indices) -> DeltaRows:
        """Return rows of the delta that delete the elements at ``indices`` of ``rows``. ``numbers`` are their keys."""
        variable = self._scope.schema.by_name[rows.variable]
        indexes = pa.array(rows.ids[indices]) if variable.kind == "list" else None
        deleted = np.ones(len(indices), dtype=np.bool_)
        structs = None
        if variable.key is not None and rows.structs is not None:
            keys = rows.structs.take(pa.array(indices)).flatten()[0]
            values = pa.nulls(len(indices), pa.struct(list(variable.value)))
            structs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
        return DeltaRows(rows.variable, numbers, deleted, structs, indexes)
