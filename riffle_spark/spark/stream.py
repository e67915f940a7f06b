"""What users write: stateful operators for ``foreachBatch``. Knows how a job is put together. Does not know the steps
of a batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.process.compute import Compute
from riffle_spark.protocol.driver import Driver, Surroundings
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.protocol.report import BatchReport
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources, without_effect
from riffle_spark.spark import inventory, routing
from riffle_spark.spark.background import SystemClock, Worker
from riffle_spark.spark.cluster import SparkCluster
from riffle_spark.spark.frames import PlacedFrames
from riffle_spark.spark.stopping import Py4JJavaError, is_interruption
from riffle_spark.spark.work import Sink, SparkWork, arity
from riffle_spark.state.paths import check_store_name
from riffle_spark.state.root import open_store
from riffle_spark.worker.homes import options_of
from riffle_spark.worker.order import Home

__all__ = ["Stateful", "StatefulJob", "together"]

_logger = logging.getLogger("riffle_spark")
_TOML = Path("conf/riffle.toml")
_REPORTS_KEPT = 1000
_BINARY = "UTF8_BINARY"


class Stateful:
    """A keyed stateful operator.

    ``store`` names its state, ``key`` the key column or columns, ``compute`` what is computed (``aggregate(...)`` or
    ``arrow_function(...)``), ``order_by`` the columns that decide the order of a key's rows (for Kafka: partition,
    offset). Raises ``ConfigError`` for a name that cannot be a store's.

    >>> totals = Stateful("totals", key="user_id", compute=aggregate(count=count()))  # doctest: +SKIP
    >>> events.writeStream.foreachBatch(totals.into(write)).start()  # doctest: +SKIP
    """

    def __init__(
        self, store: str, key: str | Sequence[str], compute: Compute, *,
        settings: Settings | None = None, order_by: str | Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.store = check_store_name(store)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.compute = compute
        self.settings = settings
        self.order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        if not self.key:
            raise ConfigError("an operator needs at least one key column", remedy="name them in `key`", where=store)

    def into(self, sink: Sink) -> StatefulJob:
        """Return the function for ``foreachBatch`` that hands each batch's output rows to ``sink``.

        ``sink(frame, batch_id)`` or ``sink(frame, batch_id, delivery_id)``: it may do several actions on the frame.
        It sees a batch again, with the same ids, if a crash came between it and the commit; an idempotent sink makes
        that exact.
        """
        arity(sink)
        return StatefulJob([(self, sink)], self.settings)


def together(*jobs: StatefulJob, settings: Settings | None = None) -> StatefulJob:
    """Return one ``foreachBatch`` function of several operators: one input, one commit, all or nothing.

    Raises ``ConfigError`` if two operators have one store name, or settings of their own that differ while none are
    given here.
    """
    own = [job.settings for job in jobs if job.settings is not None]
    if settings is None and any(one.given() != own[0].given() for one in own):
        raise ConfigError(
            "the jobs have settings of their own that differ, and they share one commit",
            remedy="give `together` the settings of all: together(..., settings=Settings(...))",
        )
    return StatefulJob([part for job in jobs for part in job.parts], settings or next(iter(own), None))


class StatefulJob:
    """The function for ``foreachBatch``: one query's operators, its settings and its reports.

    ``reports`` holds the last batches' ``BatchReport``; ``on_report`` is called with each, and what it raises is
    logged: the batch is committed by then. One job serves one query at a time.
    """

    def __init__(self, parts: Sequence[tuple[Stateful, Sink]], settings: Settings | None = None) -> None:
        self.parts = list(parts)
        self.settings = settings
        self.reports: deque[BatchReport] = deque(maxlen=_REPORTS_KEPT)
        self.on_report: Callable[[BatchReport], object] | None = None
        self._reached: Callable[[str], None] = lambda step: None  # noqa: ARG005 - tests listen to the steps
        self._running: _Running | None = None
        names = [operator.store for operator, _ in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two operators use the store {name!r}", remedy="give each its own name", where=name)

    def __getstate__(self) -> dict[str, object]:
        """Leave the running driver behind: it belongs to the process it was made in."""
        return {**self.__dict__, "_running": None}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch. Called by Spark."""
        if self._running is None or not self._running.is_of(batch.sparkSession):
            self._running = _Running(self, batch.sparkSession)
        try:
            report = self._running.process(batch, batch_id)
        except Exception as error:
            if is_interruption(error):
                _logger.warning("batch %s was interrupted: the query is taken to be stopped", batch_id, exc_info=error)
                raise Py4JJavaError from None
            raise
        self.reports.append(report)
        self._hand_over(report)

    def _hand_over(self, report: BatchReport) -> None:
        try:
            if self.on_report:
                self.on_report(report)
        except Exception as error:
            if is_interruption(error):
                raise Py4JJavaError from None
            _logger.exception("on_report failed; the batch is committed, and the query goes on")


class _Running:
    """A job in a process: its driver and what is kept between batches."""

    def __init__(self, job: StatefulJob, spark: SparkSession) -> None:
        self._job = job
        self.settings = settings_of(spark, job.settings)
        idle = without_effect(self.settings)
        if idle:
            _logger.warning("these settings are set and have no effect yet: %s", ", ".join(idle))
        self.home = home_of(spark, self.settings)
        self._clock = SystemClock()
        self._frames = PlacedFrames()
        self._operators: tuple[object, list[Operator]] | None = None
        self._checked_source = False
        objects, beside = (open_store(self.home.root, self.home.options) for _ in range(2))
        surroundings = Surroundings(
            objects, SparkCluster(spark), self._clock, Worker(), reached=job._reached, upkeep_objects=beside
        )
        self._driver = Driver(self.settings, self.home, surroundings)

    def is_of(self, spark: SparkSession) -> bool:
        """Tell whether this belongs to the session's application: a process may stop one and start another."""
        return self.home.application == inventory.application_id(spark)

    def process(self, batch: DataFrame, batch_id: int) -> BatchReport:
        if not self._checked_source:
            self._check_source(batch)
            expected = inventory.expected_executors(batch.sparkSession, self.settings)
            inventory.await_executors(batch.sparkSession, self.settings, expected)
        incoming = inventory.batch_facts(batch, batch_id, self._clock.wall_ms())
        operators = self._operators_for(batch)
        sinks = {operator.store: sink for operator, sink in self._job.parts}
        work = SparkWork(batch, operators, sinks, self._frames, self.home, self.settings)
        report = self._driver.process(incoming, operators, work)
        self._tell(report)
        return report

    def _check_source(self, batch: DataFrame) -> None:
        self._checked_source = True
        if inventory.unbounded_kafka_source(batch):
            _logger.warning(
                "the Kafka source has no maxOffsetsPerTrigger: a slot holds its rows of a batch in memory, so set it "
                "to what a batch should take"
            )

    def _operators_for(self, batch: DataFrame) -> list[Operator]:
        if self._operators is None or self._operators[0] != batch.schema:
            _check_collations(batch, [name for operator, _ in self._job.parts for name in operator.key])
            rows = routing.arrow_schema(batch)
            built = [operator_of(o.store, o.key, o.compute, o.order_by, rows) for o, _ in self._job.parts]
            self._operators = (batch.schema, built)
        return self._operators[1]

    def _tell(self, report: BatchReport) -> None:
        _logger.info("batch %s", report.to_json())
        for warning in report.warnings:
            _logger.warning("%s", warning)
        try:
            if self.settings.report_file:
                with Path(self.settings.report_file).open("a") as file:
                    file.write(report.to_json() + "\n")
        except OSError as error:
            _logger.warning("the report is not in report_file, and the query goes on: %s", error)


def _check_collations(batch: DataFrame, key: Sequence[str]) -> None:
    """Refuse key columns whose strings do not compare as bytes: equal keys would hash to different key-groups."""
    for field in batch.schema.fields:
        collation = getattr(field.dataType, "collation", _BINARY)
        if field.name in key and collation != _BINARY:
            raise ConfigError(
                f"key column {field.name!r} has collation {collation}",
                remedy=f"cast it: cast({field.name} as string collate {_BINARY}), or key by lower({field.name})",
                where=field.name,
            )


def settings_of(spark: SparkSession, code: Settings | None) -> Settings:
    """Return the settings in force for a session, from all sources."""
    every: Mapping[str, str] = _conf(spark)
    return from_sources(code, {k: v for k, v in every.items() if k.startswith(CONF_PREFIX)}, _TOML)


def _conf(spark: SparkSession) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in spark.conf.getAll.items()}


def home_of(spark: SparkSession, settings: Settings) -> Home:
    """Return where state lives. Raises ``ConfigError`` if no root is set, or one that executors cannot reach."""
    root = settings.root
    if not root or root.startswith("memory:"):
        raise ConfigError(
            f"root = {root!r}: executors need a root they can all reach",
            remedy="set root (spark.riffle.root) to s3://bucket/prefix, or to file:///folder on one machine",
            where="root",
        )
    return Home(root, options_of(settings), settings.local_dir, inventory.application_id(spark), frozenset())
