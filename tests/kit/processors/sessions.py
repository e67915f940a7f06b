"""Cases of event-time timers: sessions, windows, and many timers per key.

Some rows are late, and some watermarks equal the due time of a timer. Timers are output in sorted order, because Spark
lists them in the order of their bytes. Times below are seconds after ``START``. The watermark delay is ``DELAY``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output, millis
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES", "START"]

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
DELAY = "5 seconds"
GAP_MS = 10_000
WINDOW_MS = 20_000
AT = pa.timestamp("us", tz="UTC")


class Sessions(Logic):
    """Keeps one open session per user. It ends if no row arrives for ``GAP_MS`` of event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state and keep the handle."""
        self._handle = handle
        self._open: Any = handle.getValueState("open", "start_ms long, last_ms long, views int")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Extend the session of the user, and move its timer to its new end."""
        for row in rows:
            at_ms = millis(row.at)
            start, last, views = self._open.get() or (at_ms, at_ms, 0)
            if views:
                self._handle.deleteTimer(last + GAP_MS)
            start, last = min(start, at_ms), max(last, at_ms)
            self._open.update((start, last, views + 1))
            self._handle.registerTimer(last + GAP_MS)
        yield from ()

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:
        """Yield the session and delete it."""
        start, last, views = self._open.get()
        self._open.clear()
        watermark = timers.getCurrentWatermarkInMs()
        yield {
            "user": key[0], "start_ms": start, "last_ms": last, "views": views, "due_ms": due_ms,
            "watermark_ms": watermark,
        }  # fmt: skip


class Windows(Logic):
    """Sums amounts in windows of a fixed size: a map has the open windows, and each has a timer at its end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state and keep the handle."""
        self._handle = handle
        self._sums: Any = handle.getMapState("sums", "start_ms long", "rows int, total double")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Add each row to its window."""
        for row in rows:
            start = millis(row.at) // WINDOW_MS * WINDOW_MS
            count, total = self._sums.getValue((start,)) or (0, 0.0)
            self._sums.updateValue((start,), (count + 1, total + row.amount))
            self._handle.registerTimer(start + WINDOW_MS)
        yield from ()

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:  # noqa: ARG002
        """Yield the window that ends at this time, and delete it."""
        start = (due_ms - WINDOW_MS,)
        count, total = self._sums.getValue(start)
        self._sums.removeKey(start)
        yield {
            "meter": key[0],
            "start_ms": start[0],
            "rows": count,
            "total": total,
            "open": len(list(self._sums.keys())),
        }


class Reminders(Logic):
    """Keeps several timers per key, which rows register repeatedly, delete and list. The output has the watermark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a list of fired timers and keep the handle."""
        self._handle = handle
        self._fired = handle.getListState("fired", "due_ms long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:
        """Register or delete a timer some seconds after the time of each row. Yield the watermark and all timers."""
        count = 0
        for row in rows:
            count += 1
            due_ms = millis(row.at) + row.after * 1000
            (self._handle.registerTimer if row.what == "register" else self._handle.deleteTimer)(due_ms)
        yield self._answer(key, f"rows:{count}", timers)

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:
        """Record and yield the timer.

        Its list still contains the timer that fires, because it is deleted afterwards.
        """
        self._fired.appendValue((due_ms,))
        yield self._answer(key, f"fired:{due_ms}", timers)

    def _answer(self, key: tuple[Any, ...], what: str, timers: Any) -> dict[str, Any]:
        return {
            "name": key[0], "room": key[1], "what": what, "watermark_ms": timers.getCurrentWatermarkInMs(),
            "timers": " ".join(map(str, sorted(self._handle.listTimers()))),
            "fired": " ".join(str(int(due)) for (due,) in self._fired.get()),
        }  # fmt: skip


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _spans(
    name: str, spans: Sequence[tuple[int, int, int]], fields: dict[str, list[Any]]
) -> list[list[dict[str, Any]]]:
    """Return a batch for each (first second, last second, rows). Its last row is exactly at the last second."""
    chance = seeded(name)

    def row(seconds: float) -> dict[str, Any]:
        return {"at": _at(seconds), **{field: chance.choice(values) for field, values in fields.items()}}

    return [[*(row(chance.randint(first, last)) for _ in range(rows - 1)), row(last)] for first, last, rows in spans]


def _sessions_case() -> Case:
    # The third batch begins 5 s before the watermark of the second: some rows are late, one equals the watermark.
    spans = [(0, 20, 12), (10, 40, 12), (25, 60, 14), (90, 92, 4), (60, 110, 10), (200, 200, 1)]
    batches = _spans("sessions", spans, {"user": [f"u{at}" for at in range(14)]})
    batches[2].append({"at": _at(35), "user": "u1"})
    output = "user string, start_ms long, last_ms long, views int, due_ms long, watermark_ms long"
    return Case(
        "sessions", *forms(Sessions), key=("user",), output=output, output_mode="append", time_mode="EventTime",
        watermark=("at", DELAY), batches=batches_of({"at": AT, "user": pa.string()}, batches),
        variables={"open": "value"}, restart_after=3,
    )  # fmt: skip


def _windows_case() -> Case:
    spans = [(0, 25, 12), (5, 65, 20), (40, 66, 8), (70, 130, 9), (131, 185, 3)]
    batches = _spans("windows", spans, {"meter": [1, 2, 3, None], "amount": [0.5, 1.25, 8.0]})
    for rows in batches:
        for row in rows:
            row["meter"] = row["meter"] and f"m{row['meter']}"
    return Case(
        "windows", *forms(Windows), key=("meter",),
        output="meter string, start_ms long, rows int, total double, open int", time_mode="EventTime",
        watermark=("at", DELAY), variables={"sums": "map"},
        batches=batches_of({"at": AT, "meter": pa.string(), "amount": pa.float64()}, batches),
    )  # fmt: skip


def _reminders_case() -> Case:
    spans = [(0, 10, 12), (11, 30, 16), (31, 32, 3), (33, 60, 10), (61, 90, 6)]
    fields: dict[str, list[Any]] = {
        "name": ["a", "b"],
        "room": [-1, 7],
        "what": ["register"] * 4 + ["delete"],
        "after": [0, 1, 5, 12, 40],
    }
    batches = _spans("reminders", spans, fields)
    types = {"at": AT, "name": pa.string(), "room": pa.int64(), "what": pa.string(), "after": pa.int64()}
    return Case(
        "reminders", *forms(Reminders), key=("name", "room"), time_mode="EventTime", watermark=("at", DELAY),
        output="name string, room long, what string, watermark_ms long, timers string, fired string",
        batches=batches_of(types, batches), variables={"fired": "list"},
    )  # fmt: skip


CASES = (_sessions_case(), _windows_case(), _reminders_case())
