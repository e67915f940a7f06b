"""A copy in memory that sessions can read and deltas can change: what the state layer does, in few words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

import pyarrow as pa

from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variable_keys import NO_DUE, due_of
from riffle_spark.state.schemas.variables import VariableColumns


class MemoryReading:
    """A key-group's state as a dictionary of stored keys; counts what is asked of it."""

    def __init__(self, schema: VariableColumns) -> None:
        self.schema = schema
        self.state: dict[bytes, bytes] = {}
        self.whole: dict[bytes, bytes] = {}
        self.asked: list[str] = []
        self._sorted: list[bytes] = []

    def fold(self, changes: pa.Table) -> None:
        """Apply a delta's part."""
        assert changes.schema.equals(self.schema.part_schema(delta=True)), changes.schema
        rows: CopyRows = self.schema.encode(changes)
        for place in rows.cleared:
            for key in [key for key in self.state if key.startswith(rows.keys[place])]:
                del self.state[key]
        for at, (key, value) in enumerate(zip(rows.keys, rows.values, strict=True)):
            if value is not None:
                self.state[key] = value
                if rows.longs and (whole := rows.longs[at]) is not None:
                    self.whole[key] = whole
            elif at not in rows.cleared:
                self.state.pop(key, None)
        self._sorted = sorted(self.state)

    def one(self, key: bytes) -> bytes | None:
        """See ``Reading``."""
        self.asked.append("one")
        return self.state.get(key)

    def many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """See ``Reading``."""
        self.asked.append("many")
        return [(key, self.state[key]) for key in sorted(keys) if key in self.state]

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``Reading``."""
        self.asked.append("under")
        return ((key, self.state[key]) for key in self._under(prefix))

    def last_under(self, prefix: bytes) -> bytes | None:
        """See ``Reading``."""
        self.asked.append("last_under")
        return max(self._under(prefix), default=None)

    def due_until(self, time_ms: int) -> Iterator[tuple[int, bytes]]:
        """See ``Reading``."""
        self.asked.append("due_until")
        dues = ((due_of(value), key) for key, value in self.state.items()) if self.schema.indexed else ()
        return iter(sorted((due, key) for due, key in dues if due != NO_DUE and due <= time_ms))

    def longs(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """See ``Reading``."""
        return {key: self.whole[key] for key in keys if key in self.whole}

    def _under(self, prefix: bytes) -> Iterator[bytes]:
        following = islice(self._sorted, bisect_left(self._sorted, prefix), None)
        return takewhile(lambda key: key.startswith(prefix), following)
