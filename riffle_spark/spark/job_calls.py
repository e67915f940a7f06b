"""Check that the calls of jobs inside ``foreachBatch`` belong together."""

import threading
from dataclasses import dataclass

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.inventory import DIRECT
from riffle_spark.state.objects.open import normalised


@dataclass(frozen=True)
class _Call:
    """The last call of a job that committed a batch."""

    run_id: str
    version: int
    job: "JobCalls"
    frame: DataFrame


_lock = threading.Lock()
_last_calls: dict[str, _Call] = {}
"""The last call of this process per root."""


class JobCalls:
    """The calls of a job whose state is below ``root``. Batches without a query are not checked."""

    def __init__(self, root: str) -> None:
        self._root = normalised(root)

    def check(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Raise ``ConfigError`` for rows that would be skipped as a repeat of a batch that this run has committed.

        Such rows belong to another job on the same root, or are other rows of this job. The same frame may be passed
        again, for example by a user's retry. Also raise it for a query's batch in a thread that does not know the
        query.
        """
        if incoming.query_id == DIRECT:
            _check_no_query(batch)
        self._check_last_call(batch, incoming)

    def done(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Record that a batch is committed. Raise as ``check`` does if another job's thread was faster."""
        with _lock:
            self._check_last_call(batch, incoming)
            _last_calls[self._root] = _Call(incoming.run_id, incoming.version, self, batch)

    def _check_last_call(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Raise ``ConfigError`` if this process has committed other rows under this batch id of the run."""
        last = _last_calls.get(self._root)
        has_query = incoming.run_id != incoming.query_id
        if last is None or not has_query or (last.run_id, last.version) != (incoming.run_id, incoming.version):
            return
        if last.job is not self:
            # Cause: The second job would find the batch committed, and skip its rows as a repeat.
            raise ConfigError(
                f"Two jobs of this query have their state in {self._root}.",
                remedy="Make one job of both with riffle_spark.together(...). If you retry, reuse the job.",
                where="foreachBatch",
                id="RIFFLE-0311",
            )
        if not last.frame.sameSemantics(batch):
            # Cause: A second frame with the same batch id looks like a repeat of the committed batch, which is skipped.
            raise ConfigError(
                f"The job got two frames for batch {last.version}, and the rows of the second would be lost.",
                remedy="Pass their union, or give each frame a job with its own root. If you retry, reuse the frame.",
                where="foreachBatch",
                id="RIFFLE-0650",
            )


def _check_no_query(batch: DataFrame) -> None:
    """Raise ``ConfigError`` if the batch belongs to a query. Each query has its own session."""
    session = handles.session(batch.sparkSession)
    executions = session.sharedState().activeStreamingQueries().values()
    if any(each is not None and each.sparkSessionForStream().equals(session) for each in executions):
        # Cause: Spark keeps the query of a batch in local properties of the thread, and other threads lack them.
        raise ConfigError(
            "The job was called in a thread that does not know the query of its batch.",
            remedy="Call the job in the thread of foreachBatch, or start the thread with "
            "pyspark.inheritable_thread_target(spark).",
            where="foreachBatch",
            id="RIFFLE-0651",
        )
