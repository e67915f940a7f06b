"""PySpark's own streaming tests pass with every stream wrapped, except for those that are named here with a reason."""

from __future__ import annotations

import functools
import importlib
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
import pyspark.sql
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

import riffle_spark

if not pyspark.__version__.startswith("4.0."):
    pytest.skip("the names are those of Spark 4.0", allow_module_level=True)

pytestmark = pytest.mark.spark
CONF: Final = {"spark.riffle.key_groups": "1"}
"""Some tests read the first row of an unordered frame. In Spark's partitions, and with one key-group, it is the row of
key 0.
"""
PACKED = Path(pyspark.sql.__file__).parents[1] / "python" / "lib" / "pyspark.zip" / "pyspark" / "sql"
"""PySpark's own tests. They are not installed, but the archive for Spark's Python workers contains them."""
READ = Path("python/test_support/sql/streaming")
"""The folder of input files that the tests expect below Spark's source tree, their working folder."""
LINES = "hello\nthis\n"
VISITS = "".join(f"2024-05-01 12:00:0{at}.000;{one}\n" for at, one in enumerate((1, 2, 1, 3, 4, 5, 2, 6)))
WAITS_SECONDS, IDLE_SECONDS = 10, 0.1
"""The seconds that tests of processors wait after ``processAllAvailable``, when nothing can happen any more. Here they
wait less.
"""
READERS = ("csv", "json", "load", "orc", "parquet", "table", "text")

CLASSES: Final = {
    "GroupedApplyInPandasWithStateTests": "pandas.test_pandas_grouped_map_with_state",
    "TransformWithStateInPandasTests": "pandas.test_pandas_transform_with_state",
    "StreamingTests": "streaming.test_streaming",
    "StreamingTestsForeach": "streaming.test_streaming_foreach",
    "StreamingTestsForeachBatch": "streaming.test_streaming_foreach_batch",
    "StreamingListenerTests": "streaming.test_streaming_listener",
}
OFTEN: Final = (
    "test_transform_with_state_in_pandas_basic",
    "test_streaming_foreach_batch_tempview",
)
"""The tests that ``./run test`` plays: one of a processor and one of a sink. Long runs play all."""

CHECKPOINT: Final = "reads Spark's own state from the checkpoint, with the sources state-metadata and statestore"
NOT: Final = {
    "test_transform_with_map_state_metadata": CHECKPOINT,
    "test_transform_with_list_state_metadata": CHECKPOINT,
    "test_transform_with_value_state_metadata": CHECKPOINT,
    "test_transform_with_state_restart_with_multiple_rows_init_state": CHECKPOINT,
    "test_transform_with_state_with_timers_single_partition": f"runs four other tests, one of which {CHECKPOINT}",
    "test_transform_with_state_in_pandas_proc_timer": "its processor fails in a batch that Spark never runs, "
    "because the function of foreachBatch does not read the rows. riffle_spark runs the slots before that function",
    "test_not_nullable_fails": "expects an error for a state variable that is not nullable, because Spark's Avro "
    "encoding needs one that is. riffle_spark stores such variables",
    "test_schema_evolution_fails": "expects Spark's error. riffle_spark refuses the columns with RIFFLE-0223",
    "test_listener_events": "expects objects of Spark's own state operators in the events of a listener",
}
"""The tests that do not pass, and the reasons."""


def own_tests(module: str, name: str) -> tuple[type[unittest.TestCase], list[str]]:
    """Return a test class below ``pyspark.sql.tests``, and the names of its tests."""
    if str(PACKED) not in pyspark.sql.__path__:
        pyspark.sql.__path__.append(str(PACKED))
    found = getattr(importlib.import_module(f"pyspark.sql.tests.{module}"), name)
    return found, list(unittest.TestLoader().getTestCaseNames(found))


def run_wrapped(spark: SparkSession, tests: Any, name: str, folder: Path) -> None:
    """Run one test in the shared session and in a folder. Raise its failure or its skip."""
    (folder / READ / "time").mkdir(parents=True)
    (folder / READ / "lines.txt").write_text(LINES)
    (folder / READ / "time" / "visits.csv").write_text(VISITS)
    tests.spark, tests.sc = spark, spark.sparkContext
    for query in spark.streams.active:
        query.stop()
    spark.streams.resetTerminated()  # Queries of earlier tests, and their failures, do not belong to this test.
    for key, value in tests.conf().getAll():
        if key.startswith("spark.sql.") and spark.conf.get(key, None) != value:
            spark.conf.set(key, value)
    with _working_in(spark, folder), pytest.MonkeyPatch.context() as patch:
        for method in READERS:
            patch.setattr(DataStreamReader, method, _wrapped(getattr(DataStreamReader, method)))
        patch.setattr(SparkSession, "sql", _wrapped(SparkSession.sql))
        patch.setattr(StreamingQuery, "awaitTermination", _hasty(StreamingQuery.awaitTermination))
        tests(name).debug()


def _wrapped(method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Return a method that wraps the streams it returns."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> DataFrame:
        frame = method(self, *positional, **named)
        return riffle_spark.on(frame) if frame.isStreaming else frame

    return call


def _hasty(wait: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """Return ``awaitTermination`` with a short wait for queries that have nothing left to do."""

    @functools.wraps(wait)
    def call(query: StreamingQuery, timeout: float | None = None) -> bool | None:
        return wait(query, IDLE_SECONDS if timeout == WAITS_SECONDS else timeout)

    return call


@contextmanager
def _working_in(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Let Spark resolve relative paths below a folder."""
    jvm: Any = spark.sparkContext._jvm  # private: only the JVM has Hadoop's classes
    hadoop = jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.getLocal(spark.sparkContext._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(folder)))
    try:
        yield
    finally:
        files.setWorkingDirectory(before)


TESTS: Final = {(of, name): tests for of in CLASSES for tests, names in [own_tests(CLASSES[of], of)] for name in names}


@pytest.mark.parametrize(
    ("of", "name"),
    [
        pytest.param(
            *one, marks=pytest.mark.skip(NOT[one[1]]) if one[1] in NOT else () if one[1] in OFTEN else pytest.mark.long
        )
        for one in TESTS
    ],
)
def test_sparks_own_test_passes(of: str, name: str, spark: SparkSession, tmp_path: Path) -> None:
    """A test of PySpark passes with each of its streams wrapped."""
    run_wrapped(spark, TESTS[of, name], name, tmp_path)


def test_every_listed_name_is_a_test_of_pyspark() -> None:
    """Every name in the lists is a test of PySpark."""
    assert {*OFTEN, *NOT} <= {name for _, name in TESTS}
