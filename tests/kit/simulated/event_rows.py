"""Rows with event time, operators that expire keys by a watermark, and their expected results in plain Python."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.messages.slot_orders import Watermark
from riffle_spark.process.blocks.block import Batch, Computation, Declared, Update
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from tests.kit.simulated.alarms import Alarms, AlarmsOracle
from tests.kit.simulated.world import ROWS

__all__ = ["EVENTS", "BatchTimes", "EventOracle", "drawn_events", "event_operators"]

EVENTS = pa.schema([*ROWS, ("ts", pa.timestamp("ms"))])
COUNT_ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("by", pa.int64())])
GAP_MS = 1_700
KEPT_MS = 2_300
DELAYS_MS = {"closed": 1_000, "once": 2_500, "alarms": 1_500}


@dataclass(frozen=True)
class Closed:
    """Counts the rows of a key until no row arrives for a while, then returns the count and the watermark (``by``)."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare a count and the time until which it may grow."""
        state = pa.schema([("n", pa.int64()), ("until", pa.int64())])
        return Declared(state, COUNT_ROWS, ("ts",), per_key_group=False, time_mode="EventTime", due="until")

    def __call__(self, batch: Batch) -> Update:
        """Add the rows to the counts and extend the end of their keys."""
        keys = batch.keys.num_rows
        n = np.bincount(batch.codes, minlength=keys) + pc.fill_null(batch.state["n"], 0).to_numpy()
        until = pc.fill_null(batch.state["until"], 0).to_numpy().copy()
        np.maximum.at(until, batch.codes, batch.rows["ts"].cast(pa.int64()).to_numpy() + GAP_MS)
        state = pa.table([pa.array(n), pa.array(until)], ["n", "until"])
        everything = np.arange(keys)
        return Update(_output_table(batch.keys, n, None), everything, state, everything[:0])

    def expire_keys(self, batch: Batch) -> Update:
        """Return the counts of expired keys."""
        nothing = np.arange(0)
        output = _output_table(batch.keys, batch.state["n"].to_numpy(), batch.watermark_ms)
        return Update(output, nothing, batch.state.slice(0, 0), nothing)


@dataclass(frozen=True)
class Once:
    """Returns only the first row of a key until the key expires. If ``ignores_expiry`` is set, it is a
    ``PlainExpiry``.
    """

    ignores_expiry: bool = True

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare the time at which a key expires."""
        state = pa.schema([("until", pa.int64())])
        return Declared(state, COUNT_ROWS, ("v", "ts"), per_key_group=False, time_mode="EventTime", due="until")

    def __call__(self, batch: Batch) -> Update:
        """Store the expiry of new keys and return their first rows."""
        first = np.unique(batch.codes, return_index=True)[1]
        new = np.flatnonzero(~batch.has_state)
        rows = batch.rows.take(pa.array(first[new]))
        passed = batch.keys.take(pa.array(new))
        until = pa.array(rows["ts"].cast(pa.int64()).to_numpy() + KEPT_MS)
        return Update(
            _output_table(passed, rows["v"].to_numpy(), None), new, pa.table([until], ["until"]), deleted=new[:0]
        )


def _output_table(keys: pa.Table, n: np.ndarray, by: int | None) -> pa.Table:
    return pa.table(
        [keys["k"], pa.array(n, pa.int64()), pa.repeat(pa.scalar(by, pa.int64()), len(n))], schema=COUNT_ROWS
    )


def event_operators() -> list[Operator]:
    """Return the operators: ``Closed``, ``Once`` and ``Alarms`` in event time. Each has its own watermark delay."""
    computations: dict[str, Computation] = {"closed": Closed(), "once": Once(), "alarms": Alarms("EventTime")}
    return [
        with_watermark(operator_of(store, ["k"], compute, ("at", "v", "ts"), EVENTS), Watermark("ts", DELAYS_MS[store]))
        for store, compute in computations.items()
    ]


def drawn_events(chance: random.Random, version: int, early_ms: int) -> pa.Table:
    """Draw a batch with unordered order columns and late rows, many of them within 1 ms of the watermark."""
    newest = early_ms + 1_000 * version - chance.choices([0, 2_500, 9_000], [8, 1, 1])[0]
    rows = []
    for number in range(chance.choice([0, 1, 6, 15])):
        ts = newest + 500 * chance.randrange(-8, 2) + chance.choice([0, 0, 0, -1, 1])
        rows.append((f"key-{chance.randrange(12)}", chance.choice([-1, *range(9)]), version * 1_000 + number // 3, ts))
    chance.shuffle(rows)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, EVENTS, strict=True)], schema=EVENTS)


@dataclass(frozen=True)
class BatchTimes:
    """The counts and times of a batch: late rows, fired timers, expired elements, and the watermarks of its record."""

    late_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    watermark_ms: int | None = None
    late_watermark_ms: int | None = None


class EventOracle:
    """Computes the results of ``event_operators`` with Spark's rules for watermarks.

    With ``last_pass``, each batch may be the last one of its run, so it also expires what its own rows make due.
    """

    def __init__(self, policy: str, *, last_pass: bool) -> None:
        self._choose = max if policy == "max" else min
        self._last_pass = last_pass
        self._event_times: dict[str, int] = {}
        self._watermark = self._late = 0
        self._closed: dict[str, tuple[int, int]] = {}
        self._once: dict[str, int] = {}
        self._alarms = AlarmsOracle("EventTime")
        self.times = BatchTimes()

    def feed(self, stores: Sequence[str], table: pa.Table) -> dict[str, list[dict[str, object]]]:
        """Process a batch with the operators of these stores, and return the expected output of each.

        ``times`` becomes the times of the batch.
        """
        rows = _in_order(table)
        reached = self._reached(stores, [ts for _, _, ts in rows])
        passes = sorted({self._watermark, reached}) if self._last_pass else [self._watermark]
        in_time = [row for row in rows if row[2] > self._late]
        fed = {"closed": self._feed_closed, "once": self._feed_once, "alarms": self._feed_alarms}
        outputs = dict[str, list[dict[str, object]]]()
        expired = 0
        fired = 0
        for store in stores:
            outputs[store], expired_count = fed[store](in_time, passes)
            expired = expired + expired_count * (store != "alarms")
            fired = fired + expired_count * (store == "alarms")
        late = len(rows) - len(in_time)
        self._late = reached if self._last_pass else self._watermark
        self._watermark = reached
        self.times = BatchTimes(late * len(stores), fired, expired, reached, self._late)
        return outputs

    def state(self) -> dict[str, Mapping[object, tuple[object, ...]]]:
        """Return the expected state of each store."""
        once: dict[object, tuple[object, ...]] = {key: (until,) for key, until in self._once.items()}
        return {"closed": dict(self._closed.items()), "once": once, "alarms": self._alarms.state()}

    def _reached(self, stores: Sequence[str], times: Sequence[int]) -> int:
        if times:
            self._event_times |= {store: max(*times, self._event_times.get(store, 0)) for store in stores}
        event_times = self._event_times
        return max(
            self._watermark, self._choose(event_times[s] - DELAYS_MS[s] if s in event_times else 0 for s in stores)
        )

    def _feed_closed(self, rows: Sequence[tuple[str, int, int]], passes: Sequence[int]) -> _Fed:
        for key, _, ts in rows:
            n, until = self._closed.get(key, (0, 0))
            self._closed[key] = (n + 1, max(until, ts + GAP_MS))
        touched = dict.fromkeys(key for key, _, _ in rows)
        closed_rows: list[dict[str, object]] = [{"k": key, "n": self._closed[key][0], "by": None} for key in touched]
        expired = 0
        for until_ms in passes:
            due = [key for key, (_, until) in self._closed.items() if until <= until_ms]
            closed_rows += [{"k": key, "n": self._closed.pop(key)[0], "by": until_ms} for key in due]
            expired += len(due)
        return closed_rows, expired

    def _feed_once(self, rows: Sequence[tuple[str, int, int]], passes: Sequence[int]) -> _Fed:
        once_rows: list[dict[str, object]] = []
        for key, value, ts in rows:
            if key not in self._once:
                self._once[key] = ts + KEPT_MS
                once_rows.append({"k": key, "n": value, "by": None})
        due = [key for key, until in self._once.items() if until <= passes[-1]]
        for key in due:
            del self._once[key]
        return once_rows, len(due)

    def _feed_alarms(self, rows: Sequence[tuple[str, int, int]], passes: Sequence[int]) -> _Fed:
        output = self._alarms.feed(rows, 0, passes)
        return output, self._alarms.fired


_Fed = tuple[list[dict[str, object]], int]


def _in_order(table: pa.Table) -> list[tuple[str, int, int]]:
    times = table.column("ts").cast(pa.int64())
    rows = zip(*(column.to_pylist() for column in (table["at"], table["v"], times, table["k"])), strict=True)
    return [(key, value, ts) for _, value, ts, key in sorted(rows)]
