"""Sealing what an attempt changed: one object, a part a key-group. Knows parts and their ranges. Does not know users
or copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.messages.slot_orders import Order, Part
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.run_block import StateChanges

__all__ = ["SealedDelta", "seal"]

_OUTPUT_PART = -1


@dataclass(frozen=True, slots=True)
class SealedDelta:
    """The bytes of one delta and where its parts lie in them. Empty if nothing changed: then nothing is put."""

    name: str
    data: bytes
    parts: tuple[Part, ...]
    output: Part | None

    def put(self, objects: ObjectStore) -> None:
        """Put the object. No other attempt can have its name, so "exists" can only be this put, answered twice."""
        if self.data:
            objects.put_if_absent(self.name, self.data)


def seal(order: Order, changes: StateChanges, output: pa.Table, attempt: str) -> SealedDelta:
    """Return the delta of one attempt, output rows last if they are to be sealed too.

    Parts that one member will read lie together, else key-groups ascend: one ranged get takes all, and little else.
    """
    tables = sorted(changes.parts(), key=lambda part: (order.followed_by.get(part[0], ()), part[0]))
    if order.seal_output and output.num_rows:
        tables.append((_OUTPUT_PART, output))
    chunks: list[bytes] = []
    parts: list[Part] = []
    start = 0
    for key_group, table in tables:
        data = part_codec.encode(table)
        timer_ms = changes.timers.get(key_group)
        parts.append(Part(key_group, start, len(data), part_codec.checksum(data), table.num_rows, timer_ms))
        chunks.append(data)
        start += len(data)
    output = parts.pop() if parts and parts[-1].key_group == _OUTPUT_PART else None
    return SealedDelta(paths.delta(order.version, attempt), b"".join(chunks), tuple(parts), output)
