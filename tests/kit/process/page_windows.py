"""The specification of an aggregate over page visits in windows, and its model in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riffle_spark import Stateful
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.stages.merged_groups import OutputMode
from riffle_spark.process.types.stage_specs import AggregateSpec, Buffer, FunctionSpec, TimeSpec

__all__ = ["FUNCTIONS", "SESSION", "TIME", "WINDOW", "WindowModel", "operator", "spec"]

TIME = pa.timestamp("us", "UTC")
WINDOW = TimeSpec("window_end", 3, "time", "window_start")
SESSION = TimeSpec("window_end", 3, "session", "window_start")
FUNCTIONS = (
    FunctionSpec("Count", (Buffer("visits", pa.int64(), "count(1): count", 1),)),
    FunctionSpec("Sum", (Buffer("seconds", pa.int64(), "sum(seconds): sum"),), options=(("evalMode", "ANSI"),)),
    FunctionSpec(
        "Average",
        (
            Buffer("mean_sum", pa.float64(), "avg(seconds): sum"),
            Buffer("mean_count", pa.int64(), "avg(seconds): count"),
        ),
        options=(("evalMode", "ANSI"),),
    ),
    FunctionSpec(
        "CollectList",
        (Buffer("seen", pa.list_(pa.field("element", pa.string(), nullable=False)), "collect_list(seen)"),),
        Buffer("seen", pa.string(), "collect_list(seen)"),
    ),
)


def spec(time: TimeSpec | None = WINDOW, functions: tuple[FunctionSpec, ...] = FUNCTIONS) -> AggregateSpec:
    """Return the specification of the aggregate by window and page."""
    keys = pa.schema([("window_start", TIME), ("window_end", TIME), ("page", pa.string())])
    return AggregateSpec("aggregate.window-page", keys, functions, time)


def operator(aggregate: AggregateSpec, compute: Computation, delay_ms: int | None = None) -> Stateful:
    """Return the operator of the aggregate. A row is late if the window of its key has ended."""
    watermark = (aggregate.time.column, f"{delay_ms} milliseconds") if aggregate.time and delay_ms is not None else None
    return Stateful("visits", aggregate.routing_key.names, compute, watermark=watermark)


@dataclass
class WindowModel:
    """The model: windows by key in a dictionary, with Spark's rules for late rows and expiry.

    A visit has a ``key`` and an ``end`` in microseconds. ``group`` returns an object with ``take(visit)`` and
    ``answer(key)``.
    """

    mode: OutputMode
    group: Callable[[], Any]
    delay_ms: int
    groups: dict[Any, tuple[int, Any]] = field(default_factory=dict)
    late_ms: int = 0
    watermark_ms: int = 0

    def batch(self, visits: Sequence[Any]) -> list[Any]:
        """Process a batch of visits and return its output."""
        touched = dict[Any, Any]()
        for visit in visits:
            if visit.end > self.late_ms * 1000:
                _, group = self.groups.setdefault(visit.key, (visit.end, self.group()))
                group.take(visit)
                touched[visit.key] = group
        answers = [group.answer(key) for key, group in touched.items()] if self.mode == "update" else []
        for key in [key for key, (end, _) in self.groups.items() if end <= self.watermark_ms * 1000]:
            _, expired = self.groups.pop(key)
            answers += [expired.answer(key)] if self.mode == "append" else []
        newest = max((visit.end // 1000 for visit in visits), default=0)
        self.late_ms, self.watermark_ms = self.watermark_ms, max(self.watermark_ms, newest - self.delay_ms)
        return answers
