"""Two stores with models of their expected output and state: one store of columns, one of variables."""

from __future__ import annotations

import random
from typing import Any, Protocol

import pyarrow as pa

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.testing.committed_state import CommittedState
from tests.kit.simulated.alarms import Alarms, AlarmsOracle
from tests.kit.simulated.world import ROWS, held_by_key

__all__ = ["LOADS", "Columns", "Load", "Variables"]

STATE = pa.schema([("n", pa.int64()), ("total", pa.int64()), ("note", pa.string())])
OUTPUT = pa.schema([("k", pa.string()), *STATE])
KEYS, DRAWN = 800, 60
RowValues = dict[str, Any]


class Load(Protocol):
    """An operator and its model in plain Python."""

    operator: Operator

    def feed(self, rows: list[RowValues], now_ms: int) -> list[RowValues]:
        """Add a batch to the model and return the output rows that the sink must receive."""
        ...

    def held(self) -> object:
        """Return the whole state that the model expects."""
        ...

    def read(self, contents: CommittedState) -> object:
        """Return the state that a store holds, in the form of ``held``."""
        ...


def drawn(chance: random.Random, batch: int) -> list[RowValues]:
    """Draw a batch.

    The first batch has every key, others some keys, a few of them repeated. One row in eight deletes.
    """
    keys = chance.choices(range(KEYS), k=DRAWN) if batch else range(KEYS)
    return [{"k": f"key-{key}", "v": chance.choice([-1, *range(1, 8)]), "at": batch} for key in keys]


def noted(key: str, n: int, total: int) -> str:
    """Return a text that is derived from a key's count and sum."""
    return f"{key} {n} {total};" * 10


def _summed(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    totals = {row["k"]: (row["n"], row["total"]) for row in state.to_pylist()}
    written_rows, deleted_keys = _added(totals, rows.to_pylist())
    new = pa.Table.from_pylist(written_rows, schema=OUTPUT)
    return new, new, pa.table([pa.array(deleted_keys, pa.string())], names=["k"])


def _added(totals: dict[str, tuple[int, int]], rows: list[RowValues]) -> tuple[list[RowValues], list[str]]:
    """Add rows to the state ``held``.

    Return the rows of changed keys that still exist, and the keys that were deleted.
    """
    for row in rows:
        n, total = totals.get(row["k"], (0, 0))
        totals[row["k"]] = (n + 1, total + row["v"])
        if row["v"] < 0:
            del totals[row["k"]]
    touched = {row["k"] for row in rows}
    written_rows = [{"k": key, "n": totals[key][0], "total": totals[key][1]} for key in touched if key in totals]
    return [{**row, "note": noted(row["k"], row["n"], row["total"])} for row in written_rows], sorted(
        touched - totals.keys()
    )


class Columns:
    """A load whose state has columns: a count, a sum and a note per key. A negative value deletes the key."""

    def __init__(self) -> None:
        computed = arrow_function(_summed, state=STATE, output=OUTPUT)
        self.operator = operator_of("trials", ["k"], computed, (), ROWS)
        self._held: dict[str, tuple[int, int]] = {}

    def feed(self, rows: list[RowValues], now_ms: int) -> list[RowValues]:  # noqa: ARG002 - nothing waits
        """See ``Load``."""
        return _added(self._held, rows)[0]

    def held(self) -> object:
        """See ``Load``."""
        return {(key,): {"n": n, "total": t, "note": noted(key, n, t)} for key, (n, t) in self._held.items()}

    def read(self, contents: CommittedState) -> object:
        """See ``Load``."""
        return contents.columns()


class Variables:
    """A load whose state has the variables of ``Alarms``: a value, a list, a map and timers per key."""

    def __init__(self) -> None:
        self.operator = operator_of("trials", ["k"], Alarms(), (), ROWS)
        self._oracle = AlarmsOracle()

    def feed(self, rows: list[RowValues], now_ms: int) -> list[RowValues]:
        """See ``Load``."""
        return self._oracle.feed([(row["k"], row["v"], now_ms) for row in rows], now_ms, [now_ms])

    def held(self) -> object:
        """See ``Load``."""
        return self._oracle.state()

    def read(self, contents: CommittedState) -> object:
        """See ``Load``."""
        return held_by_key(contents.table())


LOADS: dict[str, type[Columns] | type[Variables]] = {"columns": Columns, "variables": Variables}
