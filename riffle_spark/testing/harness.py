"""One operator, fed by a test. Knows the driver, its executors and its log. Does not know Spark.

    with Harness(transform_with_state(Visits(), key="user", output="user string, visits long"), schema) as visits:
        assert visits.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 1}]
        visits.crash()
        assert visits.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 2}]

Everything but Spark is real: routing, local copies, deltas, the log, snapshots. State lies in memory and below a folder
that goes with the harness.
"""

import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.batch.initial import with_initial
from riffle_spark.protocol.batch.records import Stamp, claim_record
from riffle_spark.protocol.operator import Operator, operator_of, with_dead_letters, with_late, with_watermark
from riffle_spark.protocol.ports import Delivery, IncomingBatch, WatermarkSource
from riffle_spark.settings import Settings
from riffle_spark.state.formats.arrow_values import readable_rows
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.follow import restored
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.state.schemas.variable_kinds import DUE, TIMER, VARIABLE, Variable
from riffle_spark.testing.simulated_work import Crashed, Faults, SimSink, SimWork, Step, prepared
from riffle_spark.testing.simulation import InlineBackground, ManualClock, SimCluster, home_of
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.dead_letters import split_letters
from riffle_spark.worker.member_folders import home_with_keys, keys_of

__all__ = ["Contents", "Harness", "Key"]

Row = Mapping[str, object]
_QUERY = "query"
Key = tuple[object, ...]
"""The values of a key's columns."""


class Declared(Protocol):
    """What a harness needs of an operator; ``riffle_spark.Stateful`` has it."""

    store: str
    key: tuple[str, ...]
    compute: Computation
    order_by: tuple[str, ...]
    watermark: Watermark | None
    durable: bool


def _random_id() -> str:
    return uuid.uuid4().hex


@runtime_checkable
class Configured(Protocol):
    """What goes by settings of Spark's."""

    def with_conf(self, conf: Mapping[str, str]) -> Computation:
        """Return the same under these settings."""
        ...


class Harness:
    """Feeds one operator; a context manager. ``reports`` holds the batches' reports, ``now_ms`` the time of the next.

    ``input`` is the schema of the rows: an Arrow schema, or DDL text such as ``"user string, visits long"``.
    ``executors`` is their number, ``settings`` are those of a query. Time passes by ``advance`` alone.
    Event time follows the operator's watermark, or ``advance_watermark``.
    ``root`` is where the state is, for whoever runs in the same process. ``spark_conf`` are Spark's settings that a
    processor's conversions go by; without them they are the active session's or, if there is none, those of the Spark
    that is installed.

    With ``late``, or once ``watermark_source`` is ``"spark"``, event time goes as in a query whose watermark is
    Spark's: ``advance_watermark`` alone moves it, the next batch closes what is due, rows are late one batch later.

    With ``dead_letters`` rows of keys that a processor or a function of groups fails on do not fail the batch;
    ``letters`` has those of the last batch, in the columns that ``riffle_spark.on`` tells them in.

    To feed text that is not UTF-8, pass Arrow columns. Dictionaries show it with U+FFFD, as Spark's ``collect`` does.
    ``output`` has the last batch's rows as an Arrow table, with the original bytes.
    """

    def __init__(  # noqa: PLR0913 - all that a test may say of a query
        self, operator: Declared, input: pa.Schema | str, *, executors: int = 2, now_ms: int = 1_700_000_000_000,
        initial: pa.Table | None = None, initial_name: str = USUAL_INITIAL,
        spark_conf: Mapping[str, str] | None = None, late: LateRule | None = None, dead_letters: bool = False,
        **settings: object,
    ) -> None:  # fmt: skip
        self._input = _input_schema(input)
        self._has_letters = dead_letters
        self.letters: list[dict[str, object]] = []
        self.output: pa.Table = pa.table({})
        built = operator_of(
            operator.store, operator.key, _under(spark_conf, operator.compute), operator.order_by, self._input,
            case_sensitive=(spark_conf or {}).get("spark.sql.caseSensitive", "false").lower() == "true",
        )  # fmt: skip
        built = replace(with_late(with_watermark(built, operator.watermark), late), durable=operator.durable)
        self._operator: Operator = with_dead_letters(built) if dead_letters else built
        self._sparks_watermark_ms = 0
        self._initial: dict[str, pa.Table] = {}
        self._settings = Settings(**{"key_groups": 8, **settings})  # type: ignore[arg-type]
        self._folder = Path(tempfile.mkdtemp(prefix="riffle-harness-"))
        self._store = MemoryStore(_random_id())
        home = home_with_keys(home_of(f"memory://{self._store.name}", self._folder / "copies"), self._settings)
        self.root = home.root
        self._cluster = SimCluster(home, self._store)
        for number in range(executors):
            self._cluster.add(str(number))
        self._sink = SimSink()
        self._faults = Faults()
        self._runs = 0
        self._version = 0
        self.now_ms = now_ms
        self.available_now = False
        self.watermark_source: WatermarkSource = "spark" if late else "rows"
        self.reports: list[BatchReport] = []
        self.restart(initial, initial_name)

    def __enter__(self) -> "Harness":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def feed(self, rows: pa.Table | Iterable[Row] = ()) -> list[dict[str, object]]:
        """Run one micro-batch and return what the sink got, as dictionaries, in no particular order of keys.

        Each row has all columns of the input. Raises ``ConfigError`` for a column that is unknown or missing.

        Raises what the operator raises, ``Aborted`` and ``Crashed``; then the same batch comes again with the next
        call, to be given the same rows. If it was committed it is not run again, and nothing is returned.
        """
        table = _input_table(rows, self._input)
        work = SimWork(
            self._cluster, prepared(table, self._operator), [self._operator], {self._operator.store: self._take},
            self._faults.perform, initial=self._initial,
        )  # fmt: skip
        self._delivered: list[dict[str, object]] = []
        self.letters = []
        self.output = pa.table({})
        try:
            self.reports.append(self._driver.process(self._incoming(), [self._operator], work))
        except Crashed:
            self.crash(lose_copies=self._faults.lose_copies)
            raise
        self._version += 1
        return self._delivered

    def advance(self, seconds: float) -> None:
        """Let time pass until the next batch."""
        self.now_ms += int(seconds * 1000)

    def advance_watermark(self, to_ms: int) -> None:
        """Let event time pass: the next batch sees this watermark, and the one after it takes older rows for late.

        The query starts again for it, unless the watermark is Spark's. Raises ``ConfigError`` if the watermark is
        further already.
        """
        if to_ms < (self.watermark_ms or 0):
            raise ConfigError(
                f"the watermark is at {self.watermark_ms} and cannot go back to {to_ms}",
                remedy="begin with another harness",
                id="RIFFLE-0474",
            )
        if self.watermark_source == "spark":
            self._sparks_watermark_ms = to_ms
            return
        log = self._contents().log()
        stamp = Stamp(_random_id(), self.now_ms)
        draft = claim_record(log.tail, _QUERY, self._settings.key_groups, self._settings.dispatch, stamp)
        log.append(replace(draft, watermark_ms=to_ms), log.manifest)
        self.restart()

    def abort(self, after_slots: int = 1) -> None:
        """Have the next batch break off, as where its source fails, once so many slots have sealed what they
        changed.
        """
        self._faults.abort(after_slots)

    def crash_at(self, step: Step, *, lose_copies: bool = False) -> None:
        """Have the driver die in the middle of the next batch: ``feed`` then raises ``Crashed``, and the query begins
        again from the log, as after ``crash``. Raises ``ConfigError`` for what is no ``Step``.
        """
        self._faults.crash(step, lose_copies=lose_copies)

    def crash(self, *, lose_copies: bool = False) -> None:
        """Lose the driver and, with ``lose_copies``, all executors with their disks; begin again from the log."""
        if lose_copies:
            names = [executor.id for executor in self._cluster.executors()]
            for name in names:
                self._cluster.lose(name, disk=True)
                self._cluster.add(f"{name}+")
        self.restart()

    def restart(
        self, initial: pa.Table | None = None, initial_name: str = USUAL_INITIAL, **settings: object
    ) -> None:  # fmt: skip
        """Begin as a query that is started again, with another initial state if one is given, and these settings
        changed.
        """
        if initial is not None:
            self._operator = with_initial(self._operator, initial.schema, initial_name)
            self._initial = {self._operator.store: initial}
        self._runs += 1
        self._settings = self._settings.but(**settings)
        ports = DriverPorts(
            self._store, self._cluster, ManualClock(self.now_ms), InlineBackground(), _random_id, self._faults.reached
        )
        self._driver = Driver(self._settings, self._cluster.home, ports)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that the next batch will see."""
        if self.watermark_source == "spark":
            return self._sparks_watermark_ms
        tail = self._contents().log().tail
        return tail.watermark_ms if tail else None

    def delivered(self) -> list[dict[str, object]]:
        """Return all that the sink has, in the order of batches: a batch that comes again replaces what it gave."""
        return [row for rows in self._sink.by_id.values() for row in readable_rows(rows)]

    def table(self) -> pa.Table:
        """Return the committed state, read from the objects alone: the columns of a snapshot, sorted by key-group."""
        return self._contents().table()

    def state(self, variable: str | None = None) -> "Mapping[Key, object]":
        """Return the committed state by key.

        Of a processor's variable: a tuple, a list of tuples, or a dictionary of tuples by tuples. Of a block, without
        a name: a dictionary of its columns.
        """
        return self._contents().columns() if variable is None else self._contents().variable(variable)

    def expires(self, variable: str) -> "dict[Key, list[object]]":
        """Return when the elements of a variable expire (ms), by key; ``None`` for never."""
        return self._contents().dues(variable)

    def timers(self) -> "dict[Key, list[object]]":
        """Return the registered timers (ms) by key, in order."""
        return self._contents().dues()

    def _contents(self) -> "Contents":
        return Contents(self._operator, self._store, self.root, self._folder, keys_of(self._cluster.home))

    def _incoming(self) -> IncomingBatch:
        return IncomingBatch(
            self._version, _QUERY, f"run-{self._runs}", f"offsets-{self._version}", None, self.now_ms,
            self._sparks_watermark_ms or None, available_now=self.available_now, watermark_source=self.watermark_source,
        )  # fmt: skip

    def _take(self, rows: pa.Table, delivery: Delivery) -> None:
        if self._has_letters:
            rows, letters = split_letters(rows)
            self.letters = readable_rows(letters)
        self._sink(rows, delivery)
        self.output, self._delivered = rows, readable_rows(rows)


def _input_schema(given: object) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, str):
        return schema_of_ddl(given)
    raise ConfigError(
        f"{type(given).__name__} is not a schema of rows",
        remedy='give a pyarrow.Schema, or DDL text such as "user string, visits long"',
        where="input",
        id="RIFFLE-0475",
    )


def _input_table(rows: pa.Table | Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table of these columns; a column that a dictionary leaves out is NULL.

    Raises ``ConfigError`` for unknown columns, and for a table that lacks a column.
    """
    if isinstance(rows, pa.Table):
        check_known("column", rows.column_names, schema.names, source="the fed rows", where="the table")
        missing = [name for name in schema.names if name not in rows.column_names]
        if missing:
            remedy = "give the table all columns of the input"
            raise ConfigError(f"column {missing[0]!r} is missing", remedy=remedy, where="the table", id="RIFFLE-0476")
        return rows if rows.column_names == schema.names else rows.select(schema.names)
    listed = list(rows)
    for number, row in enumerate(listed):
        check_known("column", row, schema.names, source="the fed rows", where=f"row {number}")
    return pa.Table.from_pylist(listed, schema=schema)


def _under(conf: Mapping[str, str] | None, compute: Computation) -> Computation:
    """Return what is computed under these settings of Spark's, where it goes by any."""
    if conf is None or not isinstance(compute, Configured):
        return compute
    return compute.with_conf(conf)


@dataclass(frozen=True, slots=True)
class Contents:
    """An operator's committed state. ``folder`` is where it is put together anew each time."""

    operator: Operator
    objects: ObjectStore
    root: str
    folder: Path
    keys: Keys | None = None

    def log(self) -> Log:
        """Return the log, opened."""
        log = Log(self.objects, self.root)
        log.open()
        return log

    def table(self) -> pa.Table:
        """Return the whole state: the columns of a snapshot, sorted by key-group."""
        log, store = self.log(), self.operator.store
        if log.tail is None:
            return self.operator.schema.part_schema().empty_table()
        schema = schema_of_text(store, self.operator.schema_after(log.tail.schemas, log.tail.epoch))
        mine = {key_group: entry for (of, key_group), entry in log.manifest.entries.items() if of == store}
        folder = self.folder / f"read-{uuid.uuid4().hex}"
        tables = restored(schema, mine, Reader(self.objects, None, self.keys), folder).values()
        return pa.concat_tables([schema.part_schema().empty_table(), *tables])

    def columns(self) -> dict[Key, dict[str, object]]:
        """Return a block's state columns by key."""
        if self.operator.declared.variables is not None:
            raise ConfigError(
                "the operator has state variables, not columns",
                remedy="name the variable: state('visits')",
                id="RIFFLE-0477",
            )
        keys = self.operator.schema.key.names
        return {tuple(row.pop(name) for name in keys): row for row in readable_rows(self.table())}

    def variable(self, name: str) -> dict[Key, object]:
        """Return a processor's variable by key: a tuple, a list of tuples, or a dictionary of tuples by tuples."""
        declared, rows = self._variables()[name], self._rows(name)
        found: dict[Key, object] = {}
        for key, row in rows:
            element = row[declared.column]
            assert isinstance(element, dict)
            if declared.kind == "value":
                found[key] = tuple(element.values())
            elif declared.kind == "list":
                found.setdefault(key, []).append(tuple(element.values()))  # type: ignore[attr-defined]
            else:
                of_key = found.setdefault(key, {})
                of_key[tuple(element["key"].values())] = tuple(element["value"].values())  # type: ignore[index]
        return found

    def dues(self, name: str = TIMER) -> dict[Key, list[object]]:
        """Return by key when a variable's elements, or the timers, are due (ms); ``None`` for never."""
        found: dict[Key, list[object]] = {}
        for key, row in self._rows(name):
            found.setdefault(key, []).append(row[DUE])
        return found

    def _rows(self, name: str) -> list[tuple[Key, dict[str, object]]]:
        self._variables()
        keys = self.operator.schema.key.names
        rows = [row for row in readable_rows(self.table()) if row[VARIABLE] == name]
        return [(tuple(row[key] for key in keys), row) for row in rows]

    def _variables(self) -> dict[str, Variable]:
        if self.operator.declared.variables is None:
            raise ConfigError(
                "the operator has columns, not state variables", remedy="look at state() or table()", id="RIFFLE-0478"
            )
        return {variable.name: variable for variable in self.operator.declared.variables}
