"""The function that Spark calls once a slot. Knows Spark's calling convention; hands over to the worker."""

import gc
import inspect
import socket
import sys
import threading
import zipimport
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from riffle_spark.messages.slot_orders import HASH, INITIAL, KEY_GROUP, RECEIPT, SLOT, Home, Order
from riffle_spark.messages.upkeep_orders import CensusOrder, UpkeepOrder
from riffle_spark.process.blocks.block import Computation
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import executor_id, store_of
from riffle_spark.worker.slot import run_slot
from riffle_spark.worker.upkeep_piece import run_upkeep

__all__ = [
    "Answering",
    "RunReceipts",
    "SlotFunction",
    "Tell",
    "census_function",
    "slot_function",
    "upkeep_function",
    "warm_function",
    "with_offsets",
]

SlotFunction = Callable[[tuple[pa.Scalar, ...], pa.Table, pa.Table], pa.Table]
Tell = tuple[str, Accumulator[dict[str, list[str]]]] | None
"""The run that a task tells something of, and where it tells it."""
Answering = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


_ANSWER_SECONDS = 0.03
"""How long an answer takes to leave the process, about."""
_OF_DAEMON = "worker"
"""The function of ``pyspark.daemon`` that runs a process's tasks."""


class RunReceipts(AccumulatorParam[dict[str, list[str]]]):
    """Gathers the receipts that tasks tell, by the run that they are of."""

    def zero(self, value: dict[str, list[str]]) -> dict[str, list[str]]:  # noqa: ARG002 - as pyspark calls it
        """Return what a task begins with."""
        return {}

    def addInPlace(  # noqa: N802 - as pyspark calls it
        self, value1: dict[str, list[str]], value2: dict[str, list[str]]
    ) -> dict[str, list[str]]:
        """Add what a task told."""
        for run, texts in value2.items():
            value1.setdefault(run, []).extend(texts)
        return value1


def slot_function(order: Order, given: Computation, answer: pa.Schema, tell: Tell = None) -> SlotFunction:
    """Return the function for ``cogroup(...).applyInArrow``: one slot's assignment row and input rows to its answer,
    whose receipt is told by ``tell`` as well.

    Spark pickles it: the order goes as text, and functions of ours by their names.
    """
    text = order.to_json()
    return lambda key, _, rows: _run(text, given, answer, tell, key[0].as_py(), rows)


def _run(text: str, given: Computation, answer: pa.Schema, tell: Tell, slot: int, rows: pa.Table) -> pa.Table:
    order = Order.from_json(text, slot)
    names = [SLOT, KEY_GROUP, HASH, *order.rows.names, *([] if order.initial is None else [INITIAL])]
    rows = with_offsets(rows.rename_columns(names))
    result = cast_table(run_slot(order, given, slot, executor_id(), rows, later=_beside), answer)
    if tell is not None:
        run, told = tell
        told.add({run: result[RECEIPT].drop_null().to_pylist()})
    _leave_worker("slot")
    return result


def with_offsets(rows: pa.Table) -> pa.Table:
    """Return the rows with offsets in every array of lists and maps. Arrow lets what has no element go without, as the
    JVM writes it, but pyarrow reads the first one there: where it counts bytes, the process ends.
    """
    if not any(pa.types.is_nested(kind) for kind in rows.schema.types):
        return rows
    columns = [pa.chunked_array([*map(_mended, column.chunks)], column.type) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _mended(array: pa.Array) -> pa.Array:
    kind = array.type
    if len(array) == 0:
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        children = [_mended(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        pairs = [_mended(array.keys), _mended(array.items)]
        below = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    elif pa.types.is_list(kind):
        below = _mended(array.values)
    else:
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [below])


def _beside(work: Callable[[], None]) -> None:
    """Do some work once the answer is under way, while Spark does its own: between batches slots have nothing to do.

    The worker may end before. Its process takes the next task meanwhile, and neither waits for the other. The work is
    left out where no more threads can be started: the answer counts.
    """
    timer = threading.Timer(_ANSWER_SECONDS, work)
    timer.daemon = True
    with suppress(RuntimeError):
        timer.start()


def _leave_worker(kind: str) -> None:
    """Leave a process so that its next task, of whatever kind, begins sooner."""
    _forget_zip_directories()
    _spare_collector(kind)
    connection = _connection()
    if connection is not None:
        _beside(partial(_acknowledge_at_once, connection))


def _connection() -> socket.socket | None:
    """Return the socket through which this task gets its rows: the one that pyspark's daemon has for this process."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("sock") if frame.f_code.co_name == _OF_DAEMON else None
        if isinstance(found, socket.socket):
            return found
        frame = frame.f_back
    return None


def _acknowledge_at_once(connection: socket.socket) -> None:
    """Have the system acknowledge at once what comes next.

    The JVM sends what a task is told and, before that is acknowledged, not the few rows of a small task: it waits with
    less than a packet. A socket that has just answered is taken for one that soon answers again, and acknowledges with
    that, or after 40 ms. Linux alone has a word for it, and takes it back with each answer.
    """
    with suppress(AttributeError, OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _forget_zip_directories() -> None:
    """Drop Python's cached directories of the zip files on its path, which it makes again when it needs them.

    A Python worker invalidates all import caches at each task, and Python then reads every zip directory anew: for
    pyspark's own zip files 40 to 80 ms a task, several times what a small slot takes.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _spare_collector(kind: str) -> None:
    """Take what lives after a process's first task of a kind out of Python's garbage collection: modules and clients.

    A Python worker collects all garbage after each task: 60 to 190 ms for what was imported, on the cores that Spark
    needs for the sink. Not after every task, or garbage would never go.
    """
    if kind not in _settled:
        _settled.add(kind)
        gc.freeze()


_settled: set[str] = set()
"""The kinds of tasks that this process has run."""


def census_function(order: CensusOrder) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame: each slot to a row with its executor's census."""
    text = order.to_json()
    return lambda batches: _answers(batches, lambda _: _census(text))


def _census(text: str) -> str:
    return take_census(CensusOrder.from_json(text), executor_id()).to_json()


def upkeep_function(orders: Mapping[int, UpkeepOrder]) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame: each slot's order to a row with a receipt."""
    texts = {slot: order.to_json() for slot, order in orders.items()}
    return lambda batches: _answers(batches, lambda slot: _upkeep(texts[slot]))


def _upkeep(text: str) -> str:
    return run_upkeep(UpkeepOrder.from_json(text), executor_id()).to_json()


def warm_function(home: Home) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame that leaves a worker ready: what a slot imports is
    imported with this module, and the store's client is made.
    """
    text = home.to_json()
    return lambda batches: _answers(batches, lambda _: _warmed(text))


def _warmed(home: str) -> str:
    store_of(Home.from_json(home))
    return executor_id()


def _answers(batches: Iterator[pa.RecordBatch], answer: Callable[[int], str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for slot in batch.column(0).to_pylist():
            yield pa.record_batch({"answer": [answer(slot)]})
    _leave_worker("beside")
