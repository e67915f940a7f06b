"""The results of a job equal Spark's own results for the same input, batch by batch."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Stateful, StatefulJob, aggregate, count, max_, mean, min_, sum_
from tests.kit.streams.newest_rows import assert_newest
from tests.kit.streams.streaming import CollectingSink, Feed, committed, run_to_end, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

RUNNING = aggregate(rows=count(), total=sum_("v"), least=min_("v"), greatest=max_("v"), average=mean("v"))
SPARKS = {"rows": "count(1)", "total": "sum(v)", "least": "min(v)", "greatest": "max(v)", "average": "avg(v)"}


@pytest.mark.long
def test_the_newest_rows_after_four_batches_equal_sparks_groupby(spark: SparkSession, tmp_path: Path) -> None:
    """After four batches the newest row of every key equals Spark's groupBy, types included."""
    chance = random.Random(7)
    feed = Feed(tmp_path / "in", "k string, v long")
    for _ in range(4):
        feed.add({"k": chance.choice(["a", "b", "é", "", "zz", None]), "v": chance.randint(-9, 9)} for _ in range(200))
    sink = tmp_path / "out"
    totals = Stateful("totals", key="k", compute=RUNNING, settings=settings_in(tmp_path))
    job = totals.into(lambda rows, batch: rows.withColumn("batch", F.lit(batch)).write.parquet(f"{sink}/{batch}"))
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    newest = F.max_by(F.struct(*SPARKS), "batch")
    ours = spark.read.parquet(f"{sink}/*").groupBy("k").agg(newest.alias("n")).select("k", "n.*")
    theirs = feed.table(spark).groupBy("k").agg(*[F.expr(e).alias(n) for n, e in SPARKS.items()])
    assert_df_equality(ours, theirs, ignore_row_order=True, ignore_nullable=True)
    assert [report.rows for report in job.reports] == [200] * 4
    assert committed(f"file://{tmp_path}/state") == [0, 1, 2, 3]


@pytest.mark.long
def test_encrypted_state_gives_equal_results_and_leaves_no_plain_text(spark: SparkSession, tmp_path: Path) -> None:
    """Encrypted state gives the same results, and no object or local file contains text of a row.

    Executors read sealed output with keys that they load themselves.
    """
    (tmp_path / "keys").write_text(f"one = {base64.b64encode(bytes(range(32))).decode()}\n")
    settings = settings_in(tmp_path, encryption_keys=f"file:{tmp_path}/keys", deliver_after_commit=True)
    sink = CollectingSink()
    job = Stateful("totals", key="k", compute=RUNNING, settings=settings).into(sink)
    for batch in range(2):
        job(spark.range(40).selectExpr("concat('planted-', id % 5) k", "id v"), batch)
    assert {key: row["rows"] for key, row in sink.latest("k").items()} == {f"planted-{n}": 16 for n in range(5)}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.read_bytes()[:4] == b"RFE2" for path in files)
    assert [path for path in files if b"planted" in path.read_bytes()] == []


def test_sealed_rows_are_refused_by_a_job_with_another_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    """Sealed rows cannot be delivered by a job with another aggregate. The error says that the job that sealed them
    can.
    """
    settings, rows = settings_in(tmp_path, deliver_after_commit=True), spark.range(8).selectExpr("id k", "id v")
    kept = CollectingSink()

    def failing(*_: object) -> None:
        raise OSError("upsert failed; caused by java.lang.InterruptedException: a worker of the pool was interrupted")

    def job_of(sink: Callable[..., object], *, total: bool = False) -> StatefulJob:
        compute = aggregate(rows=count(), total=sum_("v")) if total else aggregate(rows=count())
        return Stateful("totals", "k", compute, settings=settings).into(sink)

    with pytest.raises(OSError, match="a worker of the pool was interrupted"):  # no stop of the query
        job_of(failing)(rows, 0)
    with pytest.raises(Exception, match="RIFFLE-0289"):
        job_of(kept, total=True)(rows, 0)
    job_of(kept)(rows, 0)
    assert {key: row["rows"] for key, row in kept.latest("k").items()} == dict.fromkeys(range(8), 1)
    job_of(kept, total=True)(rows, 1)
    assert {key: row["rows"] for key, row in kept.latest("k").items()} == dict.fromkeys(range(8), 2)


@pytest.mark.long
def test_several_actions_of_a_sink_apply_the_state_once(spark: SparkSession, tmp_path: Path) -> None:
    """A sink may run several actions: the function does not run again, and all actions see the same rows."""
    runs = spark.sparkContext.accumulator(0)
    seen: list[tuple[int, int, int]] = []

    def sink(rows: DataFrame, batch: int) -> None:
        rows.write.format("noop").mode("append").save()
        ((total,),) = rows.agg(F.sum("rows")).collect()
        seen.append((rows.count(), total, rows.where("rows > 0").select("k").distinct().count()))

    frame = spark.range(100).selectExpr("id % 10 k", "id v")

    def count_runs(row: Row) -> tuple[int, int]:
        runs.add(1)
        return row.k, row.v

    counted = frame.rdd.map(count_runs).toDF("k long, v long")
    job = Stateful("once", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(sink)
    job(frame, 0)
    job(counted, 1)
    assert seen == [(10, 100, 10), (10, 200, 10)]
    assert runs.value <= 2 * 100, "the digest and the batch each read the rows once"


def test_two_stores_commit_together(spark: SparkSession, tmp_path: Path) -> None:
    """Two operators of one job get the same rows, and one record commits both."""
    users, pages = CollectingSink(), CollectingSink()
    by_user = Stateful("users", "user", aggregate(rows=count()), settings=settings_in(tmp_path)).into(users)
    by_page = Stateful("pages", "page", aggregate(rows=count(), users=max_("user"))).into(pages)
    job = riffle_spark.together(by_user, by_page)
    frame = spark.range(60).selectExpr("id % 6 user", "concat('p', id % 4) page")
    job(frame, 0)
    job(frame, 1)
    both = frame.union(frame)
    assert_newest(users, both.groupBy("user").agg(F.count("*").alias("rows")), key="user")
    pages_of = both.groupBy("page").agg(F.count("*").alias("rows"), F.max("user").alias("users"))
    assert_newest(pages, pages_of, key="page")
    assert list(users.deliveries) == list(pages.deliveries)
    assert committed(f"file://{tmp_path}/state") == [0, 1]
    assert job.reports[-1].rows == 120


@pytest.mark.long
def test_a_state_value_of_10_mb_survives_an_empty_local_folder(spark: SparkSession, tmp_path: Path) -> None:
    """A state value of 10 MB survives a batch, an empty local folder and another batch."""
    size = 10 * 1024 * 1024
    big = spark.range(1).selectExpr("'big' k", f"repeat('x', {size}) v")
    small = spark.range(3).selectExpr("concat('s', id) k", "'y' v")
    settings = settings_in(tmp_path, local_dir=f"{tmp_path}/one")
    sink = CollectingSink()
    operator = Stateful("large", "k", aggregate(rows=count(), least=min_("v")), settings=settings)
    operator.into(sink)(big.union(small), 0)
    moved = settings_in(tmp_path, local_dir=f"{tmp_path}/two")
    moved_job = Stateful("large", "k", operator.compute, settings=moved).into(sink)
    moved_job(big.selectExpr("k", "'z' v").union(small), 1)
    latest = sink.latest("k")
    assert latest["big"] == {"rows": 2, "least": "x" * size}
    assert latest["s0"] == {"rows": 2, "least": "y"}
    assert moved_job.reports[-1].restores > 0
