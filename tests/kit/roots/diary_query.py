"""A query whose state has everything that a root can hold, and its expected state in plain Python.

``totals`` is an aggregate, ``tails`` an Arrow function that deletes keys, and ``diary`` a processor with a value, a
list, a map and event-time timers. No row is ever late: batches overlap in time by less than the watermark delay.
"""

# ruff: noqa: ARG002 - PySpark's arguments

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import (
    Stateful,
    StatefulProcessor,
    StatefulProcessorHandle,
    aggregate,
    arrow_function,
    count,
    sum_,
    transform_with_state,
)
from tests.kit.simulated.world import last_three

__all__ = ["DDL", "DELAY_MS", "ROWS", "STORES", "Oracle", "State", "as_json", "batch", "operators", "table"]

DDL = "k string, v long, seq long, at timestamp"
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("seq", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
STORES = ("totals", "tails", "diary")
DELAY_MS = 5_000
PATIENCE_MS = 10_000
START_MS = 1_767_225_600_001
_KEYS = 40
_ROWS = 14

State: TypeAlias = dict[str, dict[str, Any]]
"""The stored values by store and key, in the types of JSON."""


def batch(number: int) -> list[dict[str, Any]]:
    """Return the rows of file ``number``. A negative value deletes its key."""
    chance, rows = random.Random(f"diary/{number}"), []
    for place in range(_ROWS):
        value = chance.choice([-1, *range(8)])
        at_ms = START_MS + number * 4_000 + place * 100
        rows.append({"k": f"key-{chance.randrange(_KEYS):02d}", "v": value, "seq": number * 100 + place, "at": at_ms})
    return rows


def as_json(number: int) -> list[dict[str, Any]]:
    """Return the rows of file ``number`` in the JSON form that Spark reads."""
    return [
        {**row, "at": f"{datetime.fromtimestamp(row['at'] / 1000, timezone.utc):%FT%T.%f}Z"} for row in batch(number)
    ]


def table(numbers: Iterable[int]) -> pa.Table:
    """Return the rows of several files as one batch."""
    rows = [{**row, "at": row["at"] * 1000} for number in numbers for row in batch(number)]
    return pa.Table.from_pylist(rows, schema=ROWS)


class Diary(StatefulProcessor):
    """Keeps the sums of a key, its values, and the frequency of each value. A timer deletes the values."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a variable of each kind."""
        self.handle = handle
        self.sums: Any = handle.getValueState("sums", "rows long, total long, fired long")
        self.values = handle.getListState("values", "v long")
        self.counts = handle.getMapState("counts", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Add the rows, and set the timer ``PATIENCE_MS`` after the newest row."""
        for row in rows:
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            if row.v < 0:
                for state in (self.sums, self.values, self.counts):
                    state.clear()
                continue
            before = self.sums.get() or (0, 0, 0)
            self.sums.update((before[0] + 1, before[1] + row.v, before[2]))
            self.values.appendValue((row.v,))
            seen = self.counts.getValue((row.v,))
            self.counts.updateValue((row.v,), ((seen[0] if seen else 0) + 1,))
            self.handle.registerTimer(round(row.at.timestamp() * 1000) + PATIENCE_MS)
        yield Row(k=key[0], rows=(self.sums.get() or (0,))[0])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Count the fired timer and delete the values."""
        rows, total, fired = self.sums.get()
        self.sums.update((rows, total, fired + 1))
        self.values.clear()
        yield Row(k=key[0], rows=-rows)


def operators() -> list[Stateful]:
    """Return the three operators of the query."""
    schema = pa.schema([("last", pa.list_(pa.int64()))])
    function = arrow_function(last_three, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    return [
        Stateful("totals", "k", aggregate(rows=count(), total=sum_("v"))),
        Stateful("tails", "k", function, order_by="seq"),
        transform_with_state(
            Diary(), key="k", output="k string, rows long", time_mode="EventTime", store="diary", order_by="seq",
            watermark=("at", f"{DELAY_MS // 1000} seconds"),
        ),
    ]  # fmt: skip


class Oracle:
    """Computes the expected state in plain Python, batch by batch."""

    def __init__(self, state: State | None = None, watermark_ms: int = 0) -> None:
        self.state: State = state or {store: {} for store in STORES}
        self.watermark_ms = watermark_ms

    def feed(self, numbers: Iterable[int]) -> None:
        """Process one batch of these files' rows, and then the timers that earlier watermarks make due."""
        rows = [row for number in numbers for row in batch(number)]
        for row in rows:
            self._take(row["k"], row["v"], row["at"])
        for diary_state in self.state["diary"].values():
            if diary_state["timer"] is not None and diary_state["timer"] <= self.watermark_ms:
                diary_state.update(fired=diary_state["fired"] + 1, values=[], timer=None)
        self.watermark_ms = max([self.watermark_ms, *(row["at"] - DELAY_MS for row in rows)])

    def _take(self, key: str, value: int, at_ms: int) -> None:
        seen, total = self.state["totals"].get(key, (0, 0))
        self.state["totals"][key] = [seen + 1, total + value]
        if value < 0:
            self.state["tails"].pop(key, None)
            self.state["diary"].pop(key, None)
            return
        self.state["tails"][key] = [*self.state["tails"].get(key, []), value][-3:]
        empty: dict[str, Any] = {"rows": 0, "total": 0, "fired": 0, "values": [], "counts": {}, "timer": None}
        diary_state = self.state["diary"].setdefault(key, empty)
        diary_state["counts"][str(value)] = diary_state["counts"].get(str(value), 0) + 1
        diary_state.update(
            rows=diary_state["rows"] + 1, total=diary_state["total"] + value, values=[*diary_state["values"], value],
            timer=at_ms + PATIENCE_MS,
        )  # fmt: skip
