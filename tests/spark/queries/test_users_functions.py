"""Users' own functions in wrapped queries have the results of Spark's own queries on the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from tests.kit.process.user_aggregates import Latest, WeightedMean
from tests.kit.queries.played_query import difference, play, play_ours
from tests.kit.queries.query_shape import Frames, Shape, events

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


OUT = "k string, told string"


def output_frame(key: object, *values: object) -> pd.DataFrame:
    """Return a frame with one output row."""
    return pd.DataFrame({"k": [key], "told": [repr(values)]})


def same(
    spark: SparkSession,
    folder: Path,
    build: Callable[[Frames], DataFrame],
    *texts: str,
    kind: str = "groups",
    **more: Any,
) -> int:
    """Compare a wrapped query with Spark's own, and return the number of output rows."""
    shape = Shape("function", kind, build, events(*texts), **more)
    expected = play(spark, shape, folder / "spark")
    assert difference(play_ours(spark, shape, folder / "ours"), expected) == ""
    return sum(map(len, expected.steps))


@pytest.mark.smoke
@pytest.mark.long
def test_a_function_may_be_applied_before_the_frame_is_wrapped(spark: SparkSession, tmp_path: Path) -> None:
    """A function of groups may be applied to a plain frame that is wrapped afterwards. It gets all columns in order."""

    def count(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        rows = pd.concat(list(frames))
        state.update(((state.getOption or (0,))[0] + len(rows),))
        yield output_frame(key[1], key[0], type(key[0]).__name__, state.get, list(rows.columns), sorted(rows["n"]))

    def build(frames: Frames) -> DataFrame:
        plain = DataFrame(frames.events._jdf, frames.spark).withColumn("odd one", F.expr("int(n % 2)"))
        groups = plain.groupBy("odd one", "k")
        return frames.again(groups.applyInPandasWithState(count, OUT, "n long", "update", "NoTimeout")).where(
            "told < 'C'"
        )

    assert same(spark, tmp_path, build, "0a1 1b2 2c3 3a3", "4a2 5b4", mode="update") == 5


@pytest.mark.long
def test_users_aggregates_equal_pandas_over_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Users' aggregate functions return the results of all rows at once, over several batches and a restart."""
    mean, latest = riffle_spark.user_aggregate(WeightedMean()), riffle_spark.user_aggregate(Latest(2))

    def build(frames: Frames) -> DataFrame:
        aggregated = frames.events.groupBy("k").agg(
            mean("d", "n").alias("m"), latest("n").alias("l"), latest(F.col("x").cast("int"))
        )
        return aggregated.where("m > 1").select("*", (F.col("m") * F.size("l")).alias("told"))

    texts = ("0a1 1b2 2a3", "3a? 4c4", "5b5 6a6 7c?")
    assert same(spark, tmp_path, build, *texts, mode="complete", oracle="batch", restart_after=1) == 8


@pytest.mark.long
def test_top_k_returns_the_first_rows_of_sparks_sorted_list(spark: SparkSession, tmp_path: Path) -> None:
    """``top_k`` returns the first rows of Spark's sorted list of all rows so far, with NULL last."""
    top, whole = (
        riffle_spark.top_k(2, "n long, at timestamp"),
        "slice(sort_array(collect_list(struct(n, at)), false), 1, 2)",
    )

    def build(frames: Frames) -> DataFrame:
        aggregated = top("n", "at") if frames.events.isStreaming else F.expr(whole)
        return frames.events.groupBy("k").agg(aggregated.alias("top"), F.count("*"))

    assert (
        same(spark, tmp_path, build, "0a1 1b2 2a3", "3a? 4c4 5a3", "5b5 6a6 7c?", mode="complete", oracle="batch") == 8
    )
