"""How lost executors are recognised in errors, and which jobs are cancelled for them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError, Misplaced, UnavailableError
from riffle_spark.spark.engine.tagged_jobs import _DIED_OF_MEMORY, Losses, _loss_error, _Watch

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]


def test_a_cancellation_belongs_to_the_watch_whose_tag_it_names(spark: SparkSession) -> None:
    """A cancellation belongs to the watch whose tag the error names, also in the error's context."""
    mine, other = _Watch(spark, frozenset()), _Watch(spark, frozenset())
    while_mended = ValueError("mended")
    while_mended.__context__ = RuntimeError(f"SPARK_JOB_CANCELLED: asked to cancel jobs with the tag {mine._tag}")
    for error in (while_mended, while_mended.__context__):
        assert mine.caused(error)
        assert not other.caused(error)
    other._cancelled = True
    assert other.caused(ValueError("whatever comes then"))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), ConfigError),
        (pa.ArrowMemoryError("realloc of size 64 failed"), ConfigError),
        (ValueError("MemoryError: is no page"), PythonException),
        (ValueError("what came is\nMemoryError"), PythonException),
    ],
    ids=["Python's", "Arrow's", "a word of the message", "a line of the message"],
)
@pytest.mark.sample(step=2)
def test_only_a_traceback_that_ends_with_a_memory_error_counts(
    spark: SparkSession, error: Exception, raised: type[Exception]
) -> None:
    """Only a traceback that ends with a memory error means that a task had no memory."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        raise error

    with pytest.raises(raised), Losses(spark, 1).watched(()):
        spark.range(1).mapInArrow(read, "id long").collect()


@pytest.mark.parametrize(
    ("why", "memory"),
    [
        ("Command exited with code 52", True),
        ("The executor with id 3 exited with exit code 52(JVM OOM).", True),
        ("Container from a bad node: container_1 on host: h. Exit status: 52. Diagnostics: ", True),
        ("Container killed by YARN for exceeding physical memory limits. 1.5 GB of 1.4 GB used.", True),
        ("The executor with id 3 exited with exit code 137(SIGKILL, possible container OOM).", True),
        ("Command exited with code 137", False),
        ("Command exited with code 520", False),
        ("Executor killed by driver.", False),
    ],
)
def test_removal_reasons_identify_an_executor_that_had_no_memory(why: str, memory: bool) -> None:
    """The removal reasons of the cluster managers tell an executor that had no memory from others. SIGKILL alone does
    not.
    """
    assert bool(_DIED_OF_MEMORY.search(why)) == memory


GONE, OOM = "Remote RPC client disassociated. Likely due to containers", "Command exited with code 52"
SPARKS = RuntimeError("Job aborted: org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location")


@pytest.mark.parametrize(
    ("error", "removals", "error_class"),
    [
        (SPARKS, [GONE, GONE], UnavailableError),
        (RuntimeError("most recent failure: ExecutorLostFailure (executor 3)"), [GONE, GONE], UnavailableError),
        (SPARKS, [GONE], None),
        (SPARKS, [GONE, "Executor decommission: spark scale down"], None),
        (ValueError("a user's own"), [GONE, GONE], None),
        (Misplaced("2 went while slots ran", where="executors"), [GONE, GONE], None),
        (SPARKS, [GONE, OOM], ConfigError),
        (Misplaced("2 went while slots ran", where="executors"), [OOM, OOM], ConfigError),
        (Misplaced("2 went while slots ran", where="executors"), [GONE, OOM], None),
    ],
)
def test_the_error_for_lost_executors_names_the_settings_to_change(
    error: Exception, removals: list[str], error_class: type[Exception] | None
) -> None:
    """If Spark gives up a batch because of lost executors, riffle's error names the settings to change.

    The error is a ConfigError if executors had no memory, and an UnavailableError if their reasons are unknown.
    """
    riffle_error = _loss_error(error, removals)
    assert (None if riffle_error is None else type(riffle_error)) == error_class
    assert riffle_error is None or "maxOffsetsPerTrigger" in riffle_error.remedy
