"""The costs of a batch on the driver: calls to the JVM, Spark jobs, and plans that are analysed and optimised."""

from __future__ import annotations

import gc
import itertools
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_, together
from riffle_spark.keygroups import slot_numbers
from riffle_spark.messages.slot_orders import SLOT
from riffle_spark.protocol.ports import SlotLayout, SlotPlace
from riffle_spark.spark.engine.placed import placed
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR
from tests.kit.streams.streaming import Feed, rest, run_to_end, settings_in

pytestmark = pytest.mark.spark  # Newer versions of Spark have other counts.

BATCHES = 4
SETTLED = 2
"""The first batch in which no plan or class is new."""
ANALYSED = "org.apache.spark.sql.catalyst.analysis.UpdateOuterReferences"
OPTIMISED = "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromConstraints"
"""Rules that Spark runs once for each plan that it analyses, and once for each plan that it optimises."""
A_KEPT_FRAME = 4
"""The calls per operator for each frame that other tests keep, because Spark lists all of them at once."""
COLLECTED = "m\nd\n"
"""Py4J's message that Python has released an object. It is not counted, because it depends on garbage collection."""
FIGURE = re.compile(r"c\no\d+\nset\n[iL]")
"""Py4J's message that sets a figure of Spark's progress. It is not counted, because only changed figures are set."""
Costs = dict[str, int]


class CountedJob:
    """A wrapper of a job that runs each batch without upkeep beside it, and counts the batch's costs with the sink."""

    def __init__(self, job: StatefulJob, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs: list[Costs] = []
        self._job = job
        self._jvm: Any = spark.sparkContext._jvm
        self._status: Any = spark.sparkContext.statusTracker()
        self._thread: int | None = None
        self._calls = 0
        client: Any = type(getattr(self._jvm, "_gateway_client"))  # noqa: B009 - it may be none to mypy
        send = client.send_command

        def counting(gateway: Any, command: str, *args: Any, **options: Any) -> Any:
            is_chance = command.startswith(COLLECTED) or FIGURE.match(command) is not None
            self._calls += threading.get_ident() == self._thread and not is_chance
            return send(gateway, command, *args, **options)

        monkeypatch.setattr(client, "send_command", counting)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run one batch."""
        if batch_id > 0:
            rest(self._job)
        run_id = str(batch.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id"))
        before = self._so_far(run_id)
        self._thread, self._calls = threading.get_ident(), 0
        try:
            self._job(batch, batch_id)
        finally:
            self._thread = None
        after = self._so_far(run_id)
        self.costs.append({"calls": self._calls, **{name: after[name] - before[name] for name in after}})

    def _so_far(self, run_id: str) -> Costs:
        rules = self._jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor.dumpTimeSpent()
        jobs = self._status.getJobIdsForGroup(run_id)
        ran = {name: int(runs) for name, runs in re.findall(r"(org\.\S+) .* / (\d+) *$", rules, re.MULTILINE)}
        return {"jobs": len(jobs), "analysed": ran.get(ANALYSED, 0), "optimised": ran.get(OPTIMISED, 0)}


def noop(rows: DataFrame, batch_id: int) -> None:
    """Write the rows to the noop format, as a sink with one action."""
    rows.write.format("noop").mode("append").save()


def kept_frames(spark: SparkSession) -> int:
    """Return the number of frames that other tests have left persisted in the session."""
    context: Any = spark.sparkContext
    return int(context._jsc.getPersistentRDDs().size())


@pytest.mark.parametrize(
    ("stores", "most"),
    [  # About 13 of the calls per store add state operators to Spark's progress.
        (["totals"], {"calls": 68, "jobs": 2, "analysed": 4, "optimised": 2}),
        (["a", "b"], {"calls": 86, "jobs": 3, "analysed": 6, "optimised": 3}),
    ],
    ids=["one operator", "two together"],
)
@pytest.mark.sample("two together")
def test_a_batch_makes_a_limited_number_of_calls_jobs_and_plans(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: list[str], most: Costs
) -> None:
    """After the first batches each batch costs at most these calls, jobs and plans."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")  # as in users' sessions, where plans have more nodes
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(BATCHES):
        feed.add([{"k": k, "v": number} for k in range(30)])
    compute = aggregate(rows=count(), total=sum_("v"))
    job = together(*[Stateful(store, "k", compute).into(noop) for store in stores], settings=settings_in(tmp_path))
    counted = CountedJob(job, spark, monkeypatch)
    run_to_end(feed.stream(spark), counted, tmp_path / "checkpoint")
    print(f"{' and '.join(stores)}: {counted.costs}")
    settled = {kind: {costs[kind] for costs in counted.costs[SETTLED:]} for kind in most}
    most = {**most, "calls": most["calls"] + A_KEPT_FRAME * kept_frames(spark) * len(stores)}
    assert {kind: max(found) for kind, found in settled.items() if max(found) > most[kind]} == {}


def layout_of(count: int) -> SlotLayout:
    """Return a layout of ``count`` slots on seven executors of three hosts."""
    numbers = enumerate(slot_numbers(count))
    return SlotLayout(tuple(SlotPlace(n, str(at % 7), f"host{at % 3}", (at,)) for at, n in numbers))


def test_calls_for_a_placed_frame_do_not_depend_on_its_slots(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placed frame takes as many calls for 200 slots as for 10."""
    client: Any = type(getattr(spark.sparkContext._jvm, "_gateway_client"))  # noqa: B009 - it may be none to mypy
    send, calls, thread = client.send_command, list[str](), threading.get_ident()

    def counting(gateway: Any, command: str, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:  # other tests' threads may still make calls
            calls.append(command)
        return send(gateway, command, *args, **options)

    placed(spark, layout_of(2))  # looks up classes once per process
    monkeypatch.setattr(client, "send_command", counting)
    found = dict[int, int]()
    for slots in (10, 200):
        gc.collect()  # the release of an object is a call, too
        calls.clear()
        placed(spark, layout_of(slots))
        found[slots] = sum(not call.startswith(COLLECTED) for call in calls)
    print(f"calls: {found}")
    assert found[200] == found[10] <= 29


@pytest.mark.parametrize("executor", ["0", LOCAL_EXECUTOR])
def test_partition_i_of_a_placed_frame_is_slot_i_and_prefers_its_executor(spark: SparkSession, executor: str) -> None:
    """Partition i of a placed frame is slot i, prefers the slot's executor, and is hash-partitioned by the slot."""
    layout = layout_of(12)
    if executor == LOCAL_EXECUTOR:
        layout = SlotLayout(tuple(replace(slot, executor=executor) for slot in layout.slots))
    frame = placed(spark, layout)
    plan: Any = frame._jdf.queryExecution().analyzed()
    partitions = plan.rdd().partitions()
    preferred = [str(plan.rdd().preferredLocations(one).mkString(",")) for one in partitions]
    by_name = [f"executor_{slot.host}_{slot.executor}" for slot in layout.slots]
    assert preferred == (by_name if executor != LOCAL_EXECUTOR else [""] * 12)
    assert frame.schema.simpleString() == f"struct<{SLOT}:int>"
    rows = frame.select(F.spark_partition_id().alias("at"), SLOT).collect()
    assert {row["at"]: row[SLOT] for row in rows} == {at: slot.number for at, slot in enumerate(layout.slots)}
    assert str(plan.outputPartitioning().toString()).startswith("hashpartitioning(")
    assert plan.outputPartitioning().numPartitions() == 12
    grouped = frame.groupBy(SLOT).count()
    assert "Exchange" not in str(getattr(grouped, "_jdf").queryExecution().executedPlan().toString())  # noqa: B009


def test_a_batch_of_a_wrapped_query_makes_a_limited_number_of_calls(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of a wrapped query with a condition and a projection makes a limited number of calls."""
    client: Any = type(getattr(spark.sparkContext._jvm, "_gateway_client"))  # noqa: B009 - it may be none to mypy
    send, threads, seen = client.send_command, list[int](), list[int]()

    def counting(gateway: Any, *args: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return send(gateway, *args, **options)

    def sink(rows: DataFrame, batch_id: int) -> None:
        seen.append(threads.count(threading.get_ident()))
        noop(rows, batch_id)

    monkeypatch.setattr(client, "send_command", counting)
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(BATCHES):
        feed.add([{"k": k, "v": number} for k in range(30)])
    groups = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path)).groupBy("k")
    frame = groups.agg(F.count("*").alias("rows"), F.sum("v").alias("total")).where("rows > 0").select("k", "total")
    writer = frame.writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    calls = max(after - before for before, after in itertools.pairwise(seen[SETTLED - 1 :]))
    # Two of the calls release the result without the warning of RDD.unpersist.
    assert calls <= 142 + A_KEPT_FRAME * kept_frames(spark)
