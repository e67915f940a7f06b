"""A processor with timers and values with a TTL, and its expected results in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.process.blocks.block import Declared
from riffle_spark.process.processors.cells import declare_variables
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.processors.processor import Key
from riffle_spark.process.processors.session import Session
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["Alarms", "AlarmsOracle"]

N = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("due", pa.int64()), ("held", pa.string())])
LIVES_MS = {"last": 1_500, "recent": 2_000, "marks": 2_500}
AFTER_MS = (0, 1_000, 2_000, 5_000, 2_999, 3_001, 4_000, 6_000, 1_001)
"""The delay of a row's timer, by the value of the row.

Timers are due at once, at the time of a later batch, or a moment before or after it.
"""
MARKS = 3


@dataclass(frozen=True)
class Alarms:
    """Sums values and registers a timer for each row. A negative value deletes the key and its timers.

    A timer returns the state, halves the sum and registers the next timer. Rows need a column ``v`` and, for event
    time, ``ts``.
    """

    mode: TimeMode = "ProcessingTime"

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare a sum without a TTL, and a value, a list and a map, which have a TTL in processing time."""
        lives = LIVES_MS if self.mode == "ProcessingTime" else dict.fromkeys(LIVES_MS)
        variables = (
            Variable("sum", "value", N),
            Variable("last", "value", N, ttl_ms=lives["last"]),
            Variable("recent", "list", N, ttl_ms=lives["recent"]),
            Variable("marks", "map", N, pa.schema([("mark", pa.int64())]), lives["marks"]),
        )
        columns = ("v", "ts") if self.mode == "EventTime" else ("v",)
        return Declared(pa.schema([]), OUTPUT, columns, False, time_mode=self.mode, variables=variables)

    def make_processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """See ``ProcessorComputation``."""
        now_ms = times.now_ms if self.mode == "ProcessingTime" else None
        return Processing(schema, declare_variables(schema), _AlarmProcessor(), _Values(now_ms), times, where=where)


class _AlarmProcessor:
    """The ``Processor`` of ``Alarms`` for the keys of one slot."""

    def begin(self) -> None:
        pass

    def set_session(self, session: Session) -> None:
        self._cells: Mapping[str, Any] = session.cells
        self._timers = session.timers

    def initial(self, key: Key, state: object) -> None:  # noqa: ARG002 - the session is at the key
        assert isinstance(state, int)
        self._cells["sum"].update((_number(self._cells["sum"].get()) + state,))

    def set_watermark(self, watermark_ms: int | None) -> None:
        pass

    def rows(self, key: Key, rows: Iterator[Any]) -> Iterable[object]:
        cells = self._cells
        for value, now_ms in rows:
            if value < 0:
                for due_ms in list(self._timers.list()):
                    self._timers.delete(due_ms)
                for cell in cells.values():
                    cell.clear()
                continue
            mark = (value % MARKS,)
            cells["sum"].update((_number(cells["sum"].get()) + value,))
            cells["last"].update((value,))
            cells["recent"].append((value,))
            cells["marks"].update(mark, (_number(cells["marks"].get(mark)) + 1,))
            self._timers.register(now_ms + AFTER_MS[value])
        yield self._output_row(key, -1)

    def expired(self, key: Key, due_ms: int) -> Iterable[object]:
        yield self._output_row(key, due_ms)
        total = self._cells["sum"]
        half = _number(total.get()) // 2
        if half:
            total.update((half,))
            self._timers.register(due_ms + 1_000)
        else:
            total.clear()

    def end(self) -> None:
        pass

    def _output_row(self, key: Key, due_ms: int) -> dict[str, object]:
        cells = self._cells
        recent = [n for (n,) in cells["recent"].get()]
        marks = sorted((m, n) for (m,), (n,) in cells["marks"].items())
        values = cells["sum"].get(), cells["last"].get(), recent, marks
        return {"k": key[0], "due": due_ms, "held": repr(values)}


def _number(values: tuple[int] | None) -> int:
    return values[0] if values else 0


class _Values:
    """A ``Form`` whose rows are pairs of the value and the time: the time of the batch, or that of the row."""

    def __init__(self, now_ms: int | None) -> None:
        self._now_ms = now_ms
        self._output_rows: list[Any] = []

    def keys(self, keys: pa.Table) -> Iterable[Key]:
        return zip(*(column.to_pylist() for column in keys.columns), strict=True)

    def rows(self, rows: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        values = rows.column("v").to_pylist()
        now_ms = self._now_ms
        times = rows.column("ts").cast(pa.int64()).to_pylist() if now_ms is None else [now_ms] * len(values)
        pairs = list(zip(values, times, strict=True))
        return (iter(pairs[start:end]) for start, end in pairwise(positions))

    def states(self, states: pa.Table, positions: Sequence[int]) -> Iterator[Iterator[object]]:
        values = states.column("n").to_pylist()
        return (iter(values[start:end]) for start, end in pairwise(positions))

    def collect(self, output: Iterable[object]) -> None:
        self._output_rows.extend(output)

    def output(self) -> pa.Table:
        recorded = self._output_rows
        self._output_rows = []
        return pa.Table.from_pylist(recorded, schema=OUTPUT)


class AlarmsOracle:
    """Computes the expected state and output of ``Alarms``.

    ``held`` has each value and its expiry time by key, variable and name. ``timers`` are pairs of time and key.
    """

    def __init__(self, mode: TimeMode = "ProcessingTime") -> None:
        self._lives = LIVES_MS if mode == "ProcessingTime" else {}
        self.held: dict[str, dict[tuple[str, int], tuple[int, int | None]]] = {}
        self.timers: set[tuple[int, str]] = set()
        self._count = 0
        self.fired = self.expired = 0

    def feed(self, rows: Iterable[tuple[str, int, int]], now_ms: int, passes: Sequence[int]) -> list[dict[str, object]]:
        """Process rows (key, value, time) in their order, then the timers of each pass, and return the output.

        ``fired`` and ``expired`` become the counts of this batch.
        """
        touched: dict[str, None] = {}
        for key, value, row_ms in rows:
            touched[key] = None
            self._row(key, value, row_ms, now_ms)
        outputs = [self._output_row(key, -1, now_ms) for key in touched]
        self.fired = 0
        for until_ms in passes:
            for due_ms, key in sorted(timer for timer in self.timers if timer[0] <= until_ms):
                outputs.append(self._output_row(key, due_ms, now_ms))
                self._fire(key, due_ms)
        expired = [
            (key, name)
            for key, variables in self.held.items()
            for name, (_, due_ms) in variables.items()
            if due_ms is not None and due_ms <= now_ms
        ]
        for key, name in expired:
            del self.held[key][name]
        self.expired = len(expired)
        return outputs

    def give(self, initial: Iterable[tuple[str, int]]) -> None:
        """Add an initial state of pairs (key, sum), which precedes the rows of a batch."""
        for key, n in initial:
            variables = self.held.setdefault(key, {})
            variables["sum", 0] = (variables.get(("sum", 0), (0, None))[0] + n, None)

    def state(self) -> dict[object, tuple[object, ...]]:
        """Return the expected state in the form of ``held_by_key``."""
        contents: dict[object, list[object]] = {key: [] for key, variables in self.held.items() if variables}
        for key, variables in self.held.items():
            for (variable, name), (n, due_ms) in sorted(variables.items()):
                value = {"key": {"mark": name}, "value": {"n": n}} if variable == "marks" else {"n": n}
                contents[key].append((variable, due_ms, value))
        for due_ms, key in self.timers:
            contents.setdefault(key, []).append((TIMER, due_ms, None))
        return {key: tuple(sorted(elements, key=repr)) for key, elements in contents.items()}

    def _row(self, key: str, value: int, row_ms: int, now_ms: int) -> None:
        variables = self.held.setdefault(key, {})
        if value < 0:
            variables.clear()
            self.timers = {timer for timer in self.timers if timer[1] != key}
            return
        dues = {name: now_ms + lives for name, lives in self._lives.items()}
        mark = ("marks", value % MARKS)
        self._count += 1
        variables["sum", 0] = (self._visible_values(key, now_ms).get(("sum", 0), 0) + value, None)
        variables[mark] = (self._visible_values(key, now_ms).get(mark, 0) + 1, dues.get("marks"))
        variables["last", 0] = (value, dues.get("last"))
        variables["recent", self._count] = (value, dues.get("recent"))
        self.timers.add((row_ms + AFTER_MS[value], key))

    def _fire(self, key: str, due_ms: int) -> None:
        self.fired += 1
        half = self.held.get(key, {}).pop(("sum", 0), (0, None))[0] // 2
        if half:
            self.held[key]["sum", 0] = (half, None)
            self.timers.add((due_ms + 1_000, key))
        self.timers.discard((due_ms, key))

    def _visible_values(self, key: str, now_ms: int) -> dict[tuple[str, int], int]:
        variables = self.held.get(key, {})
        return {name: n for name, (n, due_ms) in sorted(variables.items()) if due_ms is None or due_ms > now_ms}

    def _output_row(self, key: str, due_ms: int, now_ms: int) -> dict[str, object]:
        visible = self._visible_values(key, now_ms)
        values = {name: (visible[name, 0],) if (name, 0) in visible else None for name in ("sum", "last")}
        recent = [n for (variable, _), n in visible.items() if variable == "recent"]
        marks = [(mark, n) for (variable, mark), n in visible.items() if variable == "marks"]
        return {"k": key, "due": due_ms, "held": repr((values["sum"], values["last"], recent, marks))}
