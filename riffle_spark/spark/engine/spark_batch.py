"""Run the slots of a micro-batch on a Spark cluster, and deliver their results to sinks."""

import inspect
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LETTER, SLOT, Home, Order, Receipt, result_schema
from riffle_spark.process.blocks.combining import ROWS, Combined
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout
from riffle_spark.protocol.shards import Partition
from riffle_spark.settings import Settings
from riffle_spark.spark import compat
from riffle_spark.spark.engine import inventory, routing
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.combined_rows import combinable, combined_order, combined_rows
from riffle_spark.spark.engine.jvm_errors import is_interruption
from riffle_spark.spark.engine.kept_plan import PlacedSlots, PlanFrame
from riffle_spark.spark.engine.placed import PlacedFrames
from riffle_spark.spark.engine.stage_frames import StageInput, StoredResult, raising_stale_rows
from riffle_spark.spark.engine.tagged_jobs import Losses
from riffle_spark.spark.engine.task import ReceiptChannel, RunReceipts, SlotFunction, StoreWork, slot_function
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.log.manifest import Head, Link
from riffle_spark.state.restore.reader import Reader
from riffle_spark.worker.member_folders import keys_of, store_of
from riffle_spark.worker.result_chunks import chunked_schema

Batches = Iterable[pa.RecordBatch]
Sink = Callable[..., object]
"""``sink(frame, batch_id)`` or, if a third parameter has no default, ``sink(frame, batch_id, delivery_id)``."""


@runtime_checkable
class DeliverySink(Protocol):
    """A sink that gets the ``Delivery`` instead of ids."""

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Write the rows of a delivery."""


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks by store. Results of stores without a sink are not delivered.

    ``late`` is called with a watermark (ms) and the delivery if slots that read the batch dropped late rows.
    ``letters`` are the sinks of dead letters by store.
    """

    of_stores: Mapping[str, Sink | DeliverySink]
    late: Callable[[int, Delivery], object] | None = None
    letters: Mapping[str, Callable[[DataFrame, Delivery], object]] = field(default_factory=dict)


_logger = logging.getLogger("riffle_spark")
_ROWS = "riffle_rows"
_LINK = "version long, attempt string, start long, length long, checksum string, rows long"


class SparkWork:
    """Implements ``protocol.ports.Work`` for a call of ``foreachBatch``.

    ``reads`` has the inputs of the stores that read results of other stores, or a part of the batch. All other stores
    read the whole batch.
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
        """Create the work of a batch. ``initial`` has the frames of initial state by store. Runs no job."""
        self._batch = batch
        self._operators = {operator.store: operator for operator in operators}
        self._sinks = sinks
        self._frames = frames
        self._home = home
        self._settings = settings
        self._initial = initial
        self._reads = reads
        self._late_rows: tuple[int, int] | None = None
        self._dead_stores: set[str] | None = None
        self._plan_fallbacks = 0
        self._inputs: dict[str, DataFrame] = {}
        self._results: dict[str, StoredResult] = {}
        self._routing: dict[str, Callable[[], DataFrame]] = {}
        self._losses = Losses(batch.sparkSession, settings.batch_attempts)

    def is_placed(self) -> bool:
        """Return whether slots are placed on named executors, not by hash."""
        return self._frames.placeable

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id. If there is none, wait for the first."""
        return inventory.await_executors(self._batch.sparkSession, self._settings)

    def partitions(self, limit: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) of the rows, at most ``limit``. Runs one job."""
        return routing.partitions_of(self._batch, limit)

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that is not all null. Runs one job."""
        return routing.newest_event_times(self._batch, columns)

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, store the results, and return all receipts.

        If a slot fails, the stages that read its results do not run, and their receipts are missing.
        """
        executors = {slot.executor for group in layout.all_groups for slot in group.slots}
        receipts: list[Receipt] = []
        with self._losses.watched(executors):
            for stage in self._stages(layout, orders):
                store = stage[0].store
                if store not in self._reads:
                    receipts += self._run(layout.of(store), stage, is_replicated=len(executors) > 1)
                elif not any(receipt.error for receipt in receipts):
                    with raising_stale_rows():
                        self._inputs[store] = self._input(stage[0], receipts)
                        receipts += self._run(layout.of(store), stage, is_replicated=len(executors) > 1)
        self._dead_stores = {receipt.store for receipt in receipts if receipt.dead_rows}
        self._frames.reductions.record(receipts)
        if self._sinks.late is not None:
            late_ms = max(order.late_watermark_ms or 0 for order in orders if order.store not in self._reads)
            late_rows = sum(receipt.late_rows for receipt in receipts if receipt.store not in self._reads)
            self._late_rows = late_ms, late_rows
        return receipts

    def _stages(self, layout: SlotLayout, orders: Sequence[Order]) -> list[list[Order]]:
        """Return the orders by stage. Stores with the same key share a stage: its shuffled rows and its tasks.

        A store has a stage of its own if it reads a part of the batch or other stores, or if its rows are combined.
        """
        stages: dict[object, list[Order]] = {}
        for order in orders:
            is_alone = (
                order.store in self._reads or order.initial is not None or self._frames.reductions.combines(order.store)
            )
            shared_by = (layout.of(order.store).slots, order.key, order.routing, order.total)
            stages.setdefault(order.store if is_alone else shared_by, []).append(order)
        return [*stages.values()]

    def _input(self, order: Order, receipts: Sequence[Receipt]) -> DataFrame:
        """Return the rows of an order that reads a part of the batch, or results of other stages.

        ``receipts`` are those of the stages that have run.
        """
        reads = self._reads[order.store]
        answers = {store: self._rows(store, receipts) for store in reads.after}
        frame = reads.frame(self._batch, answers, order.time_ms)
        return routing.prepared(frame, [self._operators[order.store]])

    def _run(self, layout: SlotLayout, orders: Sequence[Order], *, is_replicated: bool) -> list[Receipt]:
        """Run the slots of a stage, store their result, and return their receipts."""
        channel = _receipt_channel(self._batch.sparkSession)
        for order in orders:
            self._routing[order.store] = partial(self._route, layout, order)
        try:
            plan = self._plan_stage(layout, orders, channel)
            outputs = {order.store: order.output for order in orders}
            result = StoredResult(plan, outputs, is_replicated=is_replicated)
        finally:
            accumulated = [] if channel is None else channel.accumulator.value.pop(channel.run_id, [])
        self._results |= dict.fromkeys(result.outputs, result)
        return [Receipt.from_json(text) for text in result.receipts(accumulated, len(orders[0].slots))]

    def _plan_stage(self, layout: SlotLayout, orders: Sequence[Order], channel: ReceiptChannel | None) -> PlanFrame:
        """Return the uncomputed result of a stage. Rows are combined if that reduces them enough (``Reductions``)."""
        if not handles.is_classic(self._batch.sparkSession):
            return self._plan_result(layout, orders, channel, None)
        reductions = self._frames.reductions
        combinations = [combinable(order, self._operators[order.store].compute, layout) for order in orders]
        rows = self._inputs.get(orders[0].store, self._batch)
        orders = [
            order if each is None else replace(order, input_partitions=reductions.partitions(order.store, rows))
            for order, each in zip(orders, combinations, strict=True)
        ]
        combined = combinations[0]
        if combined is not None and reductions.combines(orders[0].store):
            try:
                with reductions.room_for_keys(orders[0].store, rows.sparkSession):
                    return self._plan_result(layout, orders, channel, combined)
            except Exception as error:  # the JVM may raise any error; without combining a batch only takes longer
                if is_interruption(error):
                    raise
                _logger.debug("Rows of %s are not combined: %s", orders[0].store, error)
        return self._plan_result(layout, orders, channel, None)

    def _plan_result(
        self, layout: SlotLayout, orders: Sequence[Order], channel: ReceiptChannel | None, combined: Combined | None
    ) -> PlanFrame:
        """Return the uncomputed result of a stage, from a kept plan if possible.

        Raise ``LookupError`` or the JVM's error if ``combined`` is set but Spark cannot combine the rows.
        """
        frame = self._frames.frame(self._batch.sparkSession, layout)
        works = [self._work(order, combined) for order in orders]
        lead = orders[0]
        shared_columns = None
        if len(orders) > 1:
            fields = {field.name: field for order in orders for field in order.rows}
            lead = replace(lead, rows=pa.schema([*fields.values()]))
            shared_columns = [*fields]
        output = routing.spark_schema(chunked_schema([work.result_schema for work in works]))
        function = compat.slot_udf(slot_function(works, channel, shared_columns))
        plan_by_spark = partial(self._result, layout, lead, function, output, combined)
        if lead.initial is not None or not self._frames.placeable:
            return plan_by_spark()
        slots = PlacedSlots(frame, len(layout.slots), partial(routing.slot_by_key_group, layout, lead.total))
        files = handles.sent_files(self._batch.sparkSession)
        rows = self._inputs.get(lead.store, self._batch)
        sent_rows = lead.rows if combined is None else works[0].order.rows
        plan_key = (layout.shards, lead.key, lead.total, sent_rows, output, rows.schema, files)
        name = ", ".join(order.store for order in orders) + ("" if combined is None else ", combined")
        plans = self._frames.plans
        fallbacks_before = plans.fallbacks
        result = plans.plan_batch(name, plan_key, slots, rows, function, output, plan_by_spark)
        if lead.store not in self._inputs:  # Spark always plans later stages, because their rows are not a plain RDD.
            self._plan_fallbacks += plans.fallbacks - fallbacks_before
        return result

    def _work(self, order: Order, combined: Combined | None) -> StoreWork:
        """Return the work of a slot for the store of an order."""
        if self._frames.has_speculation:
            # A second attempt must not stop because a standby has the copy: Spark would kill the first attempt.
            order = replace(order, standbys={})
        result = routing.spark_schema(result_schema(order.output))
        schema = routing.arrow_of(result, large=self._frames.large_types)
        if combined is not None:
            return StoreWork(combined_order(order, combined), combined.compute, schema)
        return StoreWork(order, self._operators[order.store].compute, schema)

    def plan_fallbacks(self) -> int:
        """Return how often Spark planned slots that read the batch, or rows for a sink, although a plan was kept.

        The first batch, and the first after a change of the columns, do not count.
        """
        return self._plan_fallbacks

    def _result(
        self, layout: SlotLayout, order: Order, function: SlotFunction, output: StructType, combined: Combined | None
    ) -> PlanFrame:
        """Cogroup the routed rows of a stage with the placed slots; return the uncomputed result, planned by PySpark.

        ``order`` names all columns of the rows.
        """
        if combined is None:
            counted_rows = self._route(layout, order).observe(_ROWS, F.expr("count(1) as rows"))
        else:
            rows, routed_order = combined_rows(self._inputs.get(order.store, self._batch), order, combined)
            # The rows are counted before they are routed. So Spark does not merge the routing with the grouping, and
            # a kept plan can take another layout.
            counted = rows.observe(_ROWS, F.expr(f"coalesce(sum({ROWS}), 0L) as rows"))
            counted_rows = routing.routed(counted, routed_order, layout)
        slots = self._frames.frame(self._batch.sparkSession, layout)
        result = handles.cogrouped(slots, counted_rows.repartition(len(layout.slots), SLOT), SLOT, function, output)
        return PlanFrame(result, lambda: handles.observed(result, _ROWS))

    def _route(self, layout: SlotLayout, order: Order) -> DataFrame:
        """Return the routed rows of an order. They are read from the batch, or from the stage's own input."""
        batch = self._inputs.get(order.store, self._batch)
        if order.initial is not None:
            batch = routing.union_initial_state(batch, order, self._initial[order.store])
        return routing.routed(batch, order, layout)

    def count_routed_rows(self) -> Mapping[str, int | None]:
        """Return how many rows were shuffled per store. Rows that Spark's metrics do not count are counted by a job."""
        observed = {result: result.routed() for result in dict.fromkeys(self._results.values())}
        counts = {store: observed[result] for store, result in self._results.items()}
        return {store: self.recount(store) if count is None else count for store, count in counts.items()}

    def recount(self, store: str) -> int:
        """Count the rows that are routed to a store. Reads the input again."""
        with raising_stale_rows():
            return self._routing[store]().count()

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Pass each operator's rows to its sink after the check. The check runs while the frames are built."""
        with ThreadPoolExecutor(1, "riffle-check") as pool:
            checking = pool.submit(check)
            stores = [store for store in self._operators if store in self._sinks.of_stores]
            frames = {store: self._rows(store, receipts) for store in stores}
            checking.result()
        self._deliver_late(delivery)
        for store in self._dead_stores & self._sinks.letters.keys() if self._dead_stores else ():
            with raising_stale_rows():
                letters = self._results[store].letters(store, self._attempts(store, receipts))
                self._sinks.letters[store](letters, delivery)
        for store, rows in frames.items():
            with raising_stale_rows():
                self._deliver_to_sink(store, rows, delivery)

    def _rows(self, store: str, receipts: Sequence[Receipt]) -> DataFrame:
        """Return the output rows of a store, from the attempts that the receipts name."""
        outputs = self._frames.outputs
        fallbacks_before = outputs.fallbacks
        rows = outputs.rows(store, self._results[store], self._attempts(store, receipts))
        self._plan_fallbacks += outputs.fallbacks - fallbacks_before
        return rows

    def _attempts(self, store: str, receipts: Sequence[Receipt]) -> list[str]:
        """Return the names of the attempts in the result that holds a store's rows."""
        stores = self._results[store].outputs
        return [receipt.attempt for receipt in receipts if receipt.store in stores]

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Pass the output rows that were sealed with a committed batch to the sinks."""
        spark = self._batch.sparkSession
        rows = dict[str, DataFrame]()
        self._deliver_late(delivery)
        for store in {**self._sinks.of_stores, **self._sinks.letters}:
            links = [link for owner, link in outputs if owner == store]
            rows[store] = sealed_rows(spark, self._home, store, links, self._operators[store].declared.output)
        for store, letter_sink in self._sinks.letters.items():
            letters = rows[store].where(f"{LETTER} is not null").select(f"{LETTER}.*")
            if store in self._dead_stores if self._dead_stores is not None else not letters.isEmpty():
                letter_sink(letters, delivery)
            rows[store] = rows[store].where(f"{LETTER} is null").drop(LETTER)
        for store in self._sinks.of_stores:
            self._deliver_to_sink(store, rows[store], delivery)

    def _deliver_late(self, delivery: Delivery) -> None:
        """Deliver the late rows, if there are any. After a restart that is unknown, so the sink is called."""
        if self._sinks.late is not None:
            late_ms, count = self._late_rows or (self._watermark_before(delivery.batch_id), 1)
            if count:
                self._sinks.late(late_ms, delivery)

    def _watermark_before(self, version: int) -> int:
        """Return Spark's watermark (ms) of the previous batch. It decides which rows of batch ``version`` are late."""
        entry = inventory.offsets_before(self._batch, version)
        return 0 if entry is None else int(json.loads(entry.split("\n")[1])["batchWatermarkMs"])

    def _deliver_to_sink(self, store: str, rows: DataFrame, delivery: Delivery) -> None:
        """Pass the rows to the sink of a store."""
        sink = self._sinks.of_stores[store]
        if isinstance(sink, DeliverySink):
            sink.deliver(rows, delivery)
        else:
            sink(*(rows, delivery.batch_id, delivery.id)[: arity(sink)])

    def drain(self) -> None:
        """Read the input of a skipped batch to its end."""
        self._batch.write.format("noop").mode("append").save()

    def release(self) -> None:
        """Drop the stored results. May be called more than once."""
        for result in dict.fromkeys(self._results.values()):
            result.release()
        self._results.clear()
        self._inputs.clear()


def arity(sink: Sink) -> int:
    """Return the number of arguments of a sink: three if its third parameter has no default, else two.

    Raise ``ConfigError`` if it accepts neither.
    """
    if not callable(sink):
        raise ConfigError(
            f"The sink {sink!r} is not a function.",
            remedy="Write sink(frame, batch_id).",
            where="into",
            id="RIFFLE-0287",
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
        f"The sink {getattr(sink, '__qualname__', sink)!s}{signature} cannot be called with two or three arguments.",
        remedy="Write sink(frame, batch_id) or sink(frame, batch_id, delivery_id).",
        where="into",
        id="RIFFLE-0288",
    )


def sealed_rows(spark: SparkSession, home: Home, store: str, links: Sequence[Link], output: pa.Schema) -> DataFrame:
    """Return the output rows of a store in the linked parts. Each part is read by a task on an executor."""
    schema = routing.spark_schema(output)
    if not links:
        return spark.createDataFrame([], schema)
    rows = [
        (link.head.version, link.head.attempt, link.start, link.length, f"{link.checksum:016x}", link.rows)
        for link in links
    ]
    frame = spark.createDataFrame(rows, _LINK).repartition(len(rows))
    return frame.mapInArrow(read_function(home, store, routing.arrow_of(schema)), schema)


def read_function(home: Home, store: str, schema: pa.Schema) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow`` that reads sealed output: from rows with links to the linked rows."""
    text = home.to_json()
    return lambda batches: _read(text, store, schema, batches)


def _read(home_json: str, store: str, schema: pa.Schema, batches: Batches) -> Batches:
    """Yield the output rows that the links in the input refer to. Runs on executors."""
    home = Home.from_json(home_json)
    reader = Reader(store_of(home), keys_of(home))
    for batch in batches:
        for row in batch.to_pylist():
            head = Head(row["version"], row["attempt"])
            link = Link(head, row["start"], row["length"], int(row["checksum"], 16), row["rows"])
            rows = _with_letter_column(reader.read_outputs(store, [link])[link], schema)
            yield from _cast_to_output(rows, schema).to_batches()


def _cast_to_output(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return sealed rows in the declared schema. Raise ``ConfigError`` if they have other columns."""
    try:
        return cast_table(rows, schema)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        # Cause: With deliver_after_commit the sink first gets the sealed output of the newest committed batch.
        raise ConfigError(
            f"A committed batch has undelivered rows with the columns {', '.join(rows.column_names)}, but the query "
            f"now returns {', '.join(schema.names)}: {error}",
            remedy="Run the previous version of the query until the batch is delivered. Then start this one.",
            where="output",
            id="RIFFLE-0289",
        ) from error


def _with_letter_column(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return sealed rows with the dead-letter column if ``schema`` has it, and without it otherwise.

    Raise ``ConfigError`` if there are dead letters but the query has no sink for them.
    """
    if LETTER in schema.names and LETTER not in rows.column_names:
        return rows.append_column(schema.field(LETTER), pa.nulls(rows.num_rows, schema.field(LETTER).type))
    if LETTER in schema.names or LETTER not in rows.column_names:
        return rows
    if rows.column(LETTER).null_count < rows.num_rows:
        # Cause: With deliver_after_commit the dead letters of the newest committed batch are delivered first.
        raise ConfigError(
            "A committed batch has undelivered dead letters, but dead_letters is not set.",
            remedy="Start the query with dead_letters until the batch is delivered.",
            where="dead_letters",
            id="RIFFLE-0290",
        )
    return rows.drop_columns([LETTER])


_accumulators: list[Accumulator[dict[str, list[str]]]] = []
"""One accumulator for the receipts of all runs, because PySpark never frees one."""


def _receipt_channel(spark: SparkSession) -> ReceiptChannel | None:
    """Return the channel for the receipts of a new run, or ``None`` with Spark Connect."""
    if not handles.is_classic(spark):
        return None
    if not _accumulators:
        _accumulators.append(handles.context(spark).accumulator({}, RunReceipts()))
    return ReceiptChannel(uuid.uuid4().hex, _accumulators[0])
