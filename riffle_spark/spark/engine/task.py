"""Provide the functions that Spark calls on executors: for slots, censuses, upkeep and warm-up."""

import gc
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from riffle_spark.messages.slot_orders import HASH, INITIAL, KEY_GROUP, RECEIPT, SLOT, Home, Order
from riffle_spark.messages.upkeep_orders import CensusOrder, UpkeepOrder
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.blocks.combining import encoded_names
from riffle_spark.spark.engine.import_caches import forget_zip_directories
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import executor_id, store_of
from riffle_spark.worker.result_chunks import chunk_results
from riffle_spark.worker.slot import StoreInput, run_slots
from riffle_spark.worker.upkeep_piece import run_upkeep

SlotFunction = Callable[[tuple[pa.Scalar, ...], pa.Table, pa.Table], pa.Table]
Answering = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_ANSWER_SECONDS = 0.03
"""The time that a result takes to leave the process."""
_TASK_FUNCTION = "worker"
"""The function of ``pyspark.daemon`` that runs tasks."""
_SECOND_ATTEMPT_SECONDS = 15.0
"""The time that a second attempt leaves to the first. Upkeep takes 1 s, and the start of a process some seconds."""
_REUSE_VARIABLE = "SPARK_REUSE_WORKER"
"""Spark sets it for its Python workers unless ``spark.python.worker.reuse`` is false."""


class ReceiptChannel(NamedTuple):
    """The id of a run, and the accumulator to which its tasks add their receipts."""

    run_id: str
    accumulator: Accumulator[dict[str, list[str]]]


class RunReceipts(AccumulatorParam[dict[str, list[str]]]):
    """Collects the receipts of tasks: a mapping from the run's id to JSON texts."""

    def zero(self, value: dict[str, list[str]]) -> dict[str, list[str]]:  # noqa: ARG002 - as pyspark calls it
        """Return the initial value of a task's accumulator: no receipts."""
        return {}

    def addInPlace(  # noqa: N802 - as pyspark calls it
        self, value1: dict[str, list[str]], value2: dict[str, list[str]]
    ) -> dict[str, list[str]]:
        """Add the receipts in ``value2`` to ``value1``, and return it."""
        for run, texts in value2.items():
            value1.setdefault(run, []).extend(texts)
        return value1


class StoreWork(NamedTuple):
    """The work of a slot for one store: the order, the computation, and the schema of the result in rows."""

    order: Order
    compute: Computation
    result_schema: pa.Schema


def slot_function(
    works: Sequence[StoreWork], channel: ReceiptChannel | None = None, shared_columns: Sequence[str] | None = None
) -> SlotFunction:
    """Return the function for ``cogroup(...).applyInArrow``: from a slot's input rows to its results in chunks.

    All stores of ``works`` get the same rows. ``shared_columns`` are the columns of these rows if there are several
    stores. The function also sends the receipts through ``channel``. Spark pickles the function with its variables, so
    they contain no object of a class of this package.
    """
    texts = [(work.order.to_json(), work.compute, work.result_schema) for work in works]
    run = None if channel is None else (channel.run_id, channel.accumulator)
    return lambda key, _, rows: _run(texts, run, shared_columns, key[0].as_py(), rows)


def _run(
    works: Sequence[tuple[str, Computation, pa.Schema]],
    run: tuple[str, Accumulator[dict[str, list[str]]]] | None,
    shared_columns: Sequence[str] | None,
    slot: int,
    rows: pa.Table,
) -> pa.Table:
    """Run a slot on an executor for one store after the other; return the results of all stores in chunks.

    ``works`` has the stores' orders as text, their computations and the schemas of their results. ``run`` is the run's
    id and the accumulator for receipts. ``shared_columns`` are the columns of the rows if there are several stores.
    """
    rows = with_offsets(rows)
    orders = [Order.from_json(text, slot) for text, _, _ in works]
    stores = [
        StoreInput(order, compute, _rows_of(order, rows, shared_columns))
        for order, (_, compute, _) in zip(orders, works, strict=True)
    ]
    answers = run_slots(stores, slot, executor_id(), later=_tidy)
    schemas = [schema for _, _, schema in works]
    chunks = chunk_results(_cast_results(answers, schemas), schemas)
    if run is not None:
        run_id, accumulator = run
        accumulator.add({run_id: chunks[RECEIPT].drop_null().to_pylist()})
    _prepare_next_task("slot")
    return chunks


def _cast_results(answers: list[pa.Table], schemas: Sequence[pa.Schema]) -> Iterator[pa.Table]:
    """Yield the answers, each in its schema. Remove them from the list, so that each is freed once it is chunked."""
    for schema in schemas:
        yield cast_table(answers.pop(0), schema)


def _rows_of(order: Order, rows: pa.Table, shared_columns: Sequence[str] | None) -> pa.Table:
    """Return the rows with the columns of an order, selected from ``shared_columns`` if there are several stores."""
    routing = [SLOT, KEY_GROUP, HASH]
    columns = encoded_names(order.rows.names, order.sums)
    if shared_columns is not None:
        return rows.rename_columns([*routing, *shared_columns]).select([*routing, *columns])
    return rows.rename_columns([*routing, *columns, *([] if order.initial is None else [INITIAL])])


def with_offsets(rows: pa.Table) -> pa.Table:
    """Return the rows with offsets in every array of lists and maps.

    Arrow allows an empty array without offsets, and the JVM writes such arrays. pyarrow crashes when it counts the
    bytes of such an array, because it reads the first offset.
    """
    if not any(pa.types.is_nested(kind) for kind in rows.schema.types):
        return rows
    columns = [pa.chunked_array([*map(_with_offsets, column.chunks)], column.type) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _with_offsets(array: pa.Array) -> pa.Array:
    """Return an array in which it and each nested list and map has offsets."""
    kind = array.type
    if len(array) == 0:
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        children = [_with_offsets(array.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        pairs = [_with_offsets(array.keys), _with_offsets(array.items)]
        elements = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    elif pa.types.is_list(kind):
        elements = _with_offsets(array.values)
    else:
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [elements])


def _tidy(work: Callable[[], None]) -> None:
    """Run work after the result. If the process ends with its task, run it now, because a thread would be killed.

    That is so with ``spark.python.worker.reuse`` = false, and without ``pyspark.daemon``.
    """
    if os.environ.get(_REUSE_VARIABLE) and _connection() is not None:
        _run_after_result(work)
    else:
        work()


def _run_after_result(work: Callable[[], None]) -> None:
    """Run work on another thread after the result has left the process, while Spark continues the batch.

    The process may run its next task at the same time. If no thread can be started, the work is skipped.
    """
    timer = threading.Timer(_ANSWER_SECONDS, work)
    timer.daemon = True
    with suppress(RuntimeError):
        timer.start()


def _prepare_next_task(kind: str) -> None:
    """Prepare the process so that its next task starts faster. ``kind`` is the kind of the task that ends."""
    forget_zip_directories()
    _freeze_after_first(kind)
    connection = _connection()
    if connection is not None:
        _run_after_result(partial(_acknowledge_at_once, connection))


def _connection() -> socket.socket | None:
    """Return the socket on which this task gets its rows. It is a local variable of pyspark's daemon."""
    frame = inspect.currentframe()
    while frame is not None:
        candidate = frame.f_locals.get("sock") if frame.f_code.co_name == _TASK_FUNCTION else None
        if isinstance(candidate, socket.socket):
            return candidate
        frame = frame.f_back
    return None


def _acknowledge_at_once(connection: socket.socket) -> None:
    """Acknowledge the next packet at once (``TCP_QUICKACK``, on Linux only).

    1. The JVM sends the command of a task. It sends the rows of a small task only once the command is acknowledged.
    2. The kernel delays the acknowledgement by 40 ms if the socket has just sent data, because it may send more.
    3. The option lasts until the socket sends data again, so every task sets it.
    """
    with suppress(AttributeError, OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _freeze_after_first(kind: str) -> None:
    """After a process's first task of a kind, exclude all live objects, such as modules, from garbage collection.

    A Python worker collects garbage after each task, which takes 60 to 190 ms with all imported modules. Objects of
    later tasks are not excluded, so that their garbage is collected.
    """
    if kind not in _frozen_kinds:
        _frozen_kinds.add(kind)
        gc.freeze()


_frozen_kinds: set[str] = set()
"""The kinds of tasks that this process has run."""


def census_function(order: CensusOrder) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame that returns for each slot its executor's census."""
    text = order.to_json()
    return lambda batches: _answers(batches, lambda _: _census(text))


def _census(text: str) -> str:
    """Take this executor's census; return it as text."""
    return take_census(CensusOrder.from_json(text), executor_id()).to_json()


def upkeep_function(orders: Mapping[int, UpkeepOrder]) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame that runs each slot's order and returns its receipt."""
    texts = {slot: order.to_json() for slot, order in orders.items()}
    return lambda batches: _answers(batches, lambda slot: _upkeep(texts[slot]))


def _upkeep(text: str) -> str:
    """Run an upkeep order on this executor; return its receipt as text."""
    return run_upkeep(UpkeepOrder.from_json(text), executor_id()).to_json()


def warm_function(home: Home) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame that opens the store's client in the Python worker.

    Spark also imports this module there, with all modules that a slot needs.
    """
    text = home.to_json()
    return lambda batches: _answers(batches, lambda _: _warm(text))


def _warm(home_json: str) -> str:
    """Open this Python worker's client of the root's store; return the executor's id."""
    store_of(Home.from_json(home_json))
    return executor_id()


def leaving_time_to_first_attempts(function: Answering, executors: Mapping[int, str]) -> Answering:
    """Return a function that waits before it runs on another executor than its slot's. ``executors`` has these by slot.

    With ``spark.speculation`` Spark starts a second attempt of a slow task on another executor, which cannot do the
    work. If this attempt ended first, Spark would kill the first attempt in the middle of its work.
    """
    return lambda batches: function(_wait_elsewhere(batches, executors))


def _wait_elsewhere(batches: Iterator[pa.RecordBatch], executors: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Wait before one of another executor. Spark kills this when the first attempt ends."""
    for batch in batches:
        task = TaskContext.get()
        planned = {executors[slot] for slot in batch.column(0).to_pylist()}
        if task is not None and task.attemptNumber() > 0 and not planned <= {executor_id()}:
            time.sleep(_SECOND_ATTEMPT_SECONDS)
        yield batch


def _answers(batches: Iterator[pa.RecordBatch], answer: Callable[[int], str]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each slot in the input, with the text that ``answer`` returns for the slot's number."""
    for batch in batches:
        for slot in batch.column(0).to_pylist():
            yield pa.record_batch({"answer": [answer(slot)]})
    _prepare_next_task("upkeep")
