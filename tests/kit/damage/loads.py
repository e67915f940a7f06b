"""Two stores with what they must hold: one of columns, one of variables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle, transform_with_state
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.schemas.variable_kinds import DUE, TIMER, VARIABLE
from riffle_spark.testing.harness import Contents

__all__ = ["LOADS", "Columns", "Load", "Variables"]

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
STATE = pa.schema([("n", pa.int64()), ("total", pa.int64()), ("note", pa.string())])
OUTPUT = pa.schema([("k", pa.string()), *STATE])
KEYS, DRAWN = 800, 60
PATIENCE_MS = 40_000
Given = dict[str, Any]


class Load(Protocol):
    """An operator and its model. ``feed`` returns what the sink must get of a batch, ``held`` what state must be."""

    operator: Operator

    def feed(self, rows: list[Given], now_ms: int) -> list[Given]:
        """Go on by one batch."""
        ...

    def held(self) -> object:
        """Return the whole state."""
        ...

    def read(self, contents: Contents) -> object:
        """Return the same out of the store."""
        ...


def drawn(chance: random.Random, at: int) -> list[Given]:
    """Draw a batch: the first has all keys, others have some, a few of them several times; one in eight deletes."""
    keys = chance.choices(range(KEYS), k=DRAWN) if at else range(KEYS)
    return [{"k": f"key-{key}", "v": chance.choice([-1, *range(1, 8)]), "at": at} for key in keys]


def noted(key: str, n: int, total: int) -> str:
    """Return some text that goes with a count and a sum."""
    return f"{key} {n} {total};" * 10


def _summed(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    held = {row["k"]: (row["n"], row["total"]) for row in state.to_pylist()}
    kept, gone = _added(held, rows.to_pylist())
    new = pa.Table.from_pylist(kept, schema=OUTPUT)
    return new, new, pa.table([pa.array(gone, pa.string())], names=["k"])


def _added(held: dict[str, tuple[int, int]], rows: list[Given]) -> tuple[list[Given], list[str]]:
    """Add rows to what is held; return those that were touched and are there, and those that are gone."""
    for row in rows:
        n, total = held.get(row["k"], (0, 0))
        held[row["k"]] = (n + 1, total + row["v"])
        if row["v"] < 0:
            del held[row["k"]]
    touched = {row["k"] for row in rows}
    kept = [{"k": key, "n": held[key][0], "total": held[key][1]} for key in touched if key in held]
    return [{**row, "note": noted(row["k"], row["n"], row["total"])} for row in kept], sorted(touched - held.keys())


class Columns:
    """Counts and sums with a note, forgotten at a negative value."""

    def __init__(self) -> None:
        computed = arrow_function(_summed, state=STATE, output=OUTPUT)
        self.operator = operator_of("trials", ["k"], computed, (), ROWS)
        self._held: dict[str, tuple[int, int]] = {}

    def feed(self, rows: list[Given], now_ms: int) -> list[Given]:  # noqa: ARG002 - nothing waits
        """See ``Load``."""
        return _added(self._held, rows)[0]

    def held(self) -> object:
        """See ``Load``."""
        return {(key,): {"n": n, "total": t, "note": noted(key, n, t)} for key, (n, t) in self._held.items()}

    def read(self, contents: Contents) -> object:
        """See ``Load``."""
        return contents.columns()


class Tracks(StatefulProcessor):
    """A value, a list and a map of each key, told and forgotten when nothing came for a while."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare one of each kind."""
        self.handle = handle
        self.sums: Any = handle.getValueState("sums", "n long, total long, note string")
        self.seen = handle.getListState("seen", "v long")
        self.kinds = handle.getMapState("kinds", "v long", "n long, note string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add every row; a negative one forgets all that was."""
        for row in rows:
            if row.v < 0:
                self._forget()
                continue
            n, total, _ = self.sums.get() or (0, 0, "")
            self.sums.update((n + 1, total + row.v, noted(key[0], n + 1, total + row.v)))
            self.seen.appendValue((row.v,))
            times = (self.kinds.getValue((row.v,)) or (0, ""))[0] + 1
            self.kinds.updateValue((row.v,), (times, noted(key[0], row.v, times)))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        if self.sums.exists():
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + PATIENCE_MS)
        yield Row(k=key[0], told=self._told())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002
        """Tell what there was, and forget it."""
        told = f"{expiredTimerInfo.getExpiryTimeInMs()} {self._told()}"
        self._forget()
        yield Row(k=key[0], told=told)

    def _forget(self) -> None:
        self.sums.clear()
        self.seen.clear()
        self.kinds.clear()

    def _told(self) -> str:
        sums, seen = self.sums.get(), [v for (v,) in self.seen.get()]
        return repr((sums and tuple(sums), seen, sorted((k[0], *v) for k, v in self.kinds.iterator())))


class Variables:
    """A processor with a value, a list, a map and timers."""

    def __init__(self) -> None:
        declared = transform_with_state(Tracks(), key="k", output="k string, told string", time_mode="ProcessingTime")
        self.operator = operator_of(declared.store, declared.key, declared.compute, declared.order_by, ROWS)
        self._seen: dict[str, list[int]] = {}
        self._due: dict[str, int] = {}

    def feed(self, rows: list[Given], now_ms: int) -> list[Given]:
        """See ``Load``."""
        for row in rows:
            if row["v"] < 0:
                self._seen.pop(row["k"], None)
            else:
                self._seen.setdefault(row["k"], []).append(row["v"])
        touched = {row["k"] for row in rows}
        told = [{"k": key, "told": self._told(key)} for key in touched]
        for key in touched:
            self._due.pop(key, None)
        self._due |= dict.fromkeys(touched & self._seen.keys(), now_ms + PATIENCE_MS)
        due = [(at, key) for key, at in self._due.items() if at <= now_ms]
        told += [{"k": key, "told": f"{at} {self._told(key)}"} for at, key in due]
        for _, key in due:
            del self._due[key], self._seen[key]
        return told

    def _told(self, key: str) -> str:
        seen = self._seen.get(key, [])
        sums = (len(seen), sum(seen), noted(key, len(seen), sum(seen))) if seen else None
        return repr((sums, seen, sorted((v, *times) for (v,), times in self._kinds(key).items())))

    def _kinds(self, key: str) -> dict[tuple[int], tuple[int, str]]:
        seen = self._seen.get(key, [])
        return {(v,): (seen.count(v), noted(key, v, seen.count(v))) for v in seen}

    def held(self) -> object:
        """See ``Load``."""
        found: dict[object, object] = {}
        for key, seen in self._seen.items():
            found[key, "sums"] = [(len(seen), sum(seen), noted(key, len(seen), sum(seen)))]
            found[key, "seen"] = [(v,) for v in seen]
            found[key, "kinds"] = sorted((v, *times) for (v,), times in self._kinds(key).items())
        return found | {(key, TIMER): [due] for key, due in self._due.items()}

    def read(self, contents: Contents) -> object:
        """See ``Load``."""
        found: dict[object, list[object]] = {}
        for row in contents.table().to_pylist():
            element = row.get(f"__state_{row[VARIABLE]}")
            nested = element if row[VARIABLE] == "kinds" else {"value": element or {}}
            fields = (value for part in nested.values() for value in part.values()) if element else ()
            found.setdefault((row["k"], row[VARIABLE]), []).append(tuple(fields) if element else row[DUE])
        return found


LOADS: dict[str, type[Columns] | type[Variables]] = {"columns": Columns, "variables": Variables}
