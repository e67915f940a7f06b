"""A running wrapped query with the interface of Spark's own."""

from collections import deque
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.settings import Settings
from riffle_spark.spark.engine.stage_frames import SideOutput
from riffle_spark.spark.engine.tick import Tick
from riffle_spark.spark.job import RunningJob
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.stateful import StatefulJob

__all__ = ["StreamJob", "StreamQuery"]


class StreamJob(StatefulJob):
    """The ``foreachBatch`` function of a wrapped query. Its operators are known before the first batch.

    ``time_shift_ms`` is added to the time of each batch, for tests.
    """

    def __init__(
        self,
        operators: Sequence[JobOperator],
        settings: Settings,
        tick: Tick,
        late_rows: SideOutput | None = None,
        seed: Callable[[SparkSession], None] | None = None,
    ) -> None:
        """Create the job of a wrapped query.

        ``tick`` starts batches without rows, ``late_rows`` gets late rows. ``seed`` is called before the first batch of
        this process.
        """
        super().__init__([], settings)
        self.operators = list(operators)
        self._tick = tick
        self._late_rows = late_rows
        self._seed = seed
        self.time_shift_ms = 0

    def set_step_listener(self, reached: Callable[[str], None]) -> None:
        """Call a function at each step of a batch, from the next start of the driver on."""
        self._reached = reached

    def end(self) -> None:
        """Stop the job's threads, after the query has ended."""
        self._stop_running_job()

    def _create_running_job(self, spark: SparkSession) -> RunningJob:
        """Return the batch loop of this query. Write the initial state before it starts."""
        if self._seed is not None:
            self._seed(spark)
        job = RunningJob(self.operators, self.settings, spark, self._reached, "spark", self._tick, self._late_rows)
        job.time_shift_ms = self.time_shift_ms
        return job


class StreamQuery(StreamingQuery):
    """A running wrapped query: Spark's ``StreamingQuery``, with riffle's reports and operations.

    ``job`` has the operations of a running query (``pause``, ``reconfigure``, ``readiness``). ``reports`` holds the
    figures of the last batches. ``spark.streams.active`` lists the query as Spark's own object with the same id.

    >>> query = counts.writeStream.outputMode("update").format("console").start()  # doctest: +SKIP
    >>> query.reports[-1].output_rows  # doctest: +SKIP
    """

    def __init__(self, query: StreamingQuery, job: StreamJob, describe: Callable[[], Sequence[str]]) -> None:
        """Wrap Spark's query. ``describe`` returns the lines that ``explain`` adds."""
        super().__init__(query._jsq)
        self.job = job
        self._describe = describe

    @property
    def root(self) -> str:
        """Return the root of the query's state, as commands take it."""
        return (self.job.settings and self.job.settings.root) or ""

    @property
    def reports(self) -> deque[BatchReport]:
        """The reports of the last batches, the newest last."""
        return self.job.reports

    def stop(self) -> None:
        """Stop the query after its current batch, and the job's threads. After 10 seconds the batch is interrupted."""
        self.job.stop(StreamingQuery(self._jsq))
        self.job.end()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as in Spark. Raises the error that ended it."""
        try:
            return super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self.job.end()

    def explain(self, extended: bool = False) -> None:
        """Print Spark's plan of the last batch's input, the stages, and the plan after them."""
        super().explain(extended)
        print("\n".join(self._describe()))  # noqa: T201 - as Spark does
