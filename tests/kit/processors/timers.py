"""Cases of processing-time timers: inactivity, alarms that rows set and list, and alarms that set the next one.

Timers are output in sorted order, because Spark lists them in the order of their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

PATIENCE_MS = 30_000
STEP_MS = 4_000
MOST_STEPS = 4


class Inactivity(Logic):
    """Reports a user without a row for half a minute. Each row moves the user's timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state and keep the handle."""
        self._handle = handle
        self._last: Any = handle.getValueState("last", "seen_ms long, visits int")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:
        """Count the visits, move the timer, and yield the number of visits."""
        now, visits = timers.getCurrentProcessingTimeInMs(), sum(1 for _ in rows)
        if self._last.exists():
            seen, before = self._last.get()
            self._handle.deleteTimer(seen + PATIENCE_MS)
            visits += before
        self._last.update((now, visits))
        self._handle.registerTimer(now + PATIENCE_MS)
        yield {"user": key[0], "what": "seen", "visits": visits, "at_ms": now}

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:
        """Yield the user, and delete the state."""
        visits = self._last.get()[1]
        self._last.clear()
        yield {
            "user": key[0],
            "what": f"gone since {due_ms}",
            "visits": visits,
            "at_ms": timers.getCurrentProcessingTimeInMs(),
        }


class Alarms(Logic):
    """Registers, deletes and lists timers, some of them in the past. It has no other state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep the handle."""
        self._handle = handle

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:
        """Register, list or delete timers as each row says."""
        now = timers.getCurrentProcessingTimeInMs()
        for row in rows:
            if row.what == "list":
                yield self._answer(key, "list")
            elif row.what == "delete_all":
                for due_ms in list(self._handle.listTimers()):
                    self._handle.deleteTimer(due_ms)
            else:
                self._handle.registerTimer(now + row.after_ms)

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:  # noqa: ARG002
        """Yield the timer that fires. The list still contains it, because it is deleted afterwards."""
        yield self._answer(key, f"fired {due_ms}")

    def _answer(self, key: tuple[Any, ...], what: str) -> dict[str, Any]:
        return {"id": key[0], "what": what, "timers": " ".join(map(str, sorted(self._handle.listTimers())))}


class Chain(Logic):
    """Counts alarms. Each alarm that fires sets the next one after the batch's time, up to ``MOST_STEPS``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the count and keep the handle."""
        self._handle = handle
        self._steps = handle.getValueState("steps", "steps int")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Reset the count and set an alarm for each row."""
        now = timers.getCurrentProcessingTimeInMs()
        for row in rows:
            self._steps.update((0,))
            self._handle.registerTimer(now + row.after_ms)
        yield from ()

    def expired(self, key: tuple[Any, ...], timers: Any, due_ms: int) -> Output:
        """Count the alarm, and set the next one or delete the count."""
        steps = (self._steps.get() or (0,))[0] + 1
        if steps < MOST_STEPS:
            self._steps.update((steps,))
            self._handle.registerTimer(timers.getCurrentProcessingTimeInMs() + STEP_MS)
        else:
            self._steps.clear()
        yield {"id": key[0], "steps": steps, "due_ms": due_ms}


def _inactivity_case() -> Case:
    chance = seeded("inactivity")
    sizes = (8, 4, 0, 3, 0, 2)
    batches = [[{"user": f"u{chance.randint(0, 6)}"} for _ in range(size)] for size in sizes]
    return Case(
        "inactivity", *forms(Inactivity), key=("user",), output="user string, what string, visits int, at_ms long",
        time_mode="ProcessingTime", batches=batches_of({"user": pa.string()}, batches), variables={"last": "value"},
        # The third batch is at the due time of the first batch's timers, the fourth 1 ms before that of the second's.
        times_ms=(100_000, 110_000, 130_000, 139_999, 140_000, 200_000), restart_after=3,
    )  # fmt: skip


def _alarms_case() -> Case:
    chance = seeded("alarms")
    doings = ["register"] * 6 + ["list"] * 2 + ["delete_all"]

    def row() -> dict[str, Any]:
        after_ms = chance.choice([-500, 0, 1, 1_000, 5_000, 5_000, 60_000])
        return {"id": chance.randint(1, 4), "what": chance.choice(doings), "after_ms": after_ms}

    fields = {"id": pa.int64(), "what": pa.string(), "after_ms": pa.int64()}
    batches = [[row() for _ in range(size)] for size in (20, 15, 0, 12, 5)]
    return Case(
        "alarms", *forms(Alarms), key=("id",), output="id long, what string, timers string",
        time_mode="ProcessingTime", batches=batches_of(fields, batches), variables={},
        times_ms=(1_000_000, 1_001_000, 1_005_999, 1_006_000, 1_080_000),
    )  # fmt: skip


def _chain_case() -> Case:
    chance = seeded("chain")
    batches = [
        [{"id": f"c{chance.randint(0, 3)}", "after_ms": chance.choice([0, 2_000, 4_000])} for _ in range(size)]
        for size in (5, 3, 0, 0, 1, 0)
    ]
    fields = {"id": pa.string(), "after_ms": pa.int64()}
    return Case(
        "chain", *forms(Chain), key=("id",), output="id string, steps int, due_ms long", time_mode="ProcessingTime",
        batches=batches_of(fields, batches), variables={"steps": "value"},
        times_ms=(50_000, 54_000, 58_000, 61_999, 66_000, 90_000),
    )  # fmt: skip


CASES = (_inactivity_case(), _alarms_case(), _chain_case())
