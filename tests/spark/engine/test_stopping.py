"""Which errors in the middle of a batch count as a stop of the query. These tests start no session."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from riffle_spark.spark.engine.jvm import in_session
from riffle_spark.spark.engine.jvm_errors import Py4JJavaError, is_interruption
from riffle_spark.spark.engine.kept_plan import result_or_none

CALL = "An error occurred while calling o1.save.\n: "
TIMED_OUT = CALL + "java.io.InterruptedIOException: java.net.SocketTimeoutException: Read timed out"


@pytest.mark.parametrize(
    "java_error",
    [
        "java.lang.InterruptedException",
        "org.apache.spark.SparkException: failed\nCaused by: java.lang.InterruptedException: sleep interrupted",
        "java.nio.channels.ClosedByInterruptException\n\tat java.base/java.nio.channels",
    ],
)
def test_javas_interruption_exceptions_count_as_a_stop(java_error: str) -> None:
    """Java's interruption exceptions count as a stop, also as the cause of another error."""
    assert is_interruption(RuntimeError(CALL + java_error))
    outer = ValueError("the sink failed")
    outer.__cause__ = RuntimeError(CALL + java_error)
    assert is_interruption(outer)


def test_a_timeout_in_a_sink_does_not_count_as_a_stop() -> None:
    """Hadoop's InterruptedIOException for a timeout is not a stop, so the user sees the error."""
    assert not is_interruption(RuntimeError(TIMED_OUT))


def test_a_stop_while_a_kept_plan_is_used_raises_the_interruption() -> None:
    """A stop while a kept plan is used raises the interruption. Any other error falls back to another plan."""

    def failing(java_error: str) -> None:
        raise RuntimeError(CALL + java_error)

    with pytest.raises(RuntimeError, match="InterruptedException"):
        result_or_none("totals", lambda: failing("java.lang.InterruptedException"))
    with pytest.raises(RuntimeError, match="InterruptedException"):
        in_session(cast(SparkSession, None), lambda: failing("java.lang.InterruptedException"))
    assert result_or_none("totals", lambda: failing("java.lang.NoSuchMethodError")) is None


def test_the_shortened_error_is_recognised_as_a_stop() -> None:
    """The short error that replaces Py4J's long one is still recognised as a stop."""
    assert is_interruption(Py4JJavaError())
    assert len(str(Py4JJavaError())) < 200
