"""Which calls of jobs in ``foreachBatch`` go together. Knows runs of queries. Does not know what a job does."""

import threading
from typing import NoReturn

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.inventory import DIRECT
from riffle_spark.state.objects.open import normalised

__all__ = ["JobCalls"]

_noting = threading.Lock()
_done: dict[str, tuple[str, int, "JobCalls", DataFrame]] = {}
"""Of each root: the run and the batch of a query that a job of this process committed there last, and its rows."""


class JobCalls:
    """The calls of one job with its state in ``root``. Batches that are handed over by hand are all welcome."""

    def __init__(self, root: str) -> None:
        self._root = normalised(root)

    def check(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Raise ``ConfigError`` for rows that would be taken for those of a batch that was done in this run: of another
        job, or others of this one. The same frame may come again, as where a user's function tries again. So for a
        query's batch in a thread that does not know the query.
        """
        if incoming.query_id == DIRECT:
            _check_by_hand(batch)
        self._check_done(batch, incoming)

    def _check_done(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        before = _done.get(self._root)
        is_by_hand = incoming.run_id == incoming.query_id
        if before is None or is_by_hand or before[:2] != (incoming.run_id, incoming.version):
            return
        _, version, job, frame = before
        if job is not self:
            _refuse(
                f"another job of this query has its state in {self._root}: one would take the other's batches for its "
                "own",
                "make one job of both: riffle_spark.together(...). One that is made anew for each try is to be made "
                "once",
            )
        if not frame.sameSemantics(batch):
            _refuse(
                f"batch {version} was handed to the job before, as another frame: a job takes a batch once, and other "
                "rows would be lost",
                "hand it their union, or give each a job with a root of its own; where you try again what failed, make "
                "the frame once, before",
            )

    def done(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Note that a batch is committed, and delivered. Raises what ``check`` raises, where another job's thread was
        quicker in between.
        """
        with _noting:
            self._check_done(batch, incoming)
            _done[self._root] = incoming.run_id, incoming.version, self, batch


def _check_by_hand(batch: DataFrame) -> None:
    """Refuse a batch that is one of a query. Each query runs in a session of its own."""
    session = handles.session(batch.sparkSession)
    running = session.sharedState().activeStreamingQueries().values()
    if any(one is not None and one.sparkSessionForStream().equals(session) for one in running):
        _refuse(
            "a query's batch is handed to a job in a thread of its own, where Spark does not tell which query it is of",
            "call the job in the thread of foreachBatch, or begin the other one with "
            "pyspark.inheritable_thread_target(spark)",
        )


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise ConfigError(problem, remedy=remedy, where="foreachBatch", id="RIFFLE-0311")
