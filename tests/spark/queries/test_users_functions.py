"""Users' own functions in wrapped queries do what they do in Spark's own on the same files, batch by batch."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from tests.kit.process.user_aggregates import Latest, WeightedMean
from tests.kit.queries.played_query import difference, play, play_ours
from tests.kit.queries.query_shape import Frames, Shape, events
from tests.kit.streams.streaming import Feed, settings_in, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


OUT = "k string, told string"


def told(key: object, *what: object) -> pd.DataFrame:
    """Return a frame of one row of output."""
    return pd.DataFrame({"k": [key], "told": [repr(what)]})


def whatever(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Do one thing or another that can be done with a state, as the rows and the watermark have it."""
    watermark, known = state.getCurrentWatermarkMs(), state.getOption
    if state.hasTimedOut:
        (frame,) = frames
        does = zlib.crc32(repr((key[0], watermark)).encode()) % 4
        yield told(key[0], "out", does, known, len(frame), list(frame.columns))
        if does == 0:
            state.remove()
        elif does == 1:
            state.update((-1, None))
        elif does == 2:
            state.setTimeoutTimestamp(watermark + 5_000)
        return
    rows = pd.concat(list(frames))
    total = int(rows["n"].fillna(0).sum())
    yield told(key[0], "rows", total, known, [str(kind) for kind in rows.dtypes], list(rows.index))
    does = total % 7
    if does in {1, 2}:
        state.remove()
    if does in {2, 3, 4}:
        state.setTimeoutTimestamp(watermark + 1_000 * does)
    if does > 3:
        state.update(((known or (0, ""))[0] + total, f"{does}"))


def drawn(batches: int) -> tuple[str, ...]:
    """Return batches of rows around a time that moves on, with null keys and null numbers."""
    chance = random.Random(5)

    def row(batch: int) -> str:
        second = max(0.0, 4 * batch + chance.uniform(-14, 5))
        return f"{second:.3f}{chance.choice('abcdefg_')}{chance.choice('?123456789')}"

    return tuple(" ".join(row(batch) for _ in range(12)) for batch in range(batches))


def same(
    spark: SparkSession,
    folder: Path,
    build: Callable[[Frames], DataFrame],
    *texts: str,
    kind: str = "groups",
    **more: Any,
) -> int:
    """Hold a query through the wrapper against Spark's own; return how many rows there were."""
    shape = Shape("function", kind, build, events(*texts), **more)
    expected = play(spark, shape, folder / "spark")
    assert difference(play_ours(spark, shape, folder / "ours"), expected) == ""
    return sum(map(len, expected.steps))


@pytest.mark.long
def test_states_and_time_outs_are_those_of_spark_whatever_a_function_does(spark: SparkSession, tmp_path: Path) -> None:
    """It leaves a state as it is, changes it, removes it, with a time-out or without one, also when it timed out."""

    def build(given: Frames) -> DataFrame:
        groups = given.timed("20 seconds").groupBy("k")  # no row is late
        return groups.applyInPandasWithState(whatever, OUT, "n long, text string", "append", "EventTimeTimeout")

    assert same(spark, tmp_path, build, *drawn(7), restart_after=3) > 50


@pytest.mark.smoke
@pytest.mark.long
def test_a_function_may_be_given_to_a_plain_frame(spark: SparkSession, tmp_path: Path) -> None:
    """It is wrapped behind it; the function sees all columns in their order, and a projection follows."""

    def count(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        rows = pd.concat(list(frames))
        state.update(((state.getOption or (0,))[0] + len(rows),))
        yield told(key[1], key[0], type(key[0]).__name__, state.get, list(rows.columns), sorted(rows["n"]))

    def build(given: Frames) -> DataFrame:
        plain = DataFrame(given.events._jdf, given.spark).withColumn("odd one", F.expr("int(n % 2)"))
        groups = plain.groupBy("odd one", "k")
        return given.again(groups.applyInPandasWithState(count, OUT, "n long", "update", "NoTimeout")).where(
            "told < 'C'"
        )

    assert same(spark, tmp_path, build, "0a1 1b2 2c3 3a3", "4a2 5b4", mode="update") == 5


@pytest.mark.long
def test_aggregates_of_users_are_those_of_pandas_over_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Their state goes on over batches and a restart, and is as if each group's rows had come at once."""
    mean, latest = riffle_spark.user_aggregate(WeightedMean()), riffle_spark.user_aggregate(Latest(2))

    def build(given: Frames) -> DataFrame:
        found = given.events.groupBy("k").agg(
            mean("d", "n").alias("m"), latest("n").alias("l"), latest(F.col("x").cast("int"))
        )
        return found.where("m > 1").select("*", (F.col("m") * F.size("l")).alias("told"))

    texts = ("0a1 1b2 2a3", "3a? 4c4", "5b5 6a6 7c?")
    assert same(spark, tmp_path, build, *texts, mode="complete", oracle="batch", restart_after=1) == 8


@pytest.mark.long
def test_the_greatest_rows_are_those_of_sparks_sorted_list(spark: SparkSession, tmp_path: Path) -> None:
    """Of all rows so far, nulls last."""
    top, whole = (
        riffle_spark.top_k(2, "n long, at timestamp"),
        "slice(sort_array(collect_list(struct(n, at)), false), 1, 2)",
    )

    def build(given: Frames) -> DataFrame:
        found = top("n", "at") if given.events.isStreaming else F.expr(whole)
        return given.events.groupBy("k").agg(found.alias("top"), F.count("*"))

    assert (
        same(spark, tmp_path, build, "0a1 1b2 2a3", "3a? 4c4 5a3", "5b5 6a6 7c?", mode="complete", oracle="batch") == 8
    )


@pytest.mark.long
def test_keys_time_out_by_the_clock_when_nothing_comes(spark: SparkSession, tmp_path: Path) -> None:
    """As in Spark, a batch runs for them alone."""
    feed = Feed(tmp_path / "in", "k string")
    feed.add([{"k": "a"}, {"k": "b"}, {"k": "a"}])

    def wait(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield told(key[0], "out", state.get)
            state.remove()
        else:
            state.update((sum(map(len, frames)),))
            state.setTimeoutDuration(20)

    def waited(frame: DataFrame, checkpoint: Path) -> list[Row]:
        found = list[Row]()
        groups = frame.groupBy("k").applyInPandasWithState(wait, OUT, "n long", "update", "ProcessingTimeTimeout")
        writer = groups.writeStream.outputMode("update").foreachBatch(lambda rows, _batch: found.extend(rows.collect()))
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            wait_for(lambda: len(found) > 1 or not query.isActive, "both keys have timed out")
        finally:
            query.stop()
        return sorted(found)

    expected = waited(feed.stream(spark), tmp_path / "spark")
    wrapped = riffle_spark.on(feed.stream(spark), settings=settings_in(tmp_path))
    assert waited(wrapped, tmp_path / "ours") == expected == [Row("a", "('out', (2,))"), Row("b", "('out', (1,))")]
