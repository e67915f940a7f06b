"""Run an operator batch by batch in a test, without Spark.

Everything but Spark is real: routing, local copies, deltas, the log, snapshots. State is stored in memory and in a
folder that is removed with the harness.
"""

import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.batch.initial import with_initial_state
from riffle_spark.protocol.batch.records import Stamp, claim_record
from riffle_spark.protocol.operator import Operator, operator_of, with_dead_letters, with_late, with_watermark
from riffle_spark.protocol.ports import Delivery, IncomingBatch, WatermarkSource
from riffle_spark.settings import Settings
from riffle_spark.state.formats.arrow_values import readable_rows
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.testing.committed_state import CommittedState, Key
from riffle_spark.testing.input_rows import Row, input_schema, input_table
from riffle_spark.testing.simulated_work import Crashed, Faults, SimSink, SimWork, Step, prepared
from riffle_spark.testing.simulation import InlineBackground, ManualClock, SimCluster, home_of
from riffle_spark.worker.dead_letters import split_letters
from riffle_spark.worker.member_folders import home_with_keys, keys_of
from riffle_spark.worker.requested_edits import edit_by_request

_QUERY = "query"


class Declared(Protocol):
    """The interface of an operator for a harness. ``riffle_spark.Stateful`` has it."""

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
    """A computation that depends on Spark's settings."""

    def with_conf(self, conf: Mapping[str, str]) -> Computation:
        """Return the computation with these settings."""
        ...


class Harness:
    """Runs an operator of a query, batch by batch. Use it as a context manager.

    Time passes only by ``advance``. Event time follows the operator's watermark, or ``advance_watermark``. With
    ``late``, or if ``watermark_source`` is set to ``"spark"``, only ``advance_watermark`` moves the watermark: the next
    batch closes what is due, and rows are late one batch later.

    Rows are dictionaries or Arrow tables. To feed text that is not UTF-8, pass Arrow columns. Dictionaries show it with
    U+FFFD, as Spark's ``collect`` does, and ``output`` has the original bytes.

    Parameters:
        operator: the operator, such as ``aggregate(...)`` or ``transform_with_state(...)``.
        input: the schema of the input rows: an Arrow schema, or DDL text such as ``"user string, visits long"``.
        executors: the number of executors.
        now_ms: the time of the first batch (milliseconds since the epoch).
        initial: initial state for a processor.
        initial_name: the name of the initial state.
        spark_conf: Spark settings that conversions of a processor use. Without it the active session's settings are
            used, or the defaults of the installed Spark.
        late: the rule for late rows, as in a query with Spark's watermark.
        dead_letters: keep rows on which the function fails in ``letters`` instead of failing the batch.
        settings: settings of the query, such as ``key_groups=4``.

    Attributes:
        reports: the reports of all batches.
        output: the last batch's output rows as an Arrow table.
        letters: the last batch's dead letters, with the columns of ``riffle_spark.on``.
        now_ms: the time of the next batch.
        available_now: whether batches end as with that trigger.
        root: where the state is stored, for code in the same process.

    Raises ``ConfigError`` if operator, input and settings do not fit.

    >>> from riffle_spark import Stateful, aggregate, count
    >>> from riffle_spark.testing import Harness
    >>> with Harness(Stateful("visits", "user", aggregate(visits=count())), "user string") as query:
    ...     first = query.feed([{"user": "ann"}, {"user": "ann"}])
    ...     query.crash()
    ...     second = query.feed([{"user": "ann"}])
    >>> first, second
    ([{'user': 'ann', 'visits': 2}], [{'user': 'ann', 'visits': 3}])
    """

    def __init__(  # noqa: PLR0913 - all parts of a query that a test may set
        self,
        operator: Declared,
        input: pa.Schema | str,
        *,
        executors: int = 2,
        now_ms: int = 1_700_000_000_000,
        initial: pa.Table | None = None,
        initial_name: str = USUAL_INITIAL,
        spark_conf: Mapping[str, str] | None = None,
        late: LateRule | None = None,
        dead_letters: bool = False,
        **settings: object,
    ) -> None:
        """Create a cluster, a store and a temporary folder, and start the query. The class describes the arguments."""
        self._input = input_schema(input)
        self._has_letters = dead_letters
        self.letters: list[dict[str, object]] = []
        self._delivered: list[dict[str, object]] = []
        self.output: pa.Table = pa.table({})
        operator_for_input = operator_of(
            operator.store,
            operator.key,
            _under(spark_conf, operator.compute),
            operator.order_by,
            self._input,
            case_sensitive=(spark_conf or {}).get("spark.sql.caseSensitive", "false").lower() == "true",
        )
        timed_operator = with_late(with_watermark(operator_for_input, operator.watermark), late)
        timed_operator = replace(timed_operator, durable=operator.durable)
        self._operator: Operator = with_dead_letters(timed_operator) if dead_letters else timed_operator
        self._spark_watermark_ms = 0
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
        """Remove the folder. May be called again."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def feed(self, rows: pa.Table | Iterable[Row] = ()) -> list[dict[str, object]]:
        """Run one micro-batch; return the rows that the sink received, as dictionaries in any order of keys.

        A column that a dictionary omits is null. Raises ``ConfigError`` for a column that is unknown, or missing in a
        table, ``Aborted``, ``Crashed``, and the operator's errors. After an error pass the same rows again: the next
        call repeats the batch. If the batch was committed, it is skipped and nothing is returned.
        """
        table = input_table(rows, self._input)
        work = SimWork(
            self._cluster,
            prepared(table, self._operator),
            [self._operator],
            {self._operator.store: self._take},
            self._faults.perform,
            initial=self._initial,
        )
        self._delivered = []
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
        """Move the time of the next batch forward."""
        self.now_ms += int(seconds * 1000)

    def advance_watermark(self, to_ms: int) -> None:
        """Set the watermark of the next batch (milliseconds since the epoch). Older rows are late one batch later.

        The query restarts for this, unless it uses Spark's watermark. Raises ``ConfigError`` if the watermark is
        already later.
        """
        if to_ms < (self.watermark_ms or 0):
            raise ConfigError(
                f"The watermark is at {self.watermark_ms} and cannot go back to {to_ms}.",
                remedy="Use another harness.",
                id="RIFFLE-0474",
            )
        if self.watermark_source == "spark":
            self._spark_watermark_ms = to_ms
            return
        log = self._committed().log()
        stamp = Stamp(_random_id(), self.now_ms)
        draft = claim_record(log.tail, _QUERY, self._settings.key_groups, self._settings.dispatch, stamp)
        log.append(replace(draft, watermark_ms=to_ms), log.manifest)
        self.restart()

    def abort(self, after_slots: int = 1) -> None:
        """Make the source of the next batch fail after this number of slots have sealed their changes."""
        self._faults.abort(after_slots)

    def crash_at(self, step: Step, *, lose_copies: bool = False) -> None:
        """Make the driver crash in the next batch: ``feed`` raises ``Crashed``, and the query restarts from the log.

        With ``lose_copies`` all executors lose their disks. Raises ``ConfigError`` for an unknown step.
        """
        self._faults.crash(step, lose_copies=lose_copies)

    def crash(self, *, lose_copies: bool = False) -> None:
        """Crash the driver and restart the query from the log. With ``lose_copies`` all executors lose their disks."""
        if lose_copies:
            names = [executor.id for executor in self._cluster.executors()]
            for name in names:
                self._cluster.lose(name, disk=True)
                self._cluster.add(f"{name}+")
        self.restart()

    def restart(self, initial: pa.Table | None = None, initial_name: str = USUAL_INITIAL, **settings: object) -> None:
        """Restart the query, with changed settings and, if given, another initial state."""
        if initial is not None:
            self._operator = with_initial_state(self._operator, initial.schema, initial_name)
            self._initial = {self._operator.store: initial}
        self._runs += 1
        self._settings = self._settings.but(**settings)
        ports = DriverPorts(
            self._store,
            self._cluster,
            ManualClock(self.now_ms),
            InlineBackground(),
            _random_id,
            self._faults.reached,
            edit_state=edit_by_request,
        )
        self._driver = Driver(self._settings, self._cluster.home, ports)

    @property
    def watermark_ms(self) -> int | None:
        """The watermark of the next batch (milliseconds since the epoch), ``None`` before the first."""
        if self.watermark_source == "spark":
            return self._spark_watermark_ms
        tail = self._committed().log().tail
        return tail.watermark_ms if tail else None

    def delivered(self) -> list[dict[str, object]]:
        """Return all rows of the sink in the order of batches. A repeated batch replaces its rows."""
        return [row for rows in self._sink.by_id.values() for row in readable_rows(rows)]

    def table(self) -> pa.Table:
        """Return the committed state as a snapshot stores it, sorted by key-group. Reads the object store alone."""
        return self._committed().table()

    def state(self, variable: str | None = None) -> Mapping[Key, object]:
        """Return the committed state by key, a tuple of the key's columns.

        The state of a processor needs a ``variable``. Its values are a tuple, a list of tuples, or a dictionary from
        tuple to tuple. For other operators the values are dictionaries of state columns. Raises ``ConfigError`` if a
        variable is named for an operator without variables, or is missing for a processor.
        """
        return self._committed().columns() if variable is None else self._committed().variable(variable)

    def expires(self, variable: str) -> dict[Key, list[object]]:
        """Return, by key, when the elements of a variable expire (ms); ``None`` for never."""
        return self._committed().dues(variable)

    def timers(self) -> dict[Key, list[object]]:
        """Return the registered timers (ms) by key, in order."""
        return self._committed().dues()

    def _committed(self) -> CommittedState:
        return CommittedState(self._operator, self._store, self.root, self._folder, keys_of(self._cluster.home))

    def _incoming(self) -> IncomingBatch:
        """Return the next batch as Spark would describe it, without rows."""
        return IncomingBatch(
            version=self._version,
            query_id=_QUERY,
            run_id=f"run-{self._runs}",
            offsets=f"offsets-{self._version}",
            input_digest=None,
            time_ms=self.now_ms,
            watermark_ms=self._spark_watermark_ms or None,
            available_now=self.available_now,
            watermark_source=self.watermark_source,
        )

    def _take(self, rows: pa.Table, delivery: Delivery) -> None:
        """Receive the output of a batch as its sink: separate dead letters, and keep both for the test."""
        if self._has_letters:
            rows, letters = split_letters(rows)
            self.letters = readable_rows(letters)
        self._sink(rows, delivery)
        self.output = rows
        self._delivered = readable_rows(rows)


def _under(conf: Mapping[str, str] | None, compute: Computation) -> Computation:
    """Return the computation with these Spark settings, if it depends on them."""
    if conf is None or not isinstance(compute, Configured):
        return compute
    return compute.with_conf(conf)
