"""Describe the input of a stage, and store and read the results of its slots."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import ATTEMPT, RECEIPT, attempt_number
from riffle_spark.protocol.ports import Delivery, StaleRows
from riffle_spark.spark import compat
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine import kept_plan
from riffle_spark.spark.engine.jvm_errors import is_interruption, mentions
from riffle_spark.worker.result_chunks import letters_column, rows_column

_STALE = "riffle: a row of an attempt that was given up"
_STALE_CAUSES = {
    # With Spark's prefix, because other errors of Spark show the plan, which contains the bare text.
    f"{compat.RAISED}{_STALE}": "it has rows of another attempt",
    compat.LOST_BLOCK: "one of its blocks is lost",
}
_logger = logging.getLogger("riffle_spark")


class StageInput(Protocol):
    """The rows of a stage that reads results of other stages, or a part of the batch."""

    @property
    def after(self) -> Sequence[str]:
        """Return the stores of the stages whose results this stage reads."""
        ...

    @property
    def empty(self) -> DataFrame:
        """Return an empty frame with the columns of this stage's rows."""
        ...

    def frame(self, batch: DataFrame, answers: Mapping[str, DataFrame], time_ms: int) -> DataFrame:
        """Return the rows of this stage for a batch.

        ``answers`` has the results of earlier stages by store, ``time_ms`` is the batch time.
        """
        ...


class SideOutput(Protocol):
    """Receives the rows that are too late for the slots that read the batch."""

    def mapped(self, batch: DataFrame, time_ms: int) -> DataFrame:
        """Return the rows that the slots get of a batch. ``time_ms`` is the batch time."""
        ...

    def deliver(self, batch: DataFrame, late_ms: int, delivery: Delivery) -> None:
        """Deliver the rows of a batch that are late by the watermark ``late_ms``."""
        ...


class StoredResult:
    """The result of the slots of some stores, stored as a local checkpoint.

    ``outputs`` are the output columns by store, in the order of the stores in the result. With Spark Connect the first
    action computes the result.
    """

    def __init__(self, result: kept_plan.PlanFrame, outputs: Mapping[str, pa.Schema], *, is_replicated: bool) -> None:
        """Compute a result and store it, on two executors if it ``is_replicated``."""
        self.outputs = outputs
        self._rows = result.rows
        self._rdd: Any = result.rdd
        level = StorageLevel.MEMORY_AND_DISK_2 if is_replicated else StorageLevel.MEMORY_AND_DISK
        spark = result.frame.sparkSession
        if result.rdd is not None:
            handles.store_rdd(spark, result.rdd, level)
            self.frame = result.frame
        else:
            self.frame = compat.local_checkpoint(result.frame, level, eager=handles.is_classic(spark))

    def receipts(self, accumulated: list[str], slots: int) -> list[str]:
        """Return the receipts of all slots. ``accumulated`` are those that the tasks sent by accumulator.

        If some are missing, all receipts are read from the result. A task sends none if its partition was already
        computed by another task, which failed afterwards.
        """
        if len(accumulated) == slots * len(self.outputs):
            return accumulated
        return [row[0] for row in self.frame.where(F.col(RECEIPT).isNotNull()).select(RECEIPT).collect()]

    @property
    def rdd(self) -> Any:
        """The JVM's RDD of the result. Spark Connect has none."""
        if self._rdd is None:
            self._rdd = handles.rdd_of(self.frame)
        return self._rdd

    def rows_column(self, store: str) -> str:
        """Return the name of the column with the output rows of a store."""
        return rows_column([*self.outputs].index(store))

    def letters(self, store: str, attempts: Sequence[str]) -> DataFrame:
        """Return the dead letters of a store. Reading a row of another attempt than ``attempts`` fails."""
        return self.frame.selectExpr(_checked(letters_column([*self.outputs].index(store)), attempts))

    def routed(self) -> int | None:
        """Return how many rows were routed to the slots, or ``None`` if Spark does not report it."""
        try:
            return self._rows()
        except Exception as error:  # noqa: BLE001 - the JVM may raise any error; the rows can be counted again
            _logger.debug("Cannot read the observed number of rows: %s", error)
            return None

    def release(self) -> None:
        """Drop the stored blocks. Spark Connect drops them with the last reference to the frame."""
        if not handles.is_classic(self.frame.sparkSession):
            return
        try:
            handles.release(self.frame.sparkSession, self.rdd)
        except Exception as error:  # noqa: BLE001 - an error of the JVM must not hide the error of the batch
            level = logging.DEBUG if is_interruption(error) else logging.WARNING
            # Cause: The JVM did not drop the blocks. They take memory and disk of executors until Spark cleans them up.
            _logger.log(
                level,
                "[RIFFLE-0654] Cannot release the result of a batch: %s\n"
                "  What to do: Do nothing, because Spark removes the blocks later.",
                error,
            )


def rows_of(result: DataFrame, column: str, attempts: Sequence[str]) -> DataFrame:
    """Return the output rows in a column. Reading a chunk of another attempt than ``attempts`` fails."""
    return result.selectExpr(_checked(column, attempts))


def _checked(column: str, attempts: Sequence[str]) -> str:
    """Return the SQL of a generator of the rows in an array column. It fails for a chunk of another attempt.

    The check is in the generator's argument, so Spark checks a row before it reads another column or applies a filter.
    If the argument was the column itself, Spark would skip null and empty arrays without the check.
    """
    numbers = ", ".join(str(attempt_number(attempt)) for attempt in attempts)
    return f"inline(if({ATTEMPT} in ({numbers}), {column}, raise_error('{_STALE}')))"


@contextmanager
def raising_stale_rows() -> Iterator[None]:
    """Raise ``StaleRows`` if the block fails because it read rows of another attempt, or a lost block."""
    try:
        yield
    except Exception as error:
        for text, cause in _STALE_CAUSES.items():
            if mentions(error, text):
                raise StaleRows(cause) from error
        raise
