"""A part of a result is lost and computed again while slots still run. Its new rows reach no sink."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, arrow_function
from riffle_spark.messages.slot_orders import ATTEMPT, RECEIPT, attempt_number
from riffle_spark.spark.engine.stage_frames import rows_of
from riffle_spark.worker.result_chunks import rows_column
from tests.kit.streams.streaming import committed, settings_in, wait_for

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

KEYS = 12
MOST_SECONDS = 60
COUNTED = pa.schema([("k", pa.int64()), ("rows", pa.int64())])


def fickle(folder: Path) -> Callable[[pa.Table, pa.Table], tuple[pa.Table, pa.Table]]:
    """Return a function that outputs the rows of its keys, but nothing when it is computed again. The part with key 0
    waits for the file ``go``.
    """

    def run(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        keys = rows["k"].unique()
        give_up = time.monotonic() + MOST_SECONDS
        while 0 in keys.to_pylist() and not (folder / "go").exists() and time.monotonic() < give_up:
            time.sleep(0.01)
        total = pa.table({"k": keys, "rows": pa.repeat(1, len(keys))}).cast(COUNTED)
        tries = folder / str(min(keys.to_pylist()))
        again = tries.exists() and not (folder / "told").exists()
        tries.touch()
        return (total.slice(0, 0) if again else total), total

    return run


def kept_rdds(spark: SparkSession) -> set[int]:
    """Return the ids of the persisted RDDs."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def lose_a_part(spark: SparkSession, others: set[int]) -> bool:
    """Remove a stored part of an RDD that is not in ``others``, and return whether there was one.

    It does not work on Spark 4.3, because Py4J does not find a class that ``SparkEnv`` names there.
    """
    jvm: Any = spark.sparkContext._jvm
    blocks = jvm.org.apache.spark.SparkEnv.get().blockManager()
    for rdd in kept_rdds(spark) - others:
        for part in range(2):
            block = jvm.org.apache.spark.storage.RDDBlockId(rdd, part)
            status = blocks.getStatus(block)
            if status.isDefined() and status.get().memSize() > 0:  # an empty block is still being written
                blocks.removeBlock(block, True)
                return True
    return False


@contextmanager
def a_part_lost(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Lose the part that is stored first in the block, and only then let the other part end."""
    others = kept_rdds(spark)

    def lose() -> None:
        try:
            wait_for(lambda: lose_a_part(spark, others), "a part is stored", 0.01)
        finally:
            (folder / "go").touch()

    losing = threading.Thread(target=lose)
    losing.start()
    try:
        yield
    finally:
        losing.join()


COMPILED, COMPILES = "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"
ACTIONS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda rows: rows,
    "more than none": lambda rows: rows.where("rows > 0"),
    "some keys": lambda rows: rows.join(F.broadcast(rows.sparkSession.range(KEYS)), F.col("k") == F.col("id")),
    "a number": lambda rows: rows.agg(F.count("k")),
}


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_sink_gets_no_rows_that_were_computed_again(spark: SparkSession, tmp_path: Path, compiled: bool) -> None:
    """Whatever a sink does with its frame, it gets no rows of a part that was computed again. The batch runs again."""
    found: list[dict[str, int]] = []
    unguarded: dict[str, object] = {}

    def sink(rows: DataFrame, batch_id: int) -> None:
        if not found:
            (tmp_path / "told").touch()
        found.append({})
        for name, run_action in ACTIONS.items():
            try:
                found[-1][name] = len(run_action(rows).collect())
            except Exception:
                if name == list(ACTIONS)[-1]:
                    raise
            else:
                if len(found) == 1:
                    unguarded[name] = found[-1][name]

    spark.conf.set(COMPILED, str(compiled).lower())
    spark.conf.set(COMPILES, "FALLBACK")
    compute = arrow_function(fickle(tmp_path), state=pa.schema([("rows", pa.int64())]), output=COUNTED)
    job = Stateful("totals", "k", compute, settings=settings_in(tmp_path)).into(sink)
    with a_part_lost(spark, tmp_path):
        job(spark.range(KEYS).selectExpr("id k"), 0)
    assert unguarded == {}
    assert found[1:] == [{"all": KEYS, "more than none": KEYS, "some keys": KEYS, "a number": 1}]
    assert job.reports[-1].runs == 2
    assert committed(f"file://{tmp_path}/state") == [0]


@pytest.mark.newer_spark
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.sample("no rows-some keys", "rows-some keys")
@pytest.mark.parametrize("lost", [None, [], [(7, 7)]], ids=["no rows", "an empty chunk", "rows"])
def test_a_receipt_of_another_attempt_fails_every_query(
    spark: SparkSession, action: str, lost: list[tuple[int, int]] | None
) -> None:
    """A part that has only the receipt of another attempt fails every query of the frame."""
    ours, given_up = attempt_number("ours"), attempt_number("given up")
    rows = [(ours, None, [(1, 1)]), (ours, "{}", None), (given_up, "{}", lost)]
    result = spark.createDataFrame(
        rows, f"{ATTEMPT} long, {RECEIPT} string, {rows_column(0)} array<struct<k long, rows long>>"
    )
    spark.conf.set(COMPILED, "false")
    assert len(ACTIONS[action](rows_of(result.where(f"{ATTEMPT} = {ours}"), rows_column(0), ["ours"])).collect()) == 1
    with pytest.raises(Exception, match="riffle: a row of an attempt that was given up"):
        ACTIONS[action](rows_of(result, rows_column(0), ["ours"])).collect()
