"""A count per window and key, as in a stage of a wrapped query. The end of its window is part of a row's key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.block import Batch, Declared, Update

ENDS = LateRule("end", "keys")
KEY = pa.schema([("end", pa.timestamp("us", "UTC")), ("k", pa.string())])
STATE = pa.schema([("n", pa.int64())])
Mode = Literal["update", "append", "complete"]


@dataclass(frozen=True)
class CountedWindows:
    """Counts rows per key.

    Append mode returns each window once, when it ends. Complete mode returns all windows per batch.
    """

    mode: Mode = "update"
    per_key_group: bool = False

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - as computations are asked
        """Declare the count. Windows expire at their end, except in complete mode."""
        declared = Declared(STATE, pa.schema([*key, *STATE]), (), per_key_group=self.per_key_group)
        if self.mode == "complete":
            return replace(declared, whole=True)
        return replace(declared, due="end", time_mode="EventTime")

    def __call__(self, batch: Batch) -> Update:
        """Add the rows to the counts. Except in append mode, return the counts of all keys of the batch."""
        row_counts = np.bincount(batch.codes, minlength=batch.keys.num_rows)
        counts = batch.state["n"].fill_null(0).to_numpy() + row_counts
        touched = np.flatnonzero(row_counts)
        output = _answered(batch.keys, counts)
        state = pa.table([counts[touched]], schema=STATE)
        return Update(output.slice(0, 0) if self.mode == "append" else output, touched, state, touched[:0])

    def expire_keys(self, batch: Batch) -> Update:
        """Delete expired windows, and return them in append mode."""
        output, nothing = _answered(batch.keys, batch.state["n"].to_numpy()), np.empty(0, np.int64)
        return Update(
            output if self.mode == "append" else output.slice(0, 0), nothing, STATE.empty_table(), deleted=nothing
        )


def _answered(keys: pa.Table, counts: npt.NDArray[Any]) -> pa.Table:
    return keys.append_column("n", pa.array(counts, pa.int64()))


def rows_of(*times: tuple[int, str], length: int = 10) -> pa.Table:
    """Return rows with the ends of their windows. ``times`` are pairs of second and key."""
    ends = [(second - second % length + length) * 1_000_000 for second, _ in times]
    columns = [ends, [key for _, key in times]]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, KEY, strict=True)], schema=KEY)


def window_counts(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, int]]:
    """Return output rows as (end in seconds, key, count), sorted."""
    return sorted((int(row["end"].timestamp()), row["k"], row["n"]) for row in rows)
