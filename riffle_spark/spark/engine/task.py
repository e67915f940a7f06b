"""The function that Spark calls once a slot. Knows Spark's calling convention; hands over to the worker."""

from __future__ import annotations

import sys
import zipimport
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from riffle_spark.messages.census_orders import CensusOrder
from riffle_spark.messages.slot_orders import INITIAL, KEY_GROUP, SLOT, Home, Order
from riffle_spark.messages.upkeep_orders import UpkeepOrder
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import executor_id, store_of
from riffle_spark.worker.slot import run_slot
from riffle_spark.worker.upkeep_piece import run_upkeep

__all__ = ["Answering", "census_function", "slot_function", "upkeep_function", "warm_function"]

SlotFunction = Callable[[tuple[pa.Scalar, ...], pa.Table, pa.Table], pa.Table]
Answering = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def slot_function(order: Order, answer: pa.Schema) -> SlotFunction:
    """Return the function for ``cogroup(...).applyInArrow``: one slot's assignment row and input rows to its answer."""

    names = [SLOT, KEY_GROUP, *order.rows.names, *([] if order.initial is None else [INITIAL])]

    def run(key: tuple[pa.Scalar, ...], _: pa.Table, rows: pa.Table) -> pa.Table:
        result = run_slot(order, key[0].as_py(), executor_id(), rows.rename_columns(names)).cast(answer)
        _forget_zip_directories()
        return result

    return run


def _forget_zip_directories() -> None:
    """Drop Python's cached directories of the zip files on its path, which it makes again when it needs them.

    A Python worker invalidates all import caches at each task, and Python then reads every zip directory anew: for
    pyspark's own zip files 40 to 80 ms a task, several times what a small slot takes.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def census_function(order: CensusOrder) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame: each slot to a row with its executor's census."""
    return _answering(lambda _, executor: take_census(order, executor).to_json())


def upkeep_function(orders: Mapping[int, UpkeepOrder]) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame: each slot's order to a row with a receipt."""
    return _answering(lambda slot, executor: run_upkeep(orders[slot], executor).to_json())


def warm_function(home: Home) -> Answering:
    """Return the function for ``mapInArrow`` on a placed frame that leaves a worker ready: what a slot imports is
    imported with this module, and the store's client is made.
    """

    def warm(_: int, executor: str) -> str:
        store_of(home)
        return executor

    return _answering(warm)


def _answering(answer: Callable[[int, str], str]) -> Answering:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for slot in batch.column(0).to_pylist():
                yield pa.record_batch({"answer": [answer(slot, executor_id())]})
        _forget_zip_directories()

    return run
