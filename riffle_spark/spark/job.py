"""A job in a process: its driver, and what is kept between batches. Knows how the ports are put together. Does not know
the steps of a batch.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL, Home, LateRule, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.types.kept_types import Position, check_columns
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.batch.initial import with_initial
from riffle_spark.protocol.batch.vigil import LOOK_SECONDS
from riffle_spark.protocol.delays import Delays
from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import Operator, operator_of, with_dead_letters, with_late, with_watermark
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.readiness import KeyPlace
from riffle_spark.protocol.ownership.slots import without_effect
from riffle_spark.protocol.ports import Delivery, WatermarkPolicy, WatermarkSource
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources, hasty
from riffle_spark.spark.engine import inventory, jvm, routing
from riffle_spark.spark.engine.background import BackgroundThread, Pulse, SystemClock, random_id
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.engine.kafka import kafka_of, partition_racks, unbounded_batches
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.spark_batch import DeliverySink, Sink, Sinks, SparkWork
from riffle_spark.spark.engine.stage_frames import SideOutput, StageInput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.engine.topology import Topology
from riffle_spark.spark.engine.worker_python import check_driver_packages
from riffle_spark.spark.job_calls import JobCalls
from riffle_spark.state.objects.open import open_store
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import home_with_keys, options_of

__all__ = ["JobOperator", "RunningJob"]

_logger = logging.getLogger("riffle_spark")
_TOML = Path("conf/riffle.toml")
_STOP_SECONDS = 5.0
_PARTITION = "partition"
_LOOK = "look"
_LONGEST_LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class JobOperator:
    """One operator of a job as its user declared it, and where its rows go. ``late`` and ``shift_ms`` (``Operator``)
    are for jobs that go by Spark's watermark, ``watermark`` for those that make their own. ``shown`` are the columns
    that a processor sees, by those of the input, where these are not simply all. ``reads`` says where its rows come
    from if that is another operator; where nobody but another operator reads its own results, it has no ``sink``. One
    for which ``closes`` is false has nothing that is ever over: as in Spark, it asks for no batch without rows.
    ``dead_letters`` takes rows of keys that its function fails on; without that they fail the batch.
    """

    store: str
    key: tuple[str, ...]
    compute: Computation
    order_by: tuple[str, ...]
    durable: bool
    sink: Sink | DeliverySink | None
    watermark: Watermark | None = None
    initial: DataFrame | None = None
    initial_name: str = USUAL_INITIAL
    late: LateRule | None = None
    shift_ms: int = 0
    meanings: Mapping[str, str] | None = None
    shown: Mapping[str, str] | None = None
    reads: StageInput | None = None
    closes: bool = True
    dead_letters: Callable[[DataFrame, Delivery], object] | None = None

    def rows(self, batch: DataFrame) -> DataFrame:
        """Return a frame of the columns that it reads: the batch, or one without rows."""
        return batch if self.reads is None else self.reads.empty


class RunningJob:
    """One job's driver, and what is kept between its batches. ``watermark_source`` is ``spark`` where the query has
    Spark's own ``withWatermark`` for it (``IncomingBatch``); then ``tick`` brings batches without rows, and ``side``
    takes rows that are late.
    """

    def __init__(
        self,
        declared: Sequence[JobOperator],
        settings: Settings | None,
        spark: SparkSession,
        reached: Callable[[str], None],
        watermark_source: WatermarkSource = "rows",
        tick: Tick | None = None,
        side: SideOutput | None = None,
    ) -> None:
        check_driver_packages()
        self._declared = declared
        self._settings = settings_of(spark, settings)
        for warning in hasty(self._settings):
            _logger.warning("%s", warning)
        idle = without_effect(self._settings)
        if idle:
            _logger.warning("with dispatch = hashed these settings have no effect: %s", ", ".join(idle))
        stores = [given.store for given in declared]
        grouped_stores = [store for store, _ in self._settings.store_groups]
        check_known("store", grouped_stores, stores, source="store_groups")
        self._home = home_of(spark, self._settings)
        self._clock = SystemClock()
        self._frames = PlacedFrames(kept=len(Groups.of_query(stores, self._settings.store_groups).names))
        self._operators: tuple[object, list[Operator]] | None = None
        self._seen: str | None = None
        self._calls = JobCalls(self._home.root)
        self._policy: WatermarkPolicy = "min"
        self._source = watermark_source
        self._tick = tick
        self._side = side
        self._spark = spark
        self._query_id = inventory.DIRECT
        self._pulse = Pulse(self._between_batches, LOOK_SECONDS)
        self._troubles: Delays[str] = Delays(LOOK_SECONDS, _LONGEST_LOOK_SECONDS)
        self._cluster = SparkCluster(spark, lambda: inventory.is_active(spark, self._query_id))
        self._background = BackgroundThread()
        topology = Topology(self._settings.member_racks)
        objects, beside = (open_store(self._home.root, self._home.options) for _ in range(2))
        ports = DriverPorts(
            objects, self._cluster, self._clock, self._background, random_id, reached, upkeep_objects=beside,
            racks_of=topology.racks,
        )  # fmt: skip
        self.driver = Driver(self._settings, self._home, ports)

    def is_of(self, spark: SparkSession) -> bool:
        """Tell whether this belongs to the session's application: a process may stop one and start another."""
        return self._home.application == inventory.application_id(spark)

    def stop(self) -> None:
        """Begin no upkeep any more, cancel what runs and wait a while for its end. Idempotent.

        Deletes that wait are dropped: the next driver's scan finds what they were of.
        """
        self._pulse.stop(_STOP_SECONDS)
        if self._tick is not None:
            self._tick.stop()
        self._background.stop()
        self._cluster.stop()
        if not self._background.ended(_STOP_SECONDS):
            _logger.warning("a piece of upkeep has not ended %g s after the stop; it changes nothing", _STOP_SECONDS)

    def process(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Run one micro-batch and tell its report."""
        incoming = inventory.batch_facts(batch, batch_id, self._clock.wall_ms())
        self._query_id = incoming.query_id
        self._calls.check(batch, incoming)
        if self._seen != incoming.run_id:
            self._begin(batch)
            self._seen = incoming.run_id
            incoming = replace(incoming, offsets_before=inventory.offsets_before(batch, batch_id))
        rows = batch if self._side is None else self._side.mapped(batch, incoming.time_ms)
        operators = self._operators_for(rows)
        sinks = Sinks(
            {given.store: given.sink for given in self._declared if given.sink is not None},
            late=None if self._side is None else partial(self._side.deliver, batch),
            letters={given.store: given.dead_letters for given in self._declared if given.dead_letters is not None},
        )
        reads = {given.store: given.reads for given in self._declared if given.reads is not None}
        initial = {given.store: given.initial for given in self._declared if given.initial is not None}
        initial = {o.store: _keyed_alike(initial[o.store], o) for o in operators if o.store in initial}
        prepared = routing.prepared(rows, [operator for operator in operators if operator.store not in reads])
        work = SparkWork(prepared, operators, sinks, self._frames, self._home, self._settings, initial, reads)
        incoming = replace(incoming, watermark_policy=self._policy, watermark_source=self._source)
        report = self.driver.process(incoming, operators, work)
        self._calls.done(batch, incoming)
        if self._tick is not None:
            closing = {given.store for given in self._declared if given.closes}
            by_watermark = any(o.store in closing and o.goes_by_watermark for o in operators)
            self._tick.after(batch, incoming, self.driver.first_due_ms(operators), by_watermark=by_watermark)
        self._tell(report)
        if inventory.may_rest(batch.sparkSession, incoming):
            self._pulse.begin()
        return report

    def _between_batches(self) -> bool:
        """Look after the query while it runs no batch; tell whether its run goes on. What fails here is a warning, and
        is tried again later and later.
        """
        now = self._clock.seconds()
        if not self.driver.watched or self._troubles.holds(_LOOK, now):
            return True
        try:
            is_active = inventory.is_active(self._spark, self._query_id, self._seen)
            executors = inventory.executors(self._spark) if is_active else ()
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise that is going
            _logger.debug("nobody looks between batches any more: %s", error)
            return False
        try:
            self.driver.between_batches(executors)
        except Exception as error:  # noqa: BLE001 - nothing beside the batches fails the query: the next one may
            self._troubles.failed(_LOOK, now)
            _logger.warning("what was to be done between two batches is tried again later: %s", error)
        else:
            self._troubles.forget(_LOOK)
        return is_active

    def is_active(self) -> bool:
        """Tell whether the run goes on of which a batch came last."""
        try:
            return inventory.is_active(self._spark, self._query_id, self._seen)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise that is going
            _logger.debug("nobody tells whether the query runs: %s", error)
            return False

    def where(self, key: object, store: str | None) -> KeyPlace:
        """Return where a key is processed. Raises ``ConfigError`` for what is no key, or while nobody owns it."""
        ownership = self.driver.ownership
        if ownership.placement.shards is not None:
            number: int | None = ownership.placement.shards.number_of(key)
        else:
            operator = self._operator_of(store)
            number = None if operator is None else operator.key_group_of(key, self._settings.key_groups)
        place = None if number is None else ownership.placement.place_of(ownership.placement.task_of(number, store))
        if place is None:
            raise ConfigError(f"nobody owns {key!r} yet", remedy="ask again once the query has run a batch")
        return place

    def _operator_of(self, store: str | None) -> Operator | None:
        """Return the operator of a store, or one whose key all others have, too; ``None`` before the first batch."""
        operators = self._operators[1] if self._operators is not None else []
        names = [operator.store for operator in operators]
        if store is None and len({operator.schema.key for operator in operators}) > 1:
            raise ConfigError("the query's stores have different keys", remedy=f"name one of {', '.join(names)}")
        check_known("store", [] if store is None else [store], names, source="where(key, store)")
        return next((operator for operator in operators if store in (None, operator.store)), None)

    def _begin(self, batch: DataFrame) -> None:
        """Look at what a query's first batch tells: watermarks, source, executors, the racks of what it reads."""
        self._policy = routing.policy_in(batch.sparkSession)
        for warning in (unbounded_batches(batch), inventory.checkpoint_warning(batch, self._home.root)):
            if warning is not None:
                _logger.warning("%s", warning)
        expected = inventory.expected_executors(batch.sparkSession, self._settings)
        inventory.await_executors(batch.sparkSession, self._settings, expected)
        if self._settings.rack_aware_assignment_strategy != "none":
            kafka = kafka_of(batch)
            self.driver.ownership.placement.weights.reads(partition_racks(*kafka) if kafka else {})
            self._operators = None

    def _operators_for(self, batch: DataFrame) -> list[Operator]:
        if self._operators is None or self._operators[0] != batch.schema:
            built = [self._built(given, given.rows(batch)) for given in self._declared]
            own = [operator for given, operator in zip(self._declared, built, strict=True) if given.reads is None]
            _check_types(routing.prepared(batch, own), own)
            self._operators = (batch.schema, built)
        return self._operators[1]

    def _built(self, given: JobOperator, frame: DataFrame) -> Operator:
        rows = routing.arrow_schema(frame)
        operator = _operator(given, frame, rows, self._source)
        operator = operator if given.dead_letters is None else with_dead_letters(operator)
        delivers = given.sink is not None or given.dead_letters is not None
        return replace(operator, read_by=self._read_by(rows), delivers=delivers)

    def _read_by(self, rows: pa.Schema) -> str | None:
        """Return the column by which slots count where rows came from, where that makes a difference."""
        counts = self.driver.ownership.placement.weights.racks_of and self._settings.dispatch == "key_group"
        return _PARTITION if counts and _PARTITION in rows.names else None

    def _tell(self, report: BatchReport) -> None:
        _logger.info("batch %s", report.to_json())
        for warning in report.warnings:
            _logger.warning("%s", warning)
        try:
            if self._settings.report_file:
                with Path(self._settings.report_file).open("a") as file:
                    file.write(report.to_json() + "\n")
        except OSError as error:
            _logger.warning("the report is not in report_file, and the query goes on: %s", error)


def _operator(given: JobOperator, batch: DataFrame, rows: pa.Schema, source: WatermarkSource) -> Operator:
    """Return an operator on a batch. Where timers go by event time and none is named, the watermark is the batch's."""
    case_sensitive = routing.is_case_sensitive(batch.sparkSession)
    operator = operator_of(given.store, given.key, given.compute, given.order_by, rows, case_sensitive=case_sensitive)
    shown = operator.shown if given.shown is None else given.shown
    operator = replace(operator, durable=given.durable, meanings=given.meanings, shown=shown)
    watermark = given.watermark
    if watermark is None and operator.declared.time_mode == "EventTime" and source == "rows":
        watermark = routing.watermark_in(batch.schema, given.store)
    initial = None if given.initial is None else routing.arrow_schema(_keyed_alike(given.initial, operator))
    operator = with_late(with_initial(operator, initial, given.initial_name), given.late, given.shift_ms)
    return with_watermark(operator, watermark)


def _keyed_alike(initial: DataFrame, operator: Operator) -> DataFrame:
    """Return an initial state whose key's columns are named as the operator's, where case is all that differs."""
    keys = [name for name in operator.schema.key.names if name not in initial.columns]
    names = [_named_alike(name, keys, case_sensitive=operator.case_sensitive) for name in initial.columns]
    return initial if names == initial.columns or len(set(names)) < len(names) else initial.toDF(*names)


def _named_alike(name: str, keys: Sequence[str], *, case_sensitive: bool) -> str:
    return next((key for key in keys if is_same_name(key, name, case_sensitive=case_sensitive)), name)


def _check_types(batch: DataFrame, operators: Sequence[Operator]) -> None:
    """Refuse columns that operators group by or compare, and whose types Spark does not compare by their bytes."""
    columns = batch.schema.jsonValue()["fields"]
    for operator in operators:
        compared = [*operator.order_by, *operator.compared]
        positions: list[tuple[Position, Sequence[str]]] = [("key", operator.schema.key.names), ("order", compared)]
        for position, names in positions:
            check_columns([column for column in columns if column["name"] in names], position, where=operator.store)


def settings_of(spark: SparkSession, code: Settings | None) -> Settings:
    """Return the settings in force for a session, from all sources."""
    every: Mapping[str, str] = _conf(spark)
    return from_sources(code, {k: v for k, v in every.items() if k.startswith(CONF_PREFIX)}, _TOML)


def _conf(spark: SparkSession) -> Mapping[str, str]:
    return jvm.session_conf(spark) if jvm.is_classic(spark) else dict(spark.conf.getAll)


def home_of(spark: SparkSession, settings: Settings) -> Home:
    """Return where state lives. Raises ``ConfigError`` if no root is set, or one that executors cannot reach."""
    root = settings.root
    if not root or root.startswith("memory:"):
        raise ConfigError(
            f"root = {root!r}: executors need a root they can all reach",
            remedy="set root (spark.riffle.root) to s3://bucket/prefix, or to file:///folder on one machine",
            where="root",
        )
    application = inventory.application_id(spark)
    return home_with_keys(Home(root, options_of(settings), settings.local_dir, application, frozenset()), settings)
