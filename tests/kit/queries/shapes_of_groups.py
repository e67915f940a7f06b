"""Shapes of ``applyInPandasWithState`` and ``transformWithStateInPandas``, with functions as users write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.kit.processors.both_forms import InPandas, Logic, Output, millis
from tests.kit.queries.query_shape import Batch, Frames, Shape, events

__all__ = ["SHAPES"]

InputFrames = Iterable[pd.DataFrame]
Answer = Iterator[pd.DataFrame]
Function = Callable[[Any, InputFrames, Any], Answer]

VISITS = events("0a1 1a2 2b3", "5a4 30c1", "31b2 31b2 60c5", "", "33b7 100a1 61c1", "200z1")
NO_TIME = events("0a1 1a2 2b3 3_1", "4a5 5c1 6_2", "", "7b2 8b2 9a1")
TOTALS = "k string, c long, s long"


def counted(key: tuple[Any, ...], frames: InputFrames, state: Any) -> Answer:
    """Count the rows of a key and sum their numbers."""
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count, total = count + len(frame), total + int(frame["n"].sum())
    state.update((count, total))
    yield pd.DataFrame({"k": [key[0]], "c": [count], "s": [total]})


def told_when_large(key: tuple[Any, ...], frames: InputFrames, state: Any) -> Answer:
    """Sum the numbers of a key. Return the sum and delete it as soon as it is greater than 4."""
    total = (state.get[0] if state.exists else 0) + sum(int(frame["n"].sum()) for frame in frames)
    if total > 4:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "c": [1], "s": [total]})
    else:
        state.update((total,))


def each_row(key: tuple[Any, ...], frames: InputFrames, state: Any) -> Answer:
    """Number the rows of a key, and return each row in a separate frame."""
    number = state.get[0] if state.exists else 0
    for frame in frames:
        for n in sorted(frame["n"]):
            number += 1
            yield pd.DataFrame({"k": [key[0]], "c": [number], "s": [int(n)]})
    state.update((number,))


def until_quiet(key: tuple[Any, ...], frames: InputFrames, state: Any) -> Answer:
    """Return the count and the sum of a key ten seconds after its last row."""
    if state.hasTimedOut:
        count, total, _ = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "c": [count], "s": [total]})
        return
    count, total, newest = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        count, total = count + len(frame), total + int(frame["n"].sum())
        newest = max(newest, *(millis(at.to_pydatetime()) for at in frame["at"]))
    state.update((count, total, newest))
    state.setTimeoutTimestamp(max(newest + 10_000, state.getCurrentWatermarkMs() + 1))


def mixed_state(key: tuple[Any, ...], frames: InputFrames, state: Any) -> Answer:
    """Keep values of several types, some of them null."""
    last, mean, seen = state.get if state.exists else (None, None, False)
    for frame in frames:
        last, mean = str(frame["k"].iloc[-1]) + str(len(frame)), float(frame["x"].mean())
    state.update((last if seen else None, mean, True))
    yield pd.DataFrame({"k": [key[0]], "last": [last], "mean": [mean], "seen": [seen]})


def _groups(
    name: str, function: Function, *, key: Sequence[str] = ("k",), state_schema: str = "c long, s long",
    time_out: str = "NoTimeout", batches: Sequence[Batch] = VISITS, mode: str = "update", **shape_fields: Any,
) -> Shape:  # fmt: skip
    out = shape_fields.pop("out", TOTALS)

    def build(streams: Frames) -> DataFrame:
        rows = streams.timed() if time_out == "EventTimeTimeout" else streams.events
        return rows.groupBy(*key).applyInPandasWithState(function, out, state_schema, mode, time_out)

    return Shape(f"groups_{name}", "groups", build, batches, mode, **shape_fields)


QUIET: dict[str, Any] = {"state_schema": "c long, s long, newest long", "time_out": "EventTimeTimeout"}
GROUPS = (
    _groups("count", counted, restart_after=1),
    _groups("count_over_break", counted, breaks_in=1),
    _groups("null_key", counted, batches=NO_TIME),
    _groups("forgetful", told_when_large, state_schema="s long"),
    _groups("each_row", each_row, state_schema="number long", mode="append", restart_after=2),
    _groups("mixed_state", mixed_state, state_schema="last string, mean double, seen boolean", batches=NO_TIME,
            out="k string, last string, mean double, seen boolean"),
    _groups("until_quiet", until_quiet, **QUIET),
    _groups("until_quiet_over_restart", until_quiet, restart_after=2, **QUIET),
)  # fmt: skip


class Counted(Logic):
    """Counts the rows of a key in a value."""

    def init(self, handle: Any) -> None:
        """Declare the value."""
        self._count = handle.getValueState("count", "count long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any) -> Output:  # noqa: ARG002
        """Add the rows to the count and yield it."""
        before = self._count.get()
        count = (before[0] if before is not None else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield {"k": key[0], "c": count}


class Listed(Logic):
    """Keeps the numbers of a key in a list, and the frequency of each number in a map."""

    def init(self, handle: Any) -> None:
        """Declare the list and the map."""
        self._numbers = handle.getListState("numbers", "n long")
        self._times = handle.getMapState("times", "n long", "times long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any) -> Output:  # noqa: ARG002
        """Append the numbers, count them, and yield their number and the highest frequency."""
        for row in rows:
            self._numbers.appendValue((row.n,))
            times = self._times.getValue((row.n,)) if self._times.containsKey((row.n,)) else (0,)
            self._times.updateValue((row.n,), (times[0] + 1,))
        most = max(times[0] for times in self._times.values())
        yield {"k": key[0], "c": sum(1 for _ in self._numbers.get()) * 100 + most}


class Quiet(Logic):
    """Returns the count of a key ten seconds after its last row."""

    def init(self, handle: Any) -> None:
        """Declare the count and keep the handle."""
        self._handle = handle
        self._count = handle.getValueState("count", "count long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any) -> Output:  # noqa: ARG002
        """Add the rows to the count, and replace the timer."""
        batch_rows = list(rows)
        before = self._count.get()
        self._count.update(((before[0] if before is not None else 0) + len(batch_rows),))
        for due in list(self._handle.listTimers()):
            self._handle.deleteTimer(due)
        self._handle.registerTimer(max(millis(row.at) for row in batch_rows) + 10_000)
        return iter(())

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:  # noqa: ARG002
        """Yield the count and delete it."""
        count = self._count.get()[0]
        self._count.clear()
        yield {"k": key[0], "c": count}


class Forgetful(Counted):
    """Counts the rows of a key, and starts again after three rows."""

    def rows(self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any) -> Output:
        """Add the rows to the count. If there are three or more, yield the count and delete it."""
        for output_row in super().rows(key, rows, timers):
            if output_row["c"] >= 3:
                self._count.clear()
                yield output_row


class Started(Counted):
    """Starts the count with the number from the initial state."""

    def initial(self, key: tuple[Any, ...], row: Any) -> None:  # noqa: ARG002
        """Store the number of the initial state."""
        self._count.update((row.known,))


COUNTS = "k string, c long"


def _processor(
    name: str, logic: Callable[[], Logic], *, time: str = "None", batches: Sequence[Batch] = VISITS,
    mode: str = "update", starts: bool = False, **shape_fields: Any,
) -> Shape:  # fmt: skip
    def build(streams: Frames) -> DataFrame:
        rows = streams.timed() if time == "EventTime" else streams.events
        first = streams.names().selectExpr("key AS k", "length(name) AS known").groupBy("k") if starts else None
        return rows.groupBy("k").transformWithStateInPandas(InPandas(logic()), COUNTS, mode, time, first)

    return Shape(f"processor_{name}", "processor", build, batches, mode, **shape_fields)


def _dated(streams: Frames) -> DataFrame:
    """Return windows over the output of a processor that has an event-time column."""
    out = "k string, c long, at timestamp"
    rows = streams.timed().groupBy("k")
    shape_fields = rows.transformWithStateInPandas(InPandas(Dated()), out, "append", "EventTime", None, "at")
    return shape_fields.groupBy(F.window("at", "10 seconds")).agg(F.sum("c").alias("c"))


class Dated(Counted):
    """Counts the rows of a key, and returns their newest time with the count."""

    def rows(self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any) -> Output:
        """Yield the count and the newest time of the rows."""
        batch_rows = list(rows)
        for output_row in super().rows(key, iter(batch_rows), timers):
            yield {**output_row, "at": max(row.at for row in batch_rows)}


PROCESSORS = (
    _processor("count", Counted, restart_after=1),
    _processor("count_over_break", Counted, breaks_in=2),
    _processor("forgetful", Forgetful, restart_after=2),
    _processor("lists_and_maps", Listed, restart_after=0),
    _processor("quiet", Quiet, time="EventTime"),
    _processor("initial_state", Started, starts=True, restart_after=1),
    Shape("processor_then_window", "processor", _dated, VISITS),
)

SHAPES = (*GROUPS, *PROCESSORS)
