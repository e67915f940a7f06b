"""What users write: stateful operators for ``foreachBatch``. Knows how a job is put together. Does not know the steps
of a batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL, Watermark
from riffle_spark.process.blocks.block import Computation
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver
from riffle_spark.protocol.ownership.readiness import KeyPlace, MemberState, Readiness
from riffle_spark.protocol.ownership.rebalance import RebalanceListener, check_listener
from riffle_spark.settings import Settings, short_interval_warnings
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.background import Gate, Stopped
from riffle_spark.spark.engine.jvm import Py4JJavaError, is_interruption
from riffle_spark.spark.engine.spark_batch import Sink, arity
from riffle_spark.spark.engine.worker_python import worker_python_error
from riffle_spark.spark.heartbeat import interval_ms
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.state.log.paths import check_store_name
from riffle_spark.state.objects.open import normalised

__all__ = [
    "JobOperations",
    "Stateful",
    "StatefulJob",
    "check_compute",
    "check_settings",
    "column_names",
    "key_names",
    "together",
]

_logger = logging.getLogger("riffle_spark")
_REPORTS_KEPT = 1000
_BATCH_END_SECONDS = 300.0


class Stateful:
    """A keyed stateful operator.

    ``store`` names its state, ``key`` the key column or columns, ``compute`` what is computed (``aggregate(...)`` or
    ``arrow_function(...)``), ``order_by`` the columns that decide the order of a key's rows (for Kafka: partition,
    offset). Rows are sorted by them in ascending order. A NULL is sorted last, also in a field of a struct, whereas
    Spark's ascending order puts NULL first. A store that is not ``durable`` is a cache: it is kept on its owner's disk
    alone, costs no object, and begins empty after a move and whenever the query is started. ``watermark`` is a
    timestamp column and a delay: rows that are older than the newest seen by more than it are late, as after Spark's
    ``withWatermark``, and are left out and counted. ``initial_state`` goes to a processor's keys with the first batch
    of the store or, under a name of its own, with the next batch once. Raises ``ConfigError`` for a name that cannot be
    a store's.

    >>> totals = Stateful("totals", key="user_id", compute=aggregate(count=count()))  # doctest: +SKIP
    >>> events.writeStream.foreachBatch(totals.into(write)).start()  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0913 - all that an operator can be told
        self, store: str, key: str | Sequence[str], compute: Computation, *,
        settings: Settings | None = None, order_by: str | Sequence[str] = (), durable: bool = True,
        watermark: tuple[str, str] | None = None, initial_state: DataFrame | None = None,
        initial_state_name: str = USUAL_INITIAL,
    ) -> None:  # fmt: skip
        self.store = check_store_name(store)
        check_compute(compute, store)
        check_settings(settings, store)
        self.key = key_names(key, store)
        self.compute = compute
        self.settings = settings
        self.durable = durable
        self.order_by = column_names("order_by", order_by, store)
        self.initial_state = initial_state
        self.initial_state_name = initial_state_name
        if watermark is not None and (isinstance(watermark, str) or len(watermark) != 2):
            raise ConfigError(
                f"watermark = {watermark!r} is not a column and a delay",
                remedy='write watermark=("at", "10 minutes")',
                where=store,
                id="RIFFLE-0367",
            )
        self.watermark = Watermark(watermark[0], interval_ms(watermark[1], store)) if watermark else None

    def __call__(self, _batch: DataFrame, _batch_id: int) -> None:
        """Refuse to run as the function of ``foreachBatch``: an operator has no sink yet."""
        raise ConfigError(
            f"operator {self.store!r} has no sink",
            remedy="give foreachBatch what .into(sink) returns",
            where=self.store,
            id="RIFFLE-0368",
        )

    def into(self, sink: Sink) -> "StatefulJob":
        """Return the function for ``foreachBatch`` that hands each batch's output rows to ``sink``.

        ``sink(frame, batch_id)`` or ``sink(frame, batch_id, delivery_id)``: it may do several actions on the frame.
        It sees a batch again, with the same ids, if a crash came between it and the commit; an idempotent sink makes
        that exact.
        """
        arity(sink)
        return StatefulJob([(self, sink)], self.settings)


def together(*jobs: "StatefulJob", settings: Settings | None = None) -> "StatefulJob":
    """Return one ``foreachBatch`` function of several operators: one input, one commit, all or nothing.

    Raises ``ConfigError`` if there are no operators, if two operators have one store name, and if they have different
    settings of their own while none are given here.
    """
    check_settings(settings, "together")
    if not jobs:
        raise ConfigError(
            "together() was given no operators",
            remedy="give each operator its sink: together(one.into(sink), other.into(sink))",
            where="together",
            id="RIFFLE-0369",
        )
    for job in jobs:
        if not isinstance(job, StatefulJob):
            raise ConfigError(
                f"{job!r} is no job",
                remedy="give each operator its sink: together(one.into(sink), ...)",
                id="RIFFLE-0370",
            )
    own = [job.settings for job in jobs if job.settings is not None]
    if settings is None and any(one.given() != own[0].given() for one in own):
        raise ConfigError(
            "the jobs have settings of their own that differ, and they share one commit",
            remedy="give `together` the settings of all: together(..., settings=Settings(...))",
            id="RIFFLE-0371",
        )
    return StatefulJob([part for job in jobs for part in job.parts], settings or next(iter(own), None))


class JobOperations:
    """The part of a job that is there to be operated. Every method may be called from any thread, and again; what
    cannot work raises ``ConfigError`` with the reason. Members are named by their id or their executor's.
    """

    def __init__(self) -> None:
        self._gate = Gate()
        self._driver: Driver | None = None
        self._listener: RebalanceListener | None = None

    @property
    def listener(self) -> RebalanceListener | None:
        """What hears of key-groups that change their owner (``RebalanceListener``)."""
        return self._listener

    @listener.setter
    def listener(self, listener: RebalanceListener | None) -> None:
        check_listener(listener)
        self._listener = listener
        if self._driver is not None:
            self._driver.ownership.placement.listener = listener

    def pause(self) -> None:
        """Consume nothing more after the batch that is under way: the query stays alive and keeps its assignment."""
        self._gate.close()

    def resume(self) -> None:
        """Go on where ``pause`` stopped."""
        self._gate.open()

    @property
    def paused(self) -> bool:
        """Whether the query is paused."""
        return self._gate.closed

    def clean_up(self) -> None:
        """Remove all local copies of all live members, and wait for it; state is fetched anew by whoever needs it.

        Raises ``ConfigError`` unless the query is paused, ``UnavailableError`` if the batch under way does not end
        within five minutes.
        """
        driver = self._running_driver()
        if not self.paused:
            raise ConfigError(
                "local copies cannot be removed under a running query",
                remedy="call pause() first, resume() after it",
                id="RIFFLE-0372",
            )
        with self._gate.quiet(_BATCH_END_SECONDS):
            driver.clean_up()

    def pin(self, key_group: int | tuple[str, int], member: str, store: str | None = None) -> None:
        """Keep a key-group, or where dispatch is by partition a (topic, partition), on a member: it moves there as soon
        as that is warm, and stays. Where stores are in several co-location groups, ``store`` says whose it is.
        """
        driver = self._running_driver()
        one = driver.ownership.placement.task_of(key_group, store)
        driver.operations.pin(one.key_group, member, one.group)

    def unpin(self, key_group: int | tuple[str, int], store: str | None = None) -> dict[str, str]:
        """Let a key-group go where it is best again; return which key-groups are pinned still, and to whom."""
        driver = self._running_driver()
        one = driver.ownership.placement.task_of(key_group, store)
        return driver.operations.unpin(one.key_group, one.group)

    def drain(self, member: str) -> None:
        """Move everything away from a member, warm, before it is taken away: then ``members()`` shows it empty."""
        self._running_driver().operations.drain(member)

    def undrain(self, member: str) -> tuple[str, ...]:
        """Let a drained member take part again; return those that are drained still."""
        return self._running_driver().operations.undrain(member)

    def add_worker(self) -> int:
        """Let every executor run one more slot of a batch, up to its cores; return how many it runs from now on."""
        return self._running_driver().operations.add_worker()

    def remove_worker(self) -> int:
        """Let every executor run one slot less of a batch, down to one; return how many it runs from now on."""
        return self._running_driver().operations.remove_worker()

    def request_rebalance(self) -> None:
        """Ask for an assignment before the next batch."""
        self._running_driver().operations.request_rebalance()

    def reconfigure(self, **changes: object) -> Settings:
        """Change live settings (docs/configuration.md says which) from the next batch on; return those in force."""
        driver = self._running_driver()
        changed = driver.operations.reconfigure(driver.settings, changes)
        for warning in short_interval_warnings(Settings(**{name: getattr(changed, name) for name in changes})):
            _logger.warning("%s", warning)
        return changed

    def members(self) -> tuple[MemberState, ...]:
        """Return the members as the last assignment saw them, with load and lag as of the last batch."""
        return self._driver.ownership.member_states() if self._driver else ()

    def readiness(self) -> tuple[Readiness, ...]:
        """Return how near every standby and warm-up is to the head of its key-group, as of the last batch."""
        return self._driver.ownership.copies.readiness if self._driver else ()

    def _running_driver(self) -> Driver:
        if self._driver is None:
            raise ConfigError("the query has not run a batch yet", remedy="ask again once it has", id="RIFFLE-0373")
        if not self._is_active():
            raise ConfigError(
                "the query does not run", remedy="start it, and ask again once it has run a batch", id="RIFFLE-0374"
            )
        return self._driver

    def _is_active(self) -> bool:
        return True


class StatefulJob(JobOperations):
    """The function for ``foreachBatch``: one query's operators, its settings and its reports.

    ``reports`` holds the last batches' ``BatchReport``; ``on_report`` is called with each, and what it raises is
    logged: the batch is committed by then. One job serves one query at a time.
    """

    def __init__(self, parts: Sequence[tuple[Stateful, Sink]], settings: Settings | None = None) -> None:
        super().__init__()
        self.parts = list(parts)
        self.settings = settings
        self.reports: deque[BatchReport] = deque(maxlen=_REPORTS_KEPT)
        self.on_report: Callable[[BatchReport], object] | None = None
        self._reached: Callable[[str], None] = lambda step: None  # noqa: ARG005 - tests listen to the steps
        self._running: RunningJob | None = None
        names = [operator.store for operator, _ in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"two operators use the store {name!r}",
                    remedy="give each its own name",
                    where=name,
                    id="RIFFLE-0375",
                )

    def __getstate__(self) -> dict[str, object]:
        """Leave the running driver behind: it belongs to the process it was made in."""
        left = {name: value for name, value in self.__dict__.items() if name not in ("_gate", "_driver")}
        return {**left, "_running": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Begin in another process: not running, not paused."""
        super().__init__()
        self.__dict__.update(state)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one micro-batch. Called by Spark."""
        try:
            with self._gate.batch(lambda: inventory.is_stopping(batch)):
                report = self._run_in(batch.sparkSession).process(batch, batch_id)
        except Exception as error:
            if isinstance(error, Stopped) or (is_interruption(error) and inventory.is_stopping(batch)):
                _logger.info("batch %s was interrupted because the query stops", batch_id, exc_info=error)
                self._stopped()
                raise Py4JJavaError from None
            explained = worker_python_error(error)
            if explained is not None:
                raise explained from error
            raise
        self.reports.append(report)
        self._hand_over(report)

    def where(self, key: object, store: str | None = None) -> KeyPlace:
        """Return where a key is processed from the next batch on: its key-group, the owner with executor and host, and
        the standbys. ``key`` is a value, or a tuple of several columns' values; ``store`` is needed where stores have
        different keys, or are in several co-location groups. Where dispatch is by partition, it is a (topic,
        partition).
        """
        if self._running is None:
            raise ConfigError("the query has not run a batch yet", remedy="ask again once it has", id="RIFFLE-0376")
        return self._running.lookup.where(key, store)

    def _run_in(self, spark: SparkSession) -> RunningJob:
        """Return what runs the batches of a session's query, begun if need be."""
        if self._running is None or not self._running.is_of(spark):
            self._running = self._made(spark)
            self._driver = self._running.driver
            self._driver.ownership.placement.listener = self.listener
        return self._running

    def _made(self, spark: SparkSession) -> RunningJob:
        """Return what runs the batches of a session's query."""
        declared = [_job_operator(operator, sink) for operator, sink in self.parts]
        return RunningJob(declared, self.settings, spark, self._reached)

    def _is_active(self) -> bool:
        return self._running is not None and self._running.is_active()

    def _stopped(self) -> None:
        """End what runs beside the batches; the next batch begins anew."""
        if self._running is not None:
            self._running.stop()
        self._running = None

    def _hand_over(self, report: BatchReport) -> None:
        try:
            if self.on_report:
                self.on_report(report)
        except Exception as error:
            if is_interruption(error):
                raise Py4JJavaError from None
            _logger.exception("on_report failed; the batch is committed, and the query goes on")


def _job_operator(o: Stateful, sink: Sink) -> JobOperator:
    return JobOperator(
        o.store, o.key, o.compute, o.order_by, o.durable, sink, o.watermark, o.initial_state, o.initial_state_name
    )


def column_names(argument: str, given: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names of columns that an argument gives, one or several. Raises ``ConfigError`` for what is none."""
    try:
        names = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        names = None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{argument} = {given!r} is not allowed: it must be names of columns",
            remedy='give text or a list of texts; what is computed becomes a column first: withColumn("k", ...)',
            where=store,
            id="RIFFLE-0377",
        )
    return names


def key_names(given: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names of a key's columns. Raises ``ConfigError`` if there is none, or one twice."""
    names = column_names("key", given, store)
    if not names:
        raise ConfigError(
            "an operator needs at least one key column", remedy="name them in `key`", where=store, id="RIFFLE-0378"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"key names column {twice!r} twice", remedy="name it once", where=store, id="RIFFLE-0379")
    return names


def check_compute(given: object, store: str) -> None:
    """Raise ``ConfigError`` unless ``given`` is a computation; a plain function is not."""
    if not callable(getattr(given, "declare", None)):
        raise ConfigError(
            f"compute = {given!r} is not a computation",
            remedy="give aggregate(...), or a function of yours as arrow_function(function, state=..., output=...)",
            where=store,
            id="RIFFLE-0380",
        )


def check_settings(settings: object, where: str) -> None:
    """Raise ``ConfigError`` unless ``settings`` is ``None``, or ``Settings`` with the URL of a root or without one."""
    if settings is None:
        return
    if not isinstance(settings, Settings):
        raise ConfigError(
            f"settings = {settings!r} is not allowed",
            remedy="give Settings(root=..., ...)",
            where=where,
            id="RIFFLE-0381",
        )
    if settings.root:
        normalised(settings.root)
