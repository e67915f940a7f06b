"""Which calls of jobs in ``foreachBatch`` go together. Knows runs of queries. Does not know what a job does."""

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ports import IncomingBatch

__all__ = ["JobCalls"]

_at_work: dict[str, str] = {}
"""Of each root: the run of a query in which a job of this process works on it."""


class JobCalls:
    """The calls of one job with its state in ``root``. Batches that are handed over by hand are all welcome."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._run: str | None = None
        self._done: tuple[IncomingBatch, DataFrame] | None = None

    @property
    def run_id(self) -> str | None:
        """The run of a query that this job was called in last; ``None`` before its first batch."""
        return self._run

    def begins(self, incoming: IncomingBatch) -> bool:
        """Tell whether a batch is the first of its run. Raises ``ConfigError`` if another job has its root there."""
        if self._run == incoming.run_id:
            return False
        if _is_of_query(incoming) and _at_work.get(self._root) == incoming.run_id:
            raise ConfigError(
                f"another job of this query has its state in {self._root}: one would take the other's batches for its "
                "own", remedy="make one job of both: riffle_spark.together(...)", where="root",
            )  # fmt: skip
        return True

    def begun(self, incoming: IncomingBatch) -> None:
        """Note that the job works on its root in a batch's run."""
        self._run = _at_work[self._root] = incoming.run_id

    def check(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Raise ``ConfigError`` for other rows of a batch that was done in this run: they would count as done, too. The
        same frame may come again, as where a user's function tries again.
        """
        if self._done is None or not _is_of_query(incoming):
            return
        before, frame = self._done
        is_again = (before.run_id, before.version) == (incoming.run_id, incoming.version)
        if is_again and not frame.sameSemantics(batch):
            raise ConfigError(
                f"batch {incoming.version} was handed to the job before, as another frame: a job takes a batch once, "
                "and these rows would be lost", remedy="hand it their union, or give each a job with a root of its own",
                where="foreachBatch",
            )  # fmt: skip

    def done(self, batch: DataFrame, incoming: IncomingBatch) -> None:
        """Note that a batch is committed, and delivered."""
        self._done = incoming, batch


def _is_of_query(incoming: IncomingBatch) -> bool:
    return incoming.run_id != incoming.query_id
