"""Call a computation batch by batch, with its state in a dictionary instead of a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from riffle_spark.process.blocks.block import Batch, BlockComputation
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.state.formats.key_codec import encode_keys

WHERE: dict[str, Any] = {"version": 7, "time_ms": 1_000, "watermark_ms": 900, "key_group": 3, "store": "totals"}


def rows_of(values: list[Any], type: pa.DataType, keys: list[Any] | None = None) -> pa.Table:
    """Return a table of values ``v`` with their keys ``k``. Without ``keys``, all values have the same key."""
    return pa.table({"k": pa.array(keys or ["a"] * len(values)), "v": pa.array(values, type)})


class KeyedComputation:
    """A computation and the state of its keys."""

    def __init__(self, compute: BlockComputation, rows: pa.Schema, key: Iterable[str] = ("k",)) -> None:
        self.compute, self.key = compute, list(key)
        self.declared = compute.declare(pa.schema([rows.field(name) for name in self.key]), rows)
        self.state: dict[bytes, dict[str, object]] = {}

    def feed(self, rows: pa.Table) -> list[dict[str, object]]:
        """Run one batch and return its output rows."""
        encoded = encode_keys([rows.column(name) for name in self.key])
        codes, first = group_keys(encoded)
        stored = encoded.take(first).to_pylist()
        state = pa.Table.from_pylist([self.state.get(key, {}) for key in stored], schema=self.declared.state)
        has_state = np.array([key in self.state for key in stored], dtype=bool)
        update = self.compute(Batch(rows, codes, rows.select(self.key).take(first), state, has_state, **WHERE))
        assert update.output.schema == self.declared.output
        assert update.state.schema == self.declared.state
        self.state.update({stored[i]: row for i, row in zip(update.changed, update.state.to_pylist(), strict=True)})
        for index in update.deleted:
            del self.state[stored[index]]
        return update.output.to_pylist()
