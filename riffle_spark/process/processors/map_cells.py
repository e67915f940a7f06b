"""The map states of a key-group in a batch.

Map keys are compared and ordered by their stored bytes.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from riffle_spark.process.blocks.block import StateRows
from riffle_spark.process.processors import cells
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import ElementRows, structs_of
from riffle_spark.state.schemas.variable_kinds import id_of_key


class _Entry(NamedTuple):
    """An entry of a map: the bytes of its key, its key, and its value (``None`` if it was removed)."""

    encoded_key: bytes
    key: Values
    value: Values | None


class MapCells:
    """A map variable: a mapping of tuples to tuples for the current key."""

    def __init__(self, scope: cells.Scope, declared: cells.DeclaredVariable) -> None:
        assert declared.key is not None, "a map has a key"
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._keys = declared.key
        self._stored: cells.ReadAhead[_Entry] = cells.ReadAhead(scope, declared.variable.name, self._decode)
        self._written: dict[int, dict[bytes, _Entry]] = {}
        self._cleared: set[int] = set()

    def get(self, key: object) -> Values | None:
        """Return the value of a map key of the current key, or ``None``.

        Raises ``Misfit`` if the map key does not fit its fields.
        """
        scope = self._scope
        number = scope.current_key
        encoded_key, _ = self._encode_key(key)
        written = self._written.get(number)
        if written and encoded_key in written:
            value = written[encoded_key].value
            return None if value is None else self._fields.copy(value)
        if number in self._cleared:
            return None
        stored = scope.reading.read_entry(self._variable.name, number, encoded_key, scope.now_ms)
        return None if stored is None else self._fields.from_arrow(stored)

    def contains(self, key: object) -> bool:
        """Return whether the current key's map has this map key. Raises ``Misfit`` if it does not fit its fields."""
        return self.get(key) is not None

    def update(self, key: object, value: object) -> None:
        """Set the value of a map key. Raises ``Misfit`` if key or value does not fit."""
        encoded_key, map_key = self._encode_key(key)
        entry = _Entry(encoded_key, map_key, self._fields.normalize(value))
        self._written.setdefault(self._scope.current_key, {})[encoded_key] = entry

    def remove(self, key: object) -> None:
        """Remove a map key. Raises ``Misfit`` if the key does not fit."""
        encoded_key, map_key = self._encode_key(key)
        self._written.setdefault(self._scope.current_key, {})[encoded_key] = _Entry(encoded_key, map_key, None)

    def clear(self) -> None:
        """Remove all map keys of the current key."""
        self._written.pop(self._scope.current_key, None)
        self._cleared.add(self._scope.current_key)

    def exists(self) -> bool:
        """Return whether the current key's map has any map key."""
        number = self._scope.current_key
        if not self._written.get(number):
            return number not in self._cleared and self._stored.has_any(number)
        return any(True for _ in self._iterate_entries())

    def items(self) -> Iterator[tuple[Values, Values]]:
        """Return an iterator over the map keys and values of the current key."""
        copy_key = self._keys.copy
        copy_value = self._fields.copy
        return (
            (copy_key(entry.key), copy_value(entry.value))
            for entry in self._iterate_entries()
            if entry.value is not None
        )

    def keys(self) -> Iterator[Values]:
        """Return an iterator over the map keys of the current key."""
        return (self._keys.copy(entry.key) for entry in self._iterate_entries())

    def values(self) -> Iterator[Values]:
        """Return an iterator over the values of the current key's map."""
        return (self._fields.copy(entry.value) for entry in self._iterate_entries() if entry.value is not None)

    def is_replaced(self, number: int, element: bytes) -> bool:
        """Return whether the stored entry (``element``: its encoded map key) of the key with this number was
        overwritten or removed in this batch.
        """
        return number in self._cleared or element in self._written.get(number, ())

    def earliest_ms(self) -> int | None:
        """Return when the first written entry expires; ``None`` if none does."""
        is_due = any(entry.value is not None for written in self._written.values() for entry in written.values())
        return self._scope.due_ms(self._variable.ttl_ms) if is_due else None

    def changes(self) -> list[cells.DeltaRows]:
        """Return the written entries and the cleared keys of the batch as rows of the delta."""
        written = [(number, entry) for number, entries in sorted(self._written.items()) for entry in entries.values()]
        updated = [(number, entry) for number, entry in written if entry.value is not None]
        removed = [(number, entry) for number, entry in written if entry.value is None]
        cleared = sorted(self._cleared)
        count = len(written) + len(cleared)
        if not count:
            return []
        structs = self._make_structs([entry for _, entry in updated], [entry for _, entry in removed])
        structs = cells.append_nulls(structs, len(cleared))
        numbers = [number for number, _ in updated + removed] + cleared
        dues = self._scope.due_column(self._variable.ttl_ms, count)
        deleted = cells.mask_last(count, len(removed) + len(cleared))
        return [cells.DeltaRows(self._variable.name, numbers, deleted, structs, dues=dues)]

    def count_rows(self) -> StateRows:
        """Return how many entries the batch added, wrote and removed."""
        reading = self._scope.reading
        written = [(number, entry) for number, entries in self._written.items() for entry in entries.values()]
        numbers = np.array([number for number, _ in written], np.int64)
        has_value = np.array([entry.value is not None for _, entry in written], np.bool_)
        cleared = np.array(sorted(self._cleared), np.int64)
        stored = ~np.isin(numbers, cleared)
        places = np.flatnonzero(stored)
        ids = np.array([id_of_key(written[place][1].encoded_key) for place in places.tolist()], np.int64)
        stored[places] = reading.are_stored(self._variable.name, numbers[places], ids)
        removed = reading.count_stored(self._variable.name, cleared) if len(cleared) else 0
        counts = (has_value & ~stored, has_value, ~has_value & stored)
        return StateRows(*(int(np.count_nonzero(mask)) for mask in counts)).plus(StateRows(removed=removed))

    def _make_structs(self, updated: list[_Entry], removed: list[_Entry]) -> pa.StructArray:
        """Return entries as structs of map key and value. Removed entries have a null value."""
        keys = self._keys.structs([entry.key for entry in updated + removed])
        values = self._fields.structs([entry.value for entry in updated if entry.value is not None])
        values = cells.append_nulls(values, len(removed))
        return pa.StructArray.from_arrays([keys, values], names=["key", "value"])

    def _encode_key(self, key: object) -> tuple[bytes, Values]:
        """Return a map key as bytes, and the map key as it reads back.

        Raises ``Misfit`` if it does not fit its fields.
        """
        map_key = self._keys.normalize(key)
        return self._variable.encode_key(self._keys.to_arrow(map_key)), map_key

    def _iterate_entries(self) -> Iterator[_Entry]:
        """Return an iterator over the current key's entries, stored and written, in the order of their encoded map
        keys.
        """
        number = self._scope.current_key
        written = dict(self._written.get(number, {}))
        stored: Iterable[_Entry] = () if number in self._cleared else self._stored.of(number)
        if not written:
            return iter(stored)
        unchanged = (entry for entry in stored if entry.encoded_key not in written)
        updated = sorted((entry for entry in written.values() if entry.value is not None), key=_encoded_key)
        return heapq.merge(unchanged, updated, key=_encoded_key)

    def _decode(self, rows: ElementRows, names: pa.Array | None) -> Iterable[_Entry]:
        """Return stored rows as entries. ``names`` are their encoded map keys."""
        assert names is not None, "entries of a map have keys"
        structs = rows.take_column(structs_of)
        keys = self._keys.tuples(self._variable.keys(structs))
        values = self._fields.tuples(self._variable.values(structs))
        return map(_Entry, names.to_pylist(), keys, values)


def _encoded_key(entry: _Entry) -> bytes:
    """Return an entry's encoded map key, to sort by it."""
    return entry.encoded_key
