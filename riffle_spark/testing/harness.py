"""One operator, fed by a test. Knows the driver, its executors and its log. Does not know Spark.

    with Harness(transform_with_state(Visits(), key="user", output="user string, visits long"), schema) as visits:
        assert visits.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 1}]
        visits.crash()
        assert visits.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 2}]

Everything but Spark is real: routing, local copies, deltas, the log, snapshots. State lies in memory and below a folder
that goes with the harness.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.compute import Compute
from riffle_spark.process.keyed import Keyed
from riffle_spark.protocol.driver import Driver, Surroundings
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.protocol.ports import Delivery, Incoming
from riffle_spark.protocol.report import BatchReport
from riffle_spark.settings import Settings
from riffle_spark.state.fold import Keeper
from riffle_spark.state.folder import claim
from riffle_spark.state.log import Log
from riffle_spark.state.memory import MemoryStore
from riffle_spark.state.parts import Reader
from riffle_spark.state.variables import DUE, TIMER, VARIABLE, VariablesSchema
from riffle_spark.testing.simulation import (
    Attempt,
    InlineBackground,
    ManualClock,
    SimCluster,
    SimSink,
    SimWork,
    home_of,
)
from riffle_spark.worker.order import Watermark

__all__ = ["Aborted", "Harness"]

Row = Mapping[str, object]


class Declared(Protocol):
    """What a harness needs of an operator; ``riffle_spark.Stateful`` has it."""

    store: str
    key: tuple[str, ...]
    compute: Compute | Keyed
    order_by: tuple[str, ...]
    watermark: Watermark | None


class Aborted(Exception):
    """The source broke off in the middle of a batch, as ``abort`` was told to have it."""


class Harness:
    """Feeds one operator; a context manager. ``reports`` holds the batches' reports, ``now_ms`` the time of the next.

    ``input`` is the schema of the rows, ``executors`` how many there are. Nothing passes by itself: ``advance`` lets
    time pass. Without a watermark column, event time is what ``watermark_ms`` is set to.
    """

    def __init__(
        self, operator: Declared, input: pa.Schema, *, executors: int = 2, now_ms: int = 1_700_000_000_000,
        initial: pa.Table | None = None, **settings: object,
    ) -> None:  # fmt: skip
        built = operator_of(operator.store, operator.key, operator.compute, operator.order_by, input)
        self._operator: Operator = with_watermark(built, operator.watermark)
        if initial is not None:
            self._operator = replace(self._operator, initial=initial.schema)
        self._initial = initial
        self._settings = Settings(**{"key_groups": 8, **settings})  # type: ignore[arg-type]
        self._folder = Path(tempfile.mkdtemp(prefix="riffle-harness-"))
        self._store = MemoryStore(uuid.uuid4().hex)
        home = home_of(f"memory://{self._store.name}", self._folder / "copies")
        self._cluster = SimCluster(home, self._store)
        for number in range(executors):
            self._cluster.add(str(number))
        self._sink = SimSink()
        self._abort: int | None = None
        self._runs = 0
        self._version = 0
        self.now_ms = now_ms
        self.available_now = False
        self.reports: list[BatchReport] = []
        self.restart()

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def feed(self, rows: pa.Table | Iterable[Row] = ()) -> list[dict[str, object]]:
        """Run one micro-batch and return what the sink got, as dictionaries, in no particular order of keys.

        Raises what the operator raises, and ``Aborted``; in both cases the same batch comes again with the next call.
        """
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=self._operator.input)
        initial = {} if self._initial is None else {self._operator.store: self._initial}
        work = SimWork(
            self._cluster, table, {self._operator.store: self._take}, self._perform, initial=initial
        )  # fmt: skip
        self._delivered: list[dict[str, object]] = []
        self.reports.append(self._driver.process(self._incoming(), [self._operator], work))
        self._version += 1
        return self._delivered

    def advance(self, seconds: float) -> None:
        """Let time pass until the next batch."""
        self.now_ms += int(seconds * 1000)

    def abort(self, after_slots: int = 1) -> None:
        """Have the next batch break off once so many slots have sealed what they changed."""
        self._abort = after_slots

    def crash(self, *, lose_copies: bool = False) -> None:
        """Lose the driver and, with ``lose_copies``, all executors with their disks; begin again from the log."""
        if lose_copies:
            names = [executor.id for executor in self._cluster.executors()]
            for name in names:
                self._cluster.lose(name, disk=True)
                self._cluster.add(f"{name}+")
        self.restart()

    def restart(self) -> None:
        """Begin as a query that is started again."""
        self._runs += 1
        surroundings = Surroundings(self._store, self._cluster, ManualClock(self.now_ms), InlineBackground())
        self._driver = Driver(self._settings, self._cluster.home, surroundings)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that the next batch will see."""
        tail = self._log().tail
        return tail.watermark_ms if tail else None

    def table(self) -> pa.Table:
        """Return the committed state, read from the objects alone: the columns of a snapshot, sorted by key-group."""
        entries = {kg: entry for (_, kg), entry in self._log().manifest.entries.items()}
        folder = claim(self._folder / f"read-{uuid.uuid4().hex}", "reader", ())
        schema = self._operator.schema
        copies, _ = Keeper(folder, schema, Reader(self._store, None), epoch=1 << 30).bring(entries)
        tables = [schema.part_schema().empty_table()]
        for _, copy in sorted(copies.items()):
            with copy:
                _, pairs, longs = copy.scan()
            tables.append(schema.table(pairs, longs))
        return pa.concat_tables(tables)

    def state(self, variable: str) -> dict[tuple[object, ...], object]:
        """Return a processor's variable by key: a tuple, a list of tuples, or a dictionary of tuples by tuples."""
        schema = self._variables()
        kind, rows = schema.variable(variable).kind, self._rows(variable)
        column = schema.variable(variable).column
        found: dict[tuple[object, ...], object] = {}
        for key, row in rows:
            element = row[column]
            assert isinstance(element, dict)
            if kind == "value":
                found[key] = tuple(element.values())
            elif kind == "list":
                found.setdefault(key, []).append(tuple(element.values()))  # type: ignore[attr-defined]
            else:
                of_key = found.setdefault(key, {})
                of_key[tuple(element["key"].values())] = tuple(element["value"].values())  # type: ignore[index]
        return found

    def expires(self, variable: str) -> dict[tuple[object, ...], list[object]]:
        """Return when the elements of a variable expire (ms), by key; ``None`` for never."""
        return self._dues(variable)

    def timers(self) -> dict[tuple[object, ...], list[object]]:
        """Return the registered timers (ms) by key, in order."""
        return self._dues(TIMER)

    def _dues(self, variable: str) -> dict[tuple[object, ...], list[object]]:
        found: dict[tuple[object, ...], list[object]] = {}
        for key, row in self._rows(variable):
            found.setdefault(key, []).append(row[DUE])
        return found

    def _rows(self, variable: str) -> list[tuple[tuple[object, ...], dict[str, object]]]:
        names = self._variables().key.names
        rows = [row for row in self.table().to_pylist() if row[VARIABLE] == variable]
        return [(tuple(row[name] for name in names), row) for row in rows]

    def _variables(self) -> VariablesSchema:
        if not isinstance(self._operator.schema, VariablesSchema):
            raise ConfigError("the operator has columns, not variables", remedy="look at table()")
        return self._operator.schema

    def _log(self) -> Log:
        log = Log(self._store, self._cluster.home.root)
        log.open()
        return log

    def _incoming(self) -> Incoming:
        return Incoming(
            self._version, "query", f"run-{self._runs}", f"offsets-{self._version}", None, self.now_ms, None,
            available_now=self.available_now,
        )  # fmt: skip

    def _take(self, rows: pa.Table, delivery: Delivery) -> None:
        self._sink(rows, delivery)
        self._delivered = rows.to_pylist()

    def _perform(self, attempt: Attempt) -> pa.Table:
        answer = attempt.run()
        if self._abort is not None:
            self._abort -= 1
            if not self._abort:
                self._abort = None
                raise Aborted
        return answer
