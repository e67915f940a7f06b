"""Map states of one key-group in one batch. Knows what was written under which key of a map. Does not know a user.

Keys of a map are told apart, and come in the order, by their stored bytes.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from riffle_spark.process.processors import cells
from riffle_spark.process.types.fields import Values
from riffle_spark.state.copies.elements import ElementRows, structs_of

__all__ = ["MapCells"]


class _Entry(NamedTuple):
    """One entry of a map: its key's bytes and fields, and its value, ``None`` for one that was removed."""

    element: bytes
    key: Values
    value: Values | None


class MapCells:
    """One map variable: tuples by tuples, of the key where the scope is at."""

    def __init__(self, scope: cells.Scope, declared: cells.DeclaredVariable) -> None:
        assert declared.key is not None, "a map has a key"
        self._scope = scope
        self._variable = declared.variable
        self._fields = declared.value
        self._keys = declared.key
        self._stored: cells.ReadAhead[_Entry] = cells.ReadAhead(scope, declared.variable.name, self._decoded)
        self._written: dict[int, dict[bytes, _Entry]] = {}
        self._cleared: set[int] = set()

    def get(self, key: object) -> Values | None:
        """Return the value of a key, ``None`` if there is none. Raises ``Misfit`` for what is no key."""
        at = self._scope.at
        element, _ = self._element(key)
        written = self._written.get(at)
        if written and element in written:
            value = written[element].value
            return None if value is None else self._fields.copied(value)
        if at in self._cleared:
            return None
        scope = self._scope
        stored = scope.reading.entry(self._variable.name, at, element, scope.now_ms)
        return None if stored is None else self._fields.seen(stored)

    def contains(self, key: object) -> bool:
        """Tell whether there is a value of this key."""
        return self.get(key) is not None

    def update(self, key: object, value: object) -> None:
        """Set the value of a key. Raises ``Misfit`` for what does not fit."""
        element, taken = self._element(key)
        self._written.setdefault(self._scope.at, {})[element] = _Entry(element, taken, self._fields.take(value))

    def remove(self, key: object) -> None:
        """Remove a key. Raises ``Misfit`` for what is no key."""
        element, taken = self._element(key)
        self._written.setdefault(self._scope.at, {})[element] = _Entry(element, taken, None)

    def clear(self) -> None:
        """Remove all keys."""
        self._written.pop(self._scope.at, None)
        self._cleared.add(self._scope.at)

    def exists(self) -> bool:
        """Tell whether there is any key."""
        at = self._scope.at
        if not self._written.get(at):
            return at not in self._cleared and self._stored.has_any(at)
        return any(True for _ in self._entries())

    def items(self) -> Iterator[tuple[Values, Values]]:
        """Return an iterator over the keys and values that there are now."""
        key, value = self._keys.copied, self._fields.copied
        return ((key(entry.key), value(entry.value)) for entry in self._entries() if entry.value is not None)

    def keys(self) -> Iterator[Values]:
        """Return an iterator over the keys that there are now."""
        return (self._keys.copied(entry.key) for entry in self._entries())

    def values(self) -> Iterator[Values]:
        """Return an iterator over the values that there are now."""
        return (self._fields.copied(entry.value) for entry in self._entries() if entry.value is not None)

    def is_replaced(self, number: int, element: bytes) -> bool:
        """Tell whether what the store has of this element counts no more."""
        return number in self._cleared or element in self._written.get(number, ())

    def earliest_ms(self) -> int | None:
        """Return when the first of what was written expires."""
        is_due = any(entry.value is not None for written in self._written.values() for entry in written.values())
        return self._scope.due_ms(self._variable.ttl_ms) if is_due else None

    def changes(self) -> list[cells.DeltaRows]:
        """Return what was written."""
        written = [(number, entry) for number, entries in sorted(self._written.items()) for entry in entries.values()]
        put = [(number, entry) for number, entry in written if entry.value is not None]
        removed = [(number, entry) for number, entry in written if entry.value is None]
        cleared = sorted(self._cleared)
        count = len(written) + len(cleared)
        if not count:
            return []
        structs = self.entries([entry for _, entry in put], [entry for _, entry in removed])
        structs = pa.concat_arrays([structs, pa.nulls(len(cleared), structs.type)]) if cleared else structs
        numbers = [number for number, _ in put + removed] + cleared
        due = self._scope.due_ms(self._variable.ttl_ms)
        dues = None if due is None else pa.array(np.full(count, due))
        deleted = cells.last_are_deleted(count, len(removed) + len(cleared))
        return [cells.DeltaRows(self._variable.name, numbers, deleted, structs, dues=dues)]

    def entries(self, put: list[_Entry], removed: list[_Entry]) -> pa.StructArray:
        """Return entries as structs of key and value; removed ones have no value."""
        keys = self._keys.structs([entry.key for entry in put + removed])
        values = self._fields.structs([entry.value for entry in put if entry.value is not None])
        values = pa.concat_arrays([values, pa.nulls(len(removed), values.type)]) if removed else values
        return pa.StructArray.from_arrays([keys, values], names=["key", "value"])

    def _element(self, key: object) -> tuple[bytes, Values]:
        taken = self._keys.take(key)
        return self._variable.encode_key(self._keys.arrows(taken)), taken

    def _entries(self) -> Iterator[_Entry]:
        at = self._scope.at
        written = dict(self._written.get(at, {}))
        stored: Iterable[_Entry] = () if at in self._cleared else self._stored.of(at)
        if not written:
            return iter(stored)
        kept = (entry for entry in stored if entry.element not in written)
        put = sorted((entry for entry in written.values() if entry.value is not None), key=lambda entry: entry.element)
        return heapq.merge(kept, put, key=lambda entry: entry.element)

    def _decoded(self, rows: ElementRows, names: pa.Array | None) -> Iterable[_Entry]:
        assert names is not None, "entries of a map have keys"
        structs = rows.column(structs_of)
        keys, values = (
            fields.tuples(table)
            for fields, table in (
                (self._keys, self._variable.keys(structs)),
                (self._fields, self._variable.values(structs)),
            )
        )
        return map(_Entry, names.to_pylist(), keys, values)
