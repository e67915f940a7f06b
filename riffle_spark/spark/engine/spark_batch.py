"""One micro-batch's rows on a Spark cluster. Knows frames, persistence and sinks. Does not know the order of the
protocol's steps.
"""

import inspect
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LETTER, SLOT, Home, Order, Receipt, result_schema
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout
from riffle_spark.protocol.shards import Partition
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, routing
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.kept_plan import PlacedSlots, PlanFrame
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.stage_frames import KeptResult, StageInput, raising_stale_rows
from riffle_spark.spark.engine.tagged_jobs import Losses
from riffle_spark.spark.engine.task import RunReceipts, SlotFunction, Tell, slot_function
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.log.manifest import Head, Link
from riffle_spark.state.restore.reader import Reader
from riffle_spark.worker.member_folders import keys_of, store_of

__all__ = ["DeliverySink", "Sink", "Sinks", "SparkWork", "arity", "sealed_rows"]

Batches = Iterable[pa.RecordBatch]
Sink = Callable[..., object]
"""``sink(frame, batch_id)`` or, if a third parameter has no default, ``sink(frame, batch_id, delivery_id)``."""


@runtime_checkable
class DeliverySink(Protocol):
    """A sink that is told all there is of a delivery."""

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Take one delivery's rows."""


@dataclass(frozen=True, slots=True)
class Sinks:
    """What takes the results of stores; those that none is for are not delivered. ``late`` takes what the slots that
    read the batch left out as too late: a watermark (ms), and the delivery. ``letters`` take dead letters of stores.
    """

    of_stores: Mapping[str, Sink | DeliverySink]
    late: Callable[[int, Delivery], object] | None = None
    letters: Mapping[str, Callable[[DataFrame, Delivery], object]] = field(default_factory=dict)


_ROWS = "riffle_rows"
_LINK = "version long, attempt string, start long, length long, checksum string, rows long"


class SparkWork:
    """Implements ``protocol.ports.Work`` for one call of ``foreachBatch``.

    ``reads`` says of stores whose slots read others' results, or a part of the batch, where their rows come from; all
    others read the batch as it is.
    """

    def __init__(
        self,
        batch: DataFrame,
        operators: Sequence[Operator],
        sinks: Sinks,
        frames: PlacedFrames,
        home: Home,
        settings: Settings,
        initial: Mapping[str, DataFrame] = MappingProxyType({}),
        reads: Mapping[str, StageInput] = MappingProxyType({}),
    ) -> None:
        self._batch = batch
        self._operators = {operator.store: operator for operator in operators}
        self._sinks = sinks
        self._frames = frames
        self._home = home
        self._settings = settings
        self._initial = initial
        self._reads = reads
        self._left_out: tuple[int, int] | None = None
        self._dead: set[str] | None = None
        self._plan_fallbacks = 0
        self._inputs: dict[str, DataFrame] = {}
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
        return routing.partitions_of(self._batch, most)

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that has any. One job."""
        return routing.newest_event_times(self._batch, columns)

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, keep the result once, and return all receipts.

        What comes behind a slot that failed is not run: its receipts are missing.
        """
        executors = {slot.executor for each in layout.each for slot in each.slots}
        receipts: list[Receipt] = []
        with self._losses.watched(executors):
            for order in orders:
                if order.store not in self._reads:
                    receipts += self._run(layout.of(order.store), order, several=len(executors) > 1)
                elif not any(receipt.error for receipt in receipts):
                    with raising_stale_rows():
                        self._inputs[order.store] = self._input(order, receipts)
                        receipts += self._run(layout.of(order.store), order, several=len(executors) > 1)
        self._dead = {one.store for one in receipts if one.dead_rows}
        if self._sinks.late is not None:
            late_ms = max(order.late_watermark_ms or 0 for order in orders if order.store not in self._reads)
            self._left_out = late_ms, sum(one.late_rows for one in receipts if one.store not in self._reads)
        return receipts

    def _input(self, order: Order, receipts: Sequence[Receipt]) -> DataFrame:
        """Return the rows of an order whose slots read what the receipts are of, or a part of the batch."""
        reads = self._reads[order.store]
        answers = {store: self._rows(store, receipts) for store in reads.after}
        frame = reads.frame(self._batch, answers, order.time_ms)
        return routing.prepared(frame, [self._operators[order.store]])

    def _run(self, layout: SlotLayout, order: Order, *, several: bool) -> list[Receipt]:
        tell = _tell(self._batch.sparkSession)
        try:
            result = KeptResult(self._planned(layout, order, tell), several=several)
        finally:
            told = [] if tell is None else tell[1].value.pop(tell[0], [])
        self._results[order.store] = result
        return [Receipt.from_json(text) for text in result.receipts(told, len(order.slots))]

    def _planned(self, layout: SlotLayout, order: Order, tell: Tell) -> PlanFrame:
        answer = routing.spark_schema(result_schema(order.output))
        function = slot_function(order, self._operators[order.store].compute, routing.arrow_of(answer), tell)
        self._routing[order.store] = partial(self._route, layout, order)
        plainly = partial(self._result, layout, order, function, answer)
        frame = self._frames.frame(self._batch.sparkSession, layout)
        if order.initial is not None or not self._frames.placeable:
            return plainly()
        slots = PlacedSlots(frame, len(layout.slots), partial(routing.slot_by_key_group, layout, order.total))
        files, rows = handles.sent_files(self._batch.sparkSession), self._inputs.get(order.store, self._batch)
        made_of = (layout.shards, order.key, order.total, order.rows, order.output, rows.schema, files)
        plans = self._frames.plans
        fallbacks_before = plans.fallbacks
        frame_of_plan = plans.planned(order.store, made_of, slots, rows, function, answer, plainly)
        if order.store not in self._inputs:  # The rows of later stages come with a plan of their own each time.
            self._plan_fallbacks += plans.fallbacks - fallbacks_before
        return frame_of_plan

    def plan_fallbacks(self) -> int:
        """Return how many plans of slots that read the batch were made anew although columns had not changed."""
        return self._plan_fallbacks

    def _result(self, layout: SlotLayout, order: Order, function: SlotFunction, answer: StructType) -> PlanFrame:
        counted = handles.counted(self._route(layout, order), _ROWS, len(layout.slots), SLOT)
        slots = self._frames.frame(self._batch.sparkSession, layout)
        result = handles.cogrouped(slots, counted, SLOT, function, answer)
        return PlanFrame(result, lambda: handles.observed(result, _ROWS))

    def _route(self, layout: SlotLayout, order: Order) -> DataFrame:
        batch = self._inputs.get(order.store, self._batch)
        if order.initial is not None:
            batch = routing.with_initial(batch, order, self._initial[order.store])
        return routing.routed(batch, order, layout)

    def routed(self) -> Mapping[str, int | None]:
        """Return how many rows went into the shuffle, per store, as Spark's own metrics counted them."""
        seen = {store: result.routed() for store, result in self._results.items()}
        return {store: self.recount(store) if found is None else found for store, found in seen.items()}

    def recount(self, store: str) -> int:
        """Return how many rows are routed to a store, by reading the input again."""
        with raising_stale_rows():
            return self._routing[store]().count()

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Give each operator's rows to its sink, once the check, which runs while their frames are made, has ended."""
        with ThreadPoolExecutor(1, "riffle-check") as beside:
            checking = beside.submit(check)
            frames = {store: self._rows(store, receipts) for store in self._results if store in self._sinks.of_stores}
            checking.result()
        self._deliver_late(delivery)
        for store in self._dead & self._sinks.letters.keys() if self._dead else ():
            with raising_stale_rows():
                self._sinks.letters[store](self._results[store].letters(_attempts(store, receipts)), delivery)
        for store, rows in frames.items():
            with raising_stale_rows():
                self._give(store, rows, delivery)

    def _rows(self, store: str, receipts: Sequence[Receipt]) -> DataFrame:
        attempts, output = _attempts(store, receipts), self._operators[store].declared.output
        return self._results[store].rows(attempts, output, lambda query: self._frames.plans.sized(store, query, output))

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Give the sinks the output rows that were sealed with a committed batch."""
        spark, rows = self._batch.sparkSession, dict[str, DataFrame]()
        self._deliver_late(delivery)
        for store in {**self._sinks.of_stores, **self._sinks.letters}:
            links = [link for owner, link in outputs if owner == store]
            rows[store] = sealed_rows(spark, self._home, store, links, self._operators[store].declared.output)
        for store, give in self._sinks.letters.items():
            letters = rows[store].where(f"{LETTER} is not null").select(f"{LETTER}.*")
            if store in self._dead if self._dead is not None else not letters.isEmpty():
                give(letters, delivery)
            rows[store] = rows[store].where(f"{LETTER} is null").drop(LETTER)
        for store in self._sinks.of_stores:
            self._give(store, rows[store], delivery)

    def _deliver_late(self, delivery: Delivery) -> None:
        """Give on what was left out. Of a batch that ran before a restart nobody says any more whether that is any."""
        if self._sinks.late is not None:
            late_ms, count = self._left_out or (self._watermark_before(delivery.batch_id), 1)
            if count:
                self._sinks.late(late_ms, delivery)

    def _watermark_before(self, version: int) -> int:
        """Return Spark's watermark (ms) of the batch before one, by which the rows of that one are late."""
        entry = inventory.offsets_before(self._batch, version)
        return 0 if entry is None else int(json.loads(entry.split("\n")[1])["batchWatermarkMs"])

    def _give(self, store: str, rows: DataFrame, delivery: Delivery) -> None:
        sink = self._sinks.of_stores[store]
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
        self._inputs.clear()


def _attempts(store: str, receipts: Sequence[Receipt]) -> list[str]:
    return [receipt.attempt for receipt in receipts if receipt.store == store]


def arity(sink: Sink) -> int:
    """Return with how many arguments a sink is called: three, if its third parameter has no default, else two.

    Raises ``ConfigError`` if it can be called with neither.
    """
    if not callable(sink):
        raise ConfigError(
            f"the sink {sink!r} is not a function", remedy="write sink(frame, batch_id)", where="into", id="RIFFLE-0287"
        )
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
        id="RIFFLE-0288",
    )


def sealed_rows(spark: SparkSession, home: Home, store: str, links: Sequence[Link], output: pa.Schema) -> DataFrame:
    """Return a store's output rows in the parts that ``links`` name, read by executors, one task a part."""
    schema = routing.spark_schema(output)
    if not links:
        return spark.createDataFrame([], schema)
    rows = [(k.head.version, k.head.attempt, k.start, k.length, f"{k.checksum:016x}", k.rows) for k in links]
    named = spark.createDataFrame(rows, _LINK).repartition(len(rows))
    return named.mapInArrow(read_function(home, store, routing.arrow_of(schema)), schema)


def read_function(home: Home, store: str, schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow``: rows that describe links to the rows of their parts."""
    text = home.to_json()
    return lambda batches: _read(text, store, schema, batches)


def _read(home: str, store: str, schema: pa.Schema, batches: Batches) -> Batches:
    told = Home.from_json(home)
    reader = Reader(store_of(told), None, keys_of(told))
    for batch in batches:
        for row in batch.to_pylist():
            head = Head(row["version"], row["attempt"])
            link = Link(head, row["start"], row["length"], int(row["checksum"], 16), row["rows"])
            yield from _declared(_told_alike(reader.outputs(store, [link])[link], schema), schema).to_batches()


def _declared(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return sealed rows with the columns that are declared now. Raises ``ConfigError`` where these are others."""
    try:
        return cast_table(rows, schema)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"a committed batch has output rows to deliver with the columns {', '.join(rows.column_names)}, and the "
            f"query gives {', '.join(schema.names)} now: {error}",
            remedy="start the version of the query that ran this batch, until Spark has noted the batch; then this one",
            where="the output",
            id="RIFFLE-0289",
        ) from error


def _told_alike(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return sealed rows with dead letters where they are wanted now, whether or not they were when they were sealed.

    Raises ``ConfigError`` for letters that nobody would get.
    """
    if LETTER in schema.names and LETTER not in rows.column_names:
        return rows.append_column(schema.field(LETTER), pa.nulls(rows.num_rows, schema.field(LETTER).type))
    if LETTER in schema.names or LETTER not in rows.column_names:
        return rows
    if rows.column(LETTER).null_count < rows.num_rows:
        raise ConfigError(
            "a committed batch has dead letters that nobody was given yet, and the query has no dead_letters now",
            remedy="start it with dead_letters once more, until that batch is delivered",
            where="dead_letters",
            id="RIFFLE-0290",
        )
    return rows.drop_columns([LETTER])


_accumulators: list[Accumulator[dict[str, list[str]]]] = []
"""The one in which all runs' slots tell their receipts: PySpark never forgets one."""


def _tell(spark: SparkSession) -> Tell:
    """Return where the slots of a new run tell their receipts. Spark Connect has no such thing."""
    if not handles.is_classic(spark):
        return None
    if not _accumulators:
        _accumulators.append(handles.context(spark).accumulator({}, RunReceipts()))
    return uuid.uuid4().hex, _accumulators[0]
