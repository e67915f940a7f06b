"""One micro-batch's rows on a Spark cluster. Knows frames, persistence and sinks. Does not know the order of the
protocol's steps.
"""

import inspect
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark import Accumulator, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import ATTEMPT, RECEIPT, SLOT, Home, Order, Receipt, result_schema
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout, StaleRows
from riffle_spark.protocol.shards import Partition
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, routing
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.kept_plan import PlacedSlots, PlanFrame
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.tagged_jobs import Losses
from riffle_spark.spark.engine.task import RunReceipts, SlotFunction, Tell, slot_function
from riffle_spark.state.log.manifest import Head, Link
from riffle_spark.state.restore.reader import Reader
from riffle_spark.worker.member_folders import store_of

__all__ = ["GONE", "DeliverySink", "KeptResult", "Sink", "SparkWork", "arity", "mentions", "sealed_rows"]

Batches = Iterable[pa.RecordBatch]
Sink = Callable[..., object]
"""``sink(frame, batch_id)`` or, if a third parameter has no default, ``sink(frame, batch_id, delivery_id)``."""


@runtime_checkable
class DeliverySink(Protocol):
    """A sink that is told all there is of a delivery."""

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Take one delivery's rows."""


_STALE = "riffle: a row of an attempt that was given up"
# As Spark says it when it is raised: the bare text is in every plan of the frame, which Spark shows with other errors.
GONE = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's name for a part of a local checkpoint that is nowhere any more."""
_STALE_SIGNS = {
    f"[USER_RAISED_EXCEPTION] {_STALE}": "it has rows of an attempt that was given up",
    GONE: "a part of it is gone",
}
_ROWS = "riffle_rows"
_OURS = "__riffle_ours"
_FAILS = f"raise_error('{_STALE}')"
_IS_OURS = f"if({_OURS}, {RECEIPT} is null, {_FAILS})"
_LINK = "version long, attempt string, start long, length long, checksum string, rows long"
_logger = logging.getLogger("riffle_spark")


class SparkWork:
    """Implements ``protocol.ports.Work`` for one call of ``foreachBatch``."""

    def __init__(
        self,
        batch: DataFrame,
        operators: Sequence[Operator],
        sinks: Mapping[str, Sink | DeliverySink],
        frames: PlacedFrames,
        home: Home,
        settings: Settings,
        initial: Mapping[str, DataFrame] = MappingProxyType({}),
    ) -> None:
        self._batch = batch
        self._operators = {operator.store: operator for operator in operators}
        self._sinks = sinks
        self._frames = frames
        self._home = home
        self._settings = settings
        self._initial = initial
        self._results: dict[str, KeptResult] = {}
        self._routing: dict[str, Callable[[], DataFrame]] = {}
        self._losses = Losses(batch.sparkSession, settings.batch_attempts)

    def placed(self) -> bool:
        """Tell whether slots are placed by name, not by hash."""
        return self._frames.placeable

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id; while there is none, wait for one."""
        return inventory.await_executors(self._batch.sparkSession, self._settings)

    def partitions(self, most: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) of the rows, or ``most`` of them. One job."""
        return routing.partitions_of(self._batch, self._settings.dispatch_columns, most)

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that has any. One job."""
        return routing.newest_event_times(self._batch, columns)

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, keep the result once, and return all receipts."""
        executors = {slot.executor for slot in layout.slots}
        receipts: list[Receipt] = []
        with self._losses.watched(executors):
            for order in orders:
                tell = _tell(self._batch.sparkSession)
                try:
                    result = KeptResult(self._planned(layout, order, tell), several=len(executors) > 1)
                finally:
                    told = [] if tell is None else tell[1].value.pop(tell[0], [])
                self._results[order.store] = result
                receipts += [Receipt.from_json(text) for text in result.receipts(told, len(order.slots))]
        return receipts

    def _planned(self, layout: SlotLayout, order: Order, tell: Tell) -> PlanFrame:
        answer = routing.spark_schema(result_schema(order.output))
        function = slot_function(order, self._operators[order.store].compute, routing.arrow_of(answer), tell)
        self._routing[order.store] = partial(self._route, layout, order)
        plainly = partial(self._result, layout, order, function, answer)
        frame = self._frames.frame(self._batch.sparkSession, layout)
        if order.initial is not None or not self._frames.placeable:
            return plainly()
        slots = PlacedSlots(frame, len(layout.slots), partial(routing.slot_by_key_group, layout, order.total))
        files = handles.sent_files(self._batch.sparkSession)
        made_of = (layout.shards, order.key, order.total, order.rows, order.output, self._batch.schema, files)
        return self._frames.plans.planned(order.store, made_of, slots, self._batch, function, answer, plainly)

    def _result(self, layout: SlotLayout, order: Order, function: SlotFunction, answer: StructType) -> PlanFrame:
        counted = handles.counted(self._route(layout, order), _ROWS, len(layout.slots), SLOT)
        slots = self._frames.frame(self._batch.sparkSession, layout)
        result = handles.cogrouped(slots, counted, SLOT, function, answer)
        return PlanFrame(result, lambda: handles.observed(result, _ROWS))

    def _route(self, layout: SlotLayout, order: Order) -> DataFrame:
        batch = self._batch
        if order.initial is not None:
            batch = routing.with_initial(batch, order, self._initial[order.store])
        return routing.routed(batch, order, layout, self._settings.dispatch_columns)

    def routed(self) -> Mapping[str, int | None]:
        """Return how many rows went into the shuffle, per store, as Spark's own metrics counted them."""
        seen = {store: result.routed() for store, result in self._results.items()}
        return {store: self.recount(store) if found is None else found for store, found in seen.items()}

    def recount(self, store: str) -> int:
        """Return how many rows are routed to a store, by reading the input again."""
        return self._routing[store]().count()

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Give each operator's rows to its sink, once the check, which runs while their frames are made, has ended."""
        with ThreadPoolExecutor(1, "riffle-check") as beside:
            checking = beside.submit(check)
            frames = {store: self._rows(store, receipts) for store in self._results}
            checking.result()
        for store, rows in frames.items():
            with _raising_stale_rows():
                self._give(store, rows, delivery)

    def _rows(self, store: str, receipts: Sequence[Receipt]) -> DataFrame:
        attempts = [receipt.attempt for receipt in receipts if receipt.store == store]
        output = self._operators[store].declared.output
        query = " ".join(["select", ", ".join(_columns(output)), "from r where", _IS_OURS])
        return self._results[store].rows(attempts, output, self._frames.plans.sized(store, query, output))

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Give the sinks the output rows that were sealed with a committed batch."""
        spark = self._batch.sparkSession
        for store, operator in self._operators.items():
            links = [link for owner, link in outputs if owner == store]
            self._give(store, sealed_rows(spark, self._home, links, operator.declared.output), delivery)

    def _give(self, store: str, rows: DataFrame, delivery: Delivery) -> None:
        sink = self._sinks[store]
        if isinstance(sink, DeliverySink):
            sink.deliver(rows, delivery)
        else:
            sink(*(rows, delivery.batch_id, delivery.id)[: arity(sink)])

    def drain(self) -> None:
        """Read the input to its end, for a batch that is skipped."""
        self._batch.write.format("noop").mode("append").save()

    def release(self) -> None:
        """Drop the kept results. Idempotent."""
        for result in self._results.values():
            result.release()
        self._results.clear()


@contextmanager
def _raising_stale_rows() -> Iterator[None]:
    """Raise ``StaleRows`` where a sink fails since rows are of another attempt, or since a part of them is gone."""
    try:
        yield
    except Exception as error:
        for sign, meant in _STALE_SIGNS.items():
            if mentions(error, sign):
                raise StaleRows(meant) from error
        raise


def _rows_of(result: DataFrame, attempts: Sequence[str], output: pa.Schema) -> DataFrame:
    """Return the output rows; reading a row of any other attempt fails, so that a mixture is never delivered.

    Each column fails, too: where a sink asks for ``total > 1``, Spark may first ask whether ``total`` is there, and the
    filter never sees what that takes away.
    """
    marked = result.selectExpr("*", _mark(attempts))
    return marked.where(_IS_OURS).selectExpr(*_columns(output))


def _mark(attempts: Sequence[str]) -> str:
    known = ", ".join(f"'{attempt}'" for attempt in attempts)
    return f"{ATTEMPT} in ({known}) as {_OURS}"


def _columns(output: pa.Schema) -> list[str]:
    return [f"if({_OURS}, {name}, {_FAILS}) as {name}" for name in map(routing.quoted, output.names)]


def arity(sink: Sink) -> int:
    """Return with how many arguments a sink is called: three, if its third parameter has no default, else two.

    Raises ``ConfigError`` if it can be called with neither.
    """
    if not callable(sink):
        raise ConfigError(f"the sink {sink!r} is no function", remedy="write sink(frame, batch_id)", where="into")
    try:
        signature = inspect.signature(sink)
    except (TypeError, ValueError):
        return 2
    for count in (2, 3):
        with suppress(TypeError):
            signature.bind(*range(count))
            return count
    raise ConfigError(
        f"the sink {getattr(sink, '__qualname__', sink)!s}{signature} cannot be called with two or three arguments",
        remedy="write it as sink(frame, batch_id) or sink(frame, batch_id, delivery_id)",
        where="into",
    )


def sealed_rows(spark: SparkSession, home: Home, links: Sequence[Link], output: pa.Schema) -> DataFrame:
    """Return the rows of the parts that ``links`` name, read by executors, one task a part."""
    schema = routing.spark_schema(output)
    if not links:
        return spark.createDataFrame([], schema)
    rows = [(k.head.version, k.head.attempt, k.start, k.length, f"{k.checksum:016x}", k.rows) for k in links]
    named = spark.createDataFrame(rows, _LINK).repartition(len(rows))
    return named.mapInArrow(read_function(home, routing.arrow_of(schema)), schema)


def read_function(home: Home, schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow``: rows that describe links to the rows of their parts."""
    text = home.to_json()
    return lambda batches: _read(text, schema, batches)


def _read(home: str, schema: pa.Schema, batches: Batches) -> Batches:
    reader = Reader(store_of(Home.from_json(home)), None)
    for batch in batches:
        for row in batch.to_pylist():
            head = Head(row["version"], row["attempt"])
            link = Link(head, row["start"], row["length"], int(row["checksum"], 16), row["rows"])
            yield from reader.links([link])[link].cast(schema).to_batches()


_accumulators: list[Accumulator[dict[str, list[str]]]] = []
"""The one in which all runs' slots tell their receipts: PySpark never forgets one."""


def _tell(spark: SparkSession) -> Tell:
    """Return where the slots of a new run tell their receipts. Spark Connect has no such thing."""
    if not handles.is_classic(spark):
        return None
    if not _accumulators:
        _accumulators.append(handles.context(spark).accumulator({}, RunReceipts()))
    return uuid.uuid4().hex, _accumulators[0]


class KeptResult:
    """A frame that was computed and is kept, on two executors if there are ``several``. With Spark Connect the first
    action computes it.
    """

    def __init__(self, result: PlanFrame, *, several: bool) -> None:
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

    def rows(self, attempts: Sequence[str], output: pa.Schema, sized: handles.SinkPlan) -> DataFrame:
        """Return the output rows, of these attempts alone, in a frame that lets plans know how large it is: of unknown
        size, it is never broadcast. Spark Connect has no way to say so.
        """
        if handles.is_classic(self.frame.sparkSession):
            try:
                return sized.frame(self.frame, _mark(attempts))
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: plans are only slower without it
                _logger.debug("sinks' frames have no size: %s", error)
        return _rows_of(self.frame, attempts, output)

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
            _logger.warning("a batch's result is kept until its last reference is collected: %s", error)


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
