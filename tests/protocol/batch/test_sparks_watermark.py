"""Spark's own watermark: what is late and what is due in each batch, as Spark's own aggregate has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule, Order, Watermark
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.protocol.operator import Operator, operator_of, with_late
from riffle_spark.testing import Attempt, Harness
from tests.kit.simulated.world import Crash, World

ROWS = pa.schema([("end", pa.timestamp("us", "UTC")), ("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
ENDS = LateRule("end", "keys")
Mode = Literal["update", "append", "complete"]


@dataclass(frozen=True)
class Windows:
    """A count per window and key, as a stage is: rows have the end of their window for a key."""

    store: str = "windows"
    key: tuple[str, ...] = ("end", "k")
    mode: Mode = "update"
    order_by: tuple[str, ...] = ()
    watermark: Watermark | None = None
    durable: bool = True
    per_key_group: bool = False

    @property
    def compute(self) -> Windows:
        """What is computed, which is this itself."""
        return self

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the count; windows go at their end, unless all of them are answered each time."""
        state = pa.schema([("n", pa.int64())])
        declared = Declared(state, pa.schema([*key, *state]), (), per_key_group=self.per_key_group)
        if self.mode == "complete":
            return replace(declared, whole=True)
        return replace(declared, due="end", time_mode="EventTime")

    def __call__(self, batch: Batch) -> Update:
        """Count; the keys without rows are answered as they are."""
        more = np.bincount(batch.codes, minlength=batch.keys.num_rows)
        counts = batch.state["n"].fill_null(0).to_numpy() + more
        touched = np.flatnonzero(more)
        output = self._told(batch.keys, counts)
        state = pa.table([counts[touched]], schema=batch.state.schema)
        return Update(output.slice(0, 0) if self.mode == "append" else output, touched, state, touched[:0])

    def expired(self, batch: Batch) -> Update:
        """Answer windows that end, in append mode."""
        output = self._told(batch.keys, batch.state["n"].to_numpy())
        nothing = np.empty(0, np.int64)
        return Update(output if self.mode == "append" else output.slice(0, 0), nothing, batch.state.slice(0, 0), nothing)

    def _told(self, keys: pa.Table, counts: np.ndarray) -> pa.Table:
        return keys.append_column("n", pa.array(counts, pa.int64()))


class Step(NamedTuple):
    """A batch of Spark's: its watermark, its rows (second, key), what came out (end, key, count) and how many keys were
    dropped.
    """

    watermark: int
    rows: Sequence[tuple[int, str]]
    out: Sequence[tuple[int, str, int]]
    late: int = 0


UPDATE = (
    Step(0, [(0, "a"), (40, "a")], [(10, "a", 1), (50, "a", 1)]),
    Step(30, [(1, "a"), (2, "a"), (3, "b"), (41, "a")], [(10, "a", 3), (10, "b", 1), (50, "a", 2)]),
    Step(31, [(50, "a")], [(60, "a", 1)]),
    Step(40, [], []),
)
APPEND = (
    Step(0, [(0, "a"), (40, "a")], []),
    Step(30, [(1, "a"), (2, "a"), (3, "b"), (41, "a")], [(10, "a", 3), (10, "b", 1)]),
    Step(31, [(80, "a")], []),
    Step(70, [], [(50, "a", 2)]),
)
AT_ONCE = (  # AvailableNow, windows of five seconds: batch follows batch, and the last has no rows
    Step(0, [(15, "x")], []),
    Step(5, [(0, "x")], [(5, "x", 1)]),
    Step(5, [(30, "x")], []),
    Step(20, [(58, "x")], [(20, "x", 1)]),
    Step(48, [], [(35, "x", 1)]),
)
LATE = (
    Step(0, [(40, "a")], []),
    Step(30, [(1, "a")], [(10, "a", 1)]),
    Step(31, [(1, "a"), (2, "a"), (19, "b"), (29, "a"), (30, "a")], [], late=3),
    Step(31, [(20, "c"), (21, "c")], [], late=1),
)


def rows_of(*times: tuple[int, str], length: int = 10) -> pa.Table:
    """Return rows with the ends of their windows."""
    ends = [(at - at % length + length) * 1_000_000 for at, _ in times]
    columns = [ends, [key for _, key in times], [at * 1_000_000 for at, _ in times]]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)], schema=ROWS)


def told(rows: Sequence[dict[str, object]]) -> list[tuple[int, str, int]]:
    """Return output rows as steps have them."""
    return sorted((int(row["end"].timestamp()), str(row["k"]), int(str(row["n"]))) for row in rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("mode", "steps"), [("update", UPDATE), ("append", APPEND), ("append", AT_ONCE), ("append", LATE)]
)
def test_batches_are_those_of_sparks_own_aggregate(mode: Mode, steps: Sequence[Step], restarts: bool) -> None:
    """What was seen of Spark: a window closes by its batch's watermark, and takes rows by that of the batch before."""
    with Harness(Windows(mode=mode), ROWS, late=ENDS) as query:
        for number, step in enumerate(steps):
            query.advance_watermark(step.watermark * 1000)
            query.available_now = steps is AT_ONCE
            rows = rows_of(*step.rows, length=5 if steps is AT_ONCE else 10)
            assert told(query.feed(rows)) == sorted(step.out), f"batch {number}"
            assert query.reports[-1].late_rows == step.late, f"batch {number}"
            if restarts:
                query.crash(lose_copies=number == 1)
