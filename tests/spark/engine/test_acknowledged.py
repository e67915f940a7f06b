"""A Python worker acknowledges received rows at once, so that the JVM does not wait before it sends the rest. It tidies
before it ends.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, arrow_function
from riffle_spark.spark.engine import task
from tests.kit.streams.streaming import CollectingSink, settings_in

QUICK = socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 0)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a word for it")


def worker(sock: socket.socket) -> None:
    """End a task as pyspark's daemon does. The code under test looks for this function name and its local ``sock``."""
    task._prepare_next_task("upkeep")


def test_a_worker_enables_quick_acknowledgement_after_its_answer() -> None:
    """The worker turns quick acknowledgement on again after its answer, because the kernel turns it off with each
    answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            for _ in range(5):
                theirs.sendall(b"rows")
                ours.recv(4)
                worker(ours)
                ours.sendall(b"answer")
            time.sleep(5 * task._ANSWER_SECONDS)
            assert ours.getsockopt(*QUICK) != 0


def test_a_task_returns_its_result_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the task still returns its result and skips the work after it."""

    def refusing(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refusing)
    task._run_after_result(lambda: pytest.fail("it was done"))


@pytest.mark.parametrize("reuse", ["", "1"])
def test_a_worker_that_ends_with_its_task_tidies_before_its_result(reuse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python worker that Spark reuses tidies after its result. Another one tidies before, because it ends then."""

    def worker(sock: socket.socket) -> list[str]:
        events: list[str] = []
        task._tidy(lambda: events.append("tidied"))
        return [*events, "result"]

    monkeypatch.setenv("SPARK_REUSE_WORKER", reuse)
    with socket.socket() as sock:
        assert worker(sock) == (["result"] if reuse else ["tidied", "result"])


@pytest.mark.spark
@pytest.mark.newer_spark
def test_a_slot_finds_its_socket_to_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """A slot finds the socket of its connection to the JVM in pyspark's daemon."""
    output_schema = pa.schema([("k", pa.int64()), ("family", pa.int64())])

    def families(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        connection = task._connection()
        family = -1 if connection is None else int(connection.family)
        output = rows.select(["k"]).append_column("family", pa.array([family] * rows.num_rows, pa.int64()))
        return output, state.slice(0, 0)

    sink = CollectingSink()
    compute = arrow_function(families, state=pa.schema([("nothing", pa.int64())]), output=output_schema)
    Stateful("families", "k", compute, settings=settings_in(tmp_path)).into(sink)(spark.range(3).toDF("k"), 0)
    families_found = {row["family"] for row in sink.latest("k").values()}
    assert families_found
    assert families_found <= {int(socket.AF_INET), int(socket.AF_INET6), int(socket.AF_UNIX)}
