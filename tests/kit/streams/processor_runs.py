"""Run processors without Spark, batch after batch, over a copy in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.process.processors.processing import Outcome, Processing
from riffle_spark.process.processors.processor import Form, InputByKey
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.spark.processors.row_form import RowForm
from riffle_spark.spark.processors.spark_processor import SparkProcessor, declare, declared_with_rows
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.process.memory_reading import MemoryReading

KEY = pa.schema([("id", pa.string())])
ROWS = pa.schema([("id", pa.string()), ("v", pa.int64())])

SEEN: list[Any] = []
"""Values that processors recorded.

Processors are copied with all their fields, as by Spark, so they cannot keep them.
"""


def see(value: Any) -> None:
    """Record a value that a processor saw."""
    SEEN.append(value)


def has_seen(value: Any) -> bool:
    """Return whether a value was recorded."""
    return value in SEEN


def seen() -> Any:
    """Remove and return the value that was recorded last."""
    return SEEN.pop()


class ScriptedProcessor(StatefulProcessor):
    """A processor whose methods call functions of a test. Each function also gets the processor."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        self.functions = functions

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See PySpark."""
        self.handle = handle
        self.functions.get("init", lambda *_: None)(self, handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """See PySpark."""
        yield from self.functions.get("rows", lambda *_: ())(self, key, rows, timerValues) or ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """See PySpark."""
        yield from self.functions.get("timer", lambda *_: ())(self, key, timerValues, expiredTimerInfo) or ()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """See PySpark."""
        self.functions.get("initial", lambda *_: None)(self, key, initialState, timerValues)

    def close(self) -> None:
        """See PySpark."""
        self.functions.get("close", lambda *_: None)(self)


class Run:
    """The batches of a processor over one key-group."""

    def __init__(
        self, processor: StatefulProcessor, output: str = "id string, n long", mode: TimeMode = "ProcessingTime",
        form: Callable[[pa.Schema], Form] = RowForm,
    ) -> None:  # fmt: skip
        SEEN.clear()
        self.processor, self.mode, self.form = processor, mode, form
        self.output = schema_of_ddl(output)
        self.declared = declare(processor, mode)
        self.schema = VariableColumns("s", KEY, self.declared.variables, indexed=mode != "None")
        self.copy = MemoryReading(self.schema)
        self.outcome: Outcome

    def batch(
        self, rows: Mapping[str, Iterable[int]] | pa.Table, *, now_ms: int = 0, watermark_ms: int | None = None,
        states: pa.Table | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Run a batch with rows by key, and return its output."""
        table = rows if isinstance(rows, pa.Table) else _table(rows)
        names = table.column("id").to_pylist() + ([] if states is None else states.column("id").to_pylist())
        keys = list(dict.fromkeys(names))
        grouped = InputByKey.of(pa.table({"id": pa.array(keys, pa.string())}), table, _codes(table, keys))
        times = Times(self.mode, now_ms, watermark_ms)
        processor = SparkProcessor(self.processor, self.declared.variables, KEY.names, times)
        processing = Processing(self.schema, declared_with_rows(self.schema), processor, self.form(self.output), times)
        processing.begin(grouped if states is None else grouped.with_states(states, _codes(states, keys)))
        self.outcome = processing.process_key_group(len(keys), self.copy.held)
        self.copy.fold(self.outcome.changes)
        output = processing.output()
        processing.end()
        return output.to_pylist()


def _table(rows: Mapping[str, Iterable[int]]) -> pa.Table:
    pairs = [(key, n) for key, numbers in rows.items() for n in numbers]
    return pa.table([[key for key, _ in pairs], [n for _, n in pairs]], schema=ROWS)


def _codes(table: pa.Table, keys: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([keys.index(key) for key in table.column("id").to_pylist()], dtype=np.int64)
