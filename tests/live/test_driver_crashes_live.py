"""The driver is killed with SIGKILL at one step of the protocol per batch, and every row still counts once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.folders import APPS
from tests.kit.streams.apps.crashing_app import RETURNED, running_totals
from tests.kit.streams.streaming import Feed, committed, records, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.long]

APP = APPS / "crashing_app.py"
STEPS = ("before run", "after seal", "after sink", "after record", RETURNED)
KEYS = 12
TIMEOUT_SECONDS = 150
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Totals = dict[int, tuple[int, int]]


def batch(number: int, batches: int) -> list[dict[str, int]]:
    """Return the rows of a batch: all keys in the first and the last batch, two thirds of them in the others."""
    everything = number in (0, batches - 1)
    return [{"k": k, "v": 10 * number + k} for k in range(KEYS) if everything or (k + number) % 3] * 2


def undisturbed(batches: int) -> list[Totals]:
    """Return what each batch of a run without crashes delivers."""
    state: Totals = defaultdict(lambda: (0, 0))
    delivered = []
    for number in range(batches):
        for row in batch(number, batches):
            rows, total = state[row["k"]]
            state[row["k"]] = (rows + 1, total + row["v"])
        delivered.append({row["k"]: state[row["k"]] for row in batch(number, batches)})
    return delivered


def deliveries(spark: SparkSession, folder: Path) -> dict[str, list[Totals]]:
    """Return the rows of each call of the sink, grouped by delivery id."""
    calls = defaultdict(list)
    for call in sorted((folder / "out").iterdir()):
        rows = spark.read.schema("k long, rows long, total long, delivery string").json(str(call)).collect()
        (delivery,) = {row.delivery for row in rows}
        calls[delivery].append({row.k: (row.rows, row.total) for row in rows})
    return dict(calls)


@contextmanager
def driver(folder: Path, step: str, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job in a new process. It starts Spark and waits for a line on its stdin."""
    path = os.pathsep.join([str(APP.parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    command = [sys.executable, str(APP), str(folder), step, str(number)]
    with (folder / f"{number}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)
    with process:
        yield process
        process.kill()


def test_five_driver_crashes_do_not_change_the_delivered_rows(spark: SparkSession, tmp_path: Path) -> None:
    """After five kills of the driver, the sink has the rows of an undisturbed run, if deliveries are counted by their
    id.
    """
    batches = len(STEPS) + 2
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(batches):
        feed.add(batch(number, batches))
    root = f"file://{tmp_path}/state"
    with ExitStack() as stack:
        drivers = [stack.enter_context(driver(tmp_path, step, number)) for number, step in enumerate(STEPS, start=1)]
        for number, (step, process) in enumerate(zip(STEPS, drivers, strict=True), start=1):
            process.communicate(b"go\n", timeout=TIMEOUT_SECONDS)
            assert process.returncode == -signal.SIGKILL, (tmp_path / f"{number}.log").read_text()[-3000:]
            assert committed(root)[-1] == (number if step in ("after record", RETURNED) else number - 1)
    job = running_totals(tmp_path)
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    delivered, expected = deliveries(spark, tmp_path), undisturbed(batches)
    assert {delivery: calls[0] for delivery, calls in delivered.items()} == {
        f"{records(root)[-1].query_id}/0/{number}": expected[number] for number in range(batches)
    }
    assert all(call == calls[0] for calls in delivered.values() for call in calls)
    assert [len(calls) for calls in delivered.values()].count(2) == 1, (
        "only the crash after the sink repeats a delivery"
    )
    assert committed(root) == list(range(batches))
    assert [report.decision for report in job.reports] == ["repeat", "run"]
