"""The frames of a stage: the rows that its slots read where these are another stage's results, what is kept of its own
slots' answers, and how it is found out that rows of these are of no use any more. Knows frames and persistence. Does
not know plans, sinks or the steps of a batch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.messages.slot_orders import ATTEMPT, LETTER, RECEIPT, without_letters
from riffle_spark.protocol.ports import Delivery, StaleRows
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine import kept_plan, routing

__all__ = ["GONE", "KeptResult", "SideOutput", "StageInput", "mentions", "raising_stale_rows", "rows_of"]

_STALE = "riffle: a row of an attempt that was given up"
# As Spark says it when it is raised: the bare text is in every plan of the frame, which Spark shows with other errors.
GONE = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's name for a part of a local checkpoint that is nowhere any more."""
_STALE_SIGNS = {
    f"[USER_RAISED_EXCEPTION] {_STALE}": "it has rows of an attempt that was given up",
    GONE: "a part of it is gone",
}
_OURS = "__riffle_ours"
_FAILS = f"raise_error('{_STALE}')"
_logger = logging.getLogger("riffle_spark")


class StageInput(Protocol):
    """The rows of a stage that does not read the batch as it is: of other stages' results, or a part of the batch.

    ``after`` are those stages' stores; ``empty`` is a frame of the columns of the rows, without any.
    """

    @property
    def after(self) -> Sequence[str]:
        """Return the stores of the stages before."""
        ...

    @property
    def empty(self) -> DataFrame:
        """Return a frame without rows."""
        ...

    def frame(self, batch: DataFrame, answers: Mapping[str, DataFrame], time_ms: int) -> DataFrame:
        """Return the rows, of a batch of this time and of what the slots of stages before answered, by store."""
        ...


class SideOutput(Protocol):
    """What takes the rows that are too late for the slots which read the batch. Where there is one, the batch's rows
    are not yet those that slots get.
    """

    def mapped(self, batch: DataFrame, time_ms: int) -> DataFrame:
        """Return what slots get of a batch's rows, as of the batch's time."""
        ...

    def deliver(self, batch: DataFrame, late_ms: int, delivery: Delivery) -> None:
        """Give on those rows of a batch that are late by a watermark."""
        ...


class KeptResult:
    """A frame that was computed and is kept, on two executors if there are ``several``. With Spark Connect the first
    action computes it.
    """

    def __init__(self, result: kept_plan.PlanFrame, *, several: bool) -> None:
        self._rows = result.rows
        level = StorageLevel.MEMORY_AND_DISK_2 if several else StorageLevel.MEMORY_AND_DISK
        eager = handles.is_classic(result.frame.sparkSession)
        self.frame = result.frame.localCheckpoint(eager=eager, storageLevel=level)

    def receipts(self, told: list[str], slots: int) -> list[str]:
        """Return what was told beside the rows, if it is the receipts of so many slots, else those among the rows.

        A task that finds its part computed, by another that failed afterwards, tells nothing.
        """
        if len(told) == slots:
            return told
        return [row[0] for row in self.frame.where(F.col(RECEIPT).isNotNull()).select(RECEIPT).collect()]

    def rows(self, attempts: Sequence[str], output: pa.Schema, planned: Callable[[str], handles.SinkPlan]) -> DataFrame:
        """Return the output rows, of these attempts alone, in a frame that lets plans know how large it is: of unknown
        size, it is never broadcast. Spark Connect has no way to say so. ``planned`` keeps the plan of a query.
        """
        if handles.is_classic(self.frame.sparkSession):
            query = " ".join(["select", ", ".join(_columns(output)), "from r where", _is_ours(output)])
            try:
                return planned(query).frame(self.frame, _mark(attempts))
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: plans are only slower without it
                _logger.debug("sinks' frames have no size: %s", error)
        return rows_of(self.frame, attempts, output)

    def letters(self, attempts: Sequence[str]) -> DataFrame:
        """Return the dead letters, of these attempts alone."""
        ours = self.frame.selectExpr("*", _mark(attempts)).where(f"if({_OURS}, {LETTER} is not null, {_FAILS})")
        return ours.selectExpr(f"if({_OURS}, {LETTER}, {_FAILS}) as {LETTER}").select(f"{LETTER}.*")

    def routed(self) -> int | None:
        """Return how many rows went into the shuffle, once an action is through, or ``None``."""
        try:
            return self._rows()
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: the rows can be counted anew
            _logger.debug("what was observed of a result cannot be read: %s", error)
            return None

    def release(self) -> None:
        """Drop what is kept: reading the frame fails from now on. Spark Connect drops it with its last reference."""
        if not handles.is_classic(self.frame.sparkSession):
            return
        try:
            handles.release(self.frame)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: it must not hide why a batch failed
            is_stopped = handles.is_interruption(error)  # with its query: nobody has to look at that
            said = "a batch's result is kept until its last reference is collected: %s"
            _logger.log(logging.DEBUG if is_stopped else logging.WARNING, said, error)


def rows_of(result: DataFrame, attempts: Sequence[str], output: pa.Schema) -> DataFrame:
    """Return the output rows; reading a row of any other attempt fails, so that a mixture is never delivered.

    Each column fails, too: where a sink asks for ``total > 1``, Spark may first ask whether ``total`` is there, and the
    filter never sees what that takes away.
    """
    marked = result.selectExpr("*", _mark(attempts))
    return marked.where(_is_ours(output)).selectExpr(*_columns(output))


def _mark(attempts: Sequence[str]) -> str:
    known = ", ".join(f"'{attempt}'" for attempt in attempts)
    return f"{ATTEMPT} in ({known}) as {_OURS}"


def _is_ours(output: pa.Schema) -> str:
    is_row = f"{RECEIPT} is null" + (f" and {LETTER} is null" if LETTER in output.names else "")
    return f"if({_OURS}, {is_row}, {_FAILS})"


def _columns(output: pa.Schema) -> list[str]:
    names = map(routing.quoted, without_letters(output).names)
    return [f"if({_OURS}, {name}, {_FAILS}) as {name}" for name in names]


@contextmanager
def raising_stale_rows() -> Iterator[None]:
    """Raise ``StaleRows`` where a reader fails since rows are of another attempt, or since a part of them is gone."""
    try:
        yield
    except Exception as error:
        for sign, meant in _STALE_SIGNS.items():
            if mentions(error, sign):
                raise StaleRows(meant) from error
        raise


def mentions(error: BaseException, words: str) -> bool:
    """Tell whether an error says something, or one that led to it does: writers and sinks wrap what they get."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        at = waiting.pop()
        if at is None or id(at) in seen:
            continue
        if words in str(at):
            return True
        seen.add(id(at))
        waiting += [at.__cause__, at.__context__, getattr(at, "_cause", None)]
    return False
