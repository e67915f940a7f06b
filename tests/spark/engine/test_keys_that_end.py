"""Keys of stores of columns that end by event time on a real query, beside Spark's own windows on the same files."""

from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark import Stateful, arrow_function
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed, run_to_end, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Python workers cannot import a test module.

BEGIN = datetime(2024, 5, 1, tzinfo=timezone.utc)
DELAY, WIDTH = "40 seconds", "10 seconds"
COUNT = pa.schema([("rows", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("until", pa.timestamp("us", "UTC")), *COUNT])


def counted(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Count rows of each window, and say nothing yet."""
    keys = ["k", "until"]
    now = rows.group_by(keys).aggregate([([], "count_all")]).rename_columns([*keys, "now"])
    both = now.join(state, keys)
    total = pc.add(both["now"], pc.fill_null(both["rows"], 0))
    return OUTPUT.empty_table(), pa.table([both["k"], both["until"], total], names=OUTPUT.names)


def ended(state: pa.Table) -> pa.Table:
    """Tell the count of a window that has ended."""
    return state


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Eight batches of events up to 30 seconds old: never too late."""
    chance = random.Random(7)
    made = Feed(tmp_path / "in", "k string, ts timestamp")
    for batch in range(8):
        times = [BEGIN + timedelta(seconds=round(12 * batch + chance.uniform(-30, 12), 3)) for _ in range(40)]
        made.add({"k": chance.choice("abcdef"), "ts": time.isoformat()} for time in times)
    return made


def sparks_own(stream: DataFrame, folder: Path) -> list[tuple[str, datetime, int]]:
    """Let Spark count the same windows in append mode; return what it told."""
    told: list[tuple[str, datetime, int]] = []
    windows = stream.withWatermark("ts", DELAY).groupBy("k", F.window("ts", WIDTH)).agg(F.count(F.lit(1)).alias("rows"))
    query = (
        windows.select("k", F.col("window.end").alias("until"), "rows").writeStream.outputMode("append")
        .foreachBatch(lambda frame, _: told.extend(map(tuple, frame.collect())))
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(QUERY_TIMEOUT_SECONDS)
    return told


@pytest.mark.long
def test_windows_end_when_sparks_do(spark: SparkSession, tmp_path: Path, feed: Feed) -> None:
    """Each window is told once, when the watermark passes its end, the last ones with the last batch; the rest stay."""
    expected = sparks_own(feed.stream(spark), tmp_path / "native")
    told: list[tuple[str, datetime, int]] = []
    compute = arrow_function(counted, state=COUNT, output=OUTPUT, due="until", time_mode="eventtime", expired=ended)
    job = Stateful("windows", ("k", "until"), compute, settings=settings_in(tmp_path), watermark=("ts", DELAY)).into(
        lambda frame, _: told.extend(map(tuple, frame.collect()))
    )
    stream = feed.stream(spark).select("k", "ts", F.window("ts", WIDTH)["end"].alias("until"))
    run_to_end(stream, job, tmp_path / "checkpoint")
    assert len(told) > 30
    assert sorted(told) == sorted(expected)
    assert sum(report.expired for report in job.reports) == len(told)
