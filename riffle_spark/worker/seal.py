"""Sealing what an attempt changed: one object, a part a key-group. Knows parts and their ranges. Does not know users
or copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.state import codec, paths
from riffle_spark.state.objects import ObjectStore
from riffle_spark.worker.call import Result
from riffle_spark.worker.order import Order, Part
from riffle_spark.worker.touched import Touched, spans_of

__all__ = ["Sealed", "seal"]

_OUTPUT_PART = -1


@dataclass(frozen=True, slots=True)
class Sealed:
    """The bytes of one delta and where its parts lie in them. Empty if nothing changed: then nothing is put."""

    name: str
    data: bytes
    parts: tuple[Part, ...]
    output: Part | None

    def put(self, objects: ObjectStore) -> None:
        """Put the object. No other attempt can have its name, so "exists" can only be this put, answered twice."""
        if self.data:
            objects.put_if_absent(self.name, self.data)


def seal(order: Order, touched: Touched, result: Result, attempt: str) -> Sealed:
    """Return the delta of one attempt, output rows last if they are to be sealed too.

    Parts that one member will read lie together, else key-groups ascend: one ranged get takes all, and little else.
    """
    tables = sorted(_parts(order, touched, result), key=lambda part: (order.followed_by.get(part[0], ()), part[0]))
    if order.seal_output and result.output.num_rows:
        tables.append((_OUTPUT_PART, result.output))
    chunks: list[bytes] = []
    parts: list[Part] = []
    start = 0
    for key_group, table in tables:
        data = codec.encode(table)
        parts.append(Part(key_group, start, len(data), codec.checksum(data), table.num_rows))
        chunks.append(data)
        start += len(data)
    output = parts.pop() if parts and parts[-1].key_group == _OUTPUT_PART else None
    return Sealed(paths.delta(order.version, attempt), b"".join(chunks), tuple(parts), output)


def _parts(order: Order, touched: Touched, result: Result) -> Iterator[tuple[int, pa.Table]]:
    table, indices = _changes(order, touched, result)
    for key_group, start, end in spans_of(touched.key_groups[indices]):
        yield key_group, table.slice(start, end - start)


def _changes(order: Order, touched: Touched, result: Result) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return key columns, new state and the deleted mark of every changed key, by key-group, and the keys' indices."""
    indices = np.concatenate([result.changed, result.deleted])
    state = result.state
    if len(result.deleted):
        nullable = pa.schema([field.with_nullable(True) for field in state.schema])
        gone = [pa.nulls(len(result.deleted), field.type) for field in nullable]
        state = pa.concat_tables([state.cast(nullable), pa.table(gone, schema=nullable)])
    mark = np.arange(len(indices)) >= len(result.changed)
    sort = np.argsort(indices, kind="stable")
    ordered = not len(result.deleted) and bool(np.all(np.diff(indices) > 0))
    if not ordered:
        indices, mark = indices[sort], mark[sort]
        state = state.take(sort)
    keys = touched.keys if len(indices) == touched.keys.num_rows else touched.keys.take(indices)
    columns = [*keys.columns, *state.columns, pa.array(mark)]
    return pa.table(columns, schema=order.schema.part_schema(delta=True)).combine_chunks(), indices
