"""What users write: stateful operators for ``foreachBatch``. Knows how a job is put together. Does not know the steps
of a batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.names import keywords_told
from riffle_spark.process.compute import Compute
from riffle_spark.process.keyed import Keyed
from riffle_spark.protocol.report import BatchReport
from riffle_spark.settings import Settings
from riffle_spark.spark import inventory
from riffle_spark.spark.arguments import check_compute, check_settings, column_names, key_names
from riffle_spark.spark.gate import Stopped
from riffle_spark.spark.intervals import interval_ms
from riffle_spark.spark.operate import Operated
from riffle_spark.spark.running import Part, Running
from riffle_spark.spark.stopping import Py4JJavaError, is_interruption
from riffle_spark.spark.work import Sink, arity
from riffle_spark.state.paths import check_store_name
from riffle_spark.worker.order import USUAL_INITIAL, Watermark

__all__ = ["Stateful", "StatefulJob", "together"]

_logger = logging.getLogger("riffle_spark")
_REPORTS_KEPT = 1000


class Stateful:
    """A keyed stateful operator.

    ``store`` names its state, ``key`` the key column or columns, ``compute`` what is computed (``aggregate(...)`` or
    ``arrow_function(...)``), ``order_by`` the columns that decide the order of a key's rows (for Kafka: partition,
    offset). A store that is not ``durable`` is a cache: it is kept on its owner's disk alone, costs no object, and
    begins empty after a move and whenever the query is started. ``watermark`` is a timestamp column and a delay: rows
    that are older than the newest seen by more than it are late, as after Spark's ``withWatermark``, and are left out
    and counted. ``initial_state`` goes to a processor's keys with the first batch of the store or, under a name of its
    own, with the next batch once. Raises ``ConfigError`` for a name that cannot be a store's.

    >>> totals = Stateful("totals", key="user_id", compute=aggregate(count=count()))  # doctest: +SKIP
    >>> events.writeStream.foreachBatch(totals.into(write)).start()  # doctest: +SKIP
    """

    @keywords_told
    def __init__(  # noqa: PLR0913 - all that an operator can be told
        self, store: str, key: str | Sequence[str], compute: Compute | Keyed, *,
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
        self.watermark = Watermark(watermark[0], interval_ms(watermark[1], store)) if watermark else None

    def into(self, sink: Sink) -> StatefulJob:
        """Return the function for ``foreachBatch`` that hands each batch's output rows to ``sink``.

        ``sink(frame, batch_id)`` or ``sink(frame, batch_id, delivery_id)``: it may do several actions on the frame.
        It sees a batch again, with the same ids, if a crash came between it and the commit; an idempotent sink makes
        that exact.
        """
        arity(sink)
        return StatefulJob([(self, sink)], self.settings)


@keywords_told
def together(*jobs: StatefulJob, settings: Settings | None = None) -> StatefulJob:
    """Return one ``foreachBatch`` function of several operators: one input, one commit, all or nothing.

    Raises ``ConfigError`` if two operators have one store name, or settings of their own that differ while none are
    given here.
    """
    for job in jobs:
        if not isinstance(job, StatefulJob):
            raise ConfigError(f"{job!r} is no job", remedy="give each operator its sink: together(one.into(sink), ...)")
    check_settings(settings, "together")
    own = [job.settings for job in jobs if job.settings is not None]
    if settings is None and any(one.given() != own[0].given() for one in own):
        raise ConfigError(
            "the jobs have settings of their own that differ, and they share one commit",
            remedy="give `together` the settings of all: together(..., settings=Settings(...))",
        )
    return StatefulJob([part for job in jobs for part in job.parts], settings or next(iter(own), None))


class StatefulJob(Operated):
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
        self._running: Running | None = None
        names = [operator.store for operator, _ in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two operators use the store {name!r}", remedy="give each its own name", where=name)

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
        if self._running is None or not self._running.is_of(batch.sparkSession):
            self._running = Running(self._declared(), self.settings, batch.sparkSession, self._reached)
            self._driver = self._running.driver
            self._driver.seating.listener = self.listener
        try:
            with self._gate.batch(lambda: inventory.is_stopping(batch)):
                report = self._running.process(batch, batch_id)
        except Exception as error:
            if isinstance(error, Stopped) or is_interruption(error):
                _logger.warning("batch %s was interrupted: the query is taken to be stopped", batch_id, exc_info=error)
                self._stopped()
                raise Py4JJavaError from None
            raise
        self.reports.append(report)
        self._hand_over(report)

    def _declared(self) -> list[Part]:
        return [_part(operator, sink) for operator, sink in self.parts]

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


def _part(o: Stateful, sink: Sink) -> Part:
    return Part(
        o.store, o.key, o.compute, o.order_by, o.durable, sink, o.watermark, o.initial_state, o.initial_state_name
    )
