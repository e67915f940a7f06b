"""All executors that hold a batch's rows die while the sink reads them: the batch runs again before its commit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, aggregate, count, sum_, together, transform_with_state
from riffle_spark.spark import compat
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine.jvm_errors import mentions
from tests.kit.processors.visit_processors import Visits
from tests.kit.streams import sink_idioms
from tests.kit.streams.sink_idioms import idiom_result
from tests.kit.streams.streaming import committed, executor_processes, settings_in, stored_rdds

pytestmark = [pytest.mark.cluster, pytest.mark.newer_spark]
cloudpickle.register_pickle_by_value(sink_idioms)  # Python workers cannot import a test's module.

MASTER = "local-cluster[2,1,600]"
USERS = "abcde"
OUTPUT = "user string, visits long, total long"
Rows = list[tuple[str, int, int]]


def batch(spark: SparkSession) -> DataFrame:
    """Return a batch with one row per user."""
    return spark.createDataFrame([(user, at + 1) for at, user in enumerate(USERS)], "user string, amount long")


def totals(number: int) -> Rows:
    """Return the output of a batch: the totals of all batches up to it."""
    return [(user, number + 1, (number + 1) * (at + 1)) for at, user in enumerate(USERS)]


def holders(rows: DataFrame) -> set[int]:
    """Return the number of copies of the stored results below a frame."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    rdds = [leaves.apply(at).rdd() for at in range(leaves.size())]
    return {stored_below(rdd).getStorageLevel().replication() for rdd in rdds}


def stored_below(rdd: Any) -> Any:
    """Return the stored RDD that an RDD is computed from."""
    while not rdd.getStorageLevel().isValid():
        rdd = rdd.dependencies().head().rdd()
    return rdd


class KillingSink:
    """A sink that runs some idioms per batch. If ``armed``, its first attempt at a batch kills all executors and then
    runs the idioms, which fail.
    """

    def __init__(self, idioms: list[list[str]], *, armed: bool) -> None:
        self._idioms = idioms
        self._armed = armed
        self.calls: list[str] = []
        self.found: dict[str, str] = {}
        self.unrecognised: dict[str, object] = {}

    def __call__(self, rows: DataFrame, batch_id: int, delivery_id: str) -> None:
        """Run the idioms of this batch."""
        self.calls.append(delivery_id)
        if self._armed and self.calls.count(delivery_id) == 1:
            spark = rows.sparkSession
            assert holders(rows) == {2}, "results have two copies, so the loss of one executor loses no rows"
            processes = executor_processes()
            for executor in inventory.executors(spark):
                os.kill(processes[executor.id], signal.SIGKILL)
            self._fail(rows, self._idioms[batch_id])
        self.found = {idiom: idiom_result(idiom, rows) for idiom in self._idioms[batch_id]}

    def _fail(self, rows: DataFrame, idioms: list[str]) -> None:
        """Run the idioms, and raise the error of the last one."""
        for idiom in idioms:
            try:
                self.unrecognised[idiom] = idiom_result(idiom, rows)
            except Exception as error:
                if not mentions(error, compat.LOST_BLOCK):
                    self.unrecognised[idiom] = error
                if idiom == idioms[-1]:
                    raise


def play(spark: SparkSession, folder: Path, idioms: list[list[str]], killing: str) -> None:
    """Run an aggregate and a processor together, with some idioms per batch. One sink kills all executors.

    Spark's execution id is set as in a query, so that the RDDs of kept plans are stored themselves.
    """
    sinks = {store: KillingSink(idioms, armed=store == killing) for store in ("totals", "visits")}
    settings = settings_in(folder, expected_executors=2)
    inventory.await_executors(spark, settings, expected=2)
    job = together(
        Stateful("totals", "user", aggregate(visits=count(), total=sum_("amount"))).into(sinks["totals"]),
        transform_with_state(Visits(), key="user", output=OUTPUT, store="visits").into(sinks["visits"]),
        settings=settings,
    )
    for number, tried in enumerate(idioms):
        spark.sparkContext.setLocalProperty("spark.sql.execution.id", "0")
        job(batch(spark), number)
        spark.sparkContext.setLocalProperty("spark.sql.execution.id", None)  # type: ignore[arg-type]
        plain_rows = spark.createDataFrame(totals(number), OUTPUT)
        plain = {idiom: idiom_result(idiom, plain_rows) for idiom in tried}
        assert sinks["totals"].found == sinks["visits"].found == plain
        again = [call for call in sinks[killing].calls if call.endswith(f"/{number}")]
        assert len(again) == 2, tried
        assert len(set(again)) == 1, tried
        assert job.reports[-1].runs == 2, tried
    assert sinks[killing].unrecognised == {}
    assert committed(f"file://{folder}/state") == list(range(len(idioms)))


@pytest.mark.parametrize(
    ("killing", "idioms"),
    [
        ("totals", ["union with itself, filtered", "view and scalar subquery"]),
        pytest.param("visits", ["self-join", "merge", "apply in pandas", "part persisted"], marks=pytest.mark.long),
    ],
)
def test_a_batch_whose_rows_are_lost_in_the_sink_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killing: str, idioms: list[str]
) -> None:
    """Every read of lost rows fails. The sinks get the same delivery again, and its rows are exact."""
    stored = stored_rdds(monkeypatch)
    play(spark, tmp_path, [idioms[:1], idioms[1:]], killing)
    assert stored or pyspark.__version__.startswith("3.")
