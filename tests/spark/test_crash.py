"""The driver dies with SIGKILL at every step of the protocol, one step a batch; what it leaves behind adds up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from crashing_app import RETURNED, running_totals
from pyspark.sql import SparkSession
from streaming import Feed, committed, records, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

APP = Path(__file__).with_name("crashing_app.py")
STEPS = ["before run", "after seal", "after sink", "after record", RETURNED]
BATCHES = len(STEPS) + 2
KEYS = 12
TIMEOUT_SECONDS = 150
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Totals = dict[int, tuple[int, int]]


def batch(number: int) -> list[dict[str, int]]:
    """Return a batch's rows: all keys in the first and the last, some in the others."""
    everything = number in (0, BATCHES - 1)
    return [{"k": k, "v": 10 * number + k} for k in range(KEYS) if everything or (k + number) % 3] * 2


def undisturbed() -> list[Totals]:
    """Return what each batch of a run without crashes delivers."""
    state: Totals = defaultdict(lambda: (0, 0))
    delivered = []
    for number in range(BATCHES):
        for row in batch(number):
            rows, total = state[row["k"]]
            state[row["k"]] = (rows + 1, total + row["v"])
        delivered.append({row["k"]: state[row["k"]] for row in batch(number)})
    return delivered


def deliveries(spark: SparkSession, folder: Path) -> dict[str, list[Totals]]:
    """Return what each call of the sink got, by delivery id."""
    found = defaultdict(list)
    for call in sorted((folder / "out").iterdir()):
        rows = spark.read.schema("k long, rows long, total long, delivery string").json(str(call)).collect()
        (delivery,) = {row.delivery for row in rows}
        found[delivery].append({row.k: (row.rows, row.total) for row in rows})
    return dict(found)


def run_until_killed(folder: Path, step: str, number: int) -> None:
    """Start the job as a process of its own, and see it die by its own hand."""
    path = os.pathsep.join([str(APP.parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    command = [sys.executable, str(APP), str(folder), step, str(number)]
    with (folder / f"{number}.log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL, (folder / f"{number}.log").read_text()[-3000:]


def test_a_driver_killed_at_each_step_leaves_what_an_undisturbed_run_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """State and sink, with deliveries counted by their id, are those of a run that nobody killed."""
    feed = Feed(tmp_path / "in", "k long, v long")
    for number in range(BATCHES):
        feed.add(batch(number))
    root = f"file://{tmp_path}/state"
    for number, step in enumerate(STEPS, start=1):
        run_until_killed(tmp_path, step, number)
        assert committed(root)[-1] == (number if step in ("after record", RETURNED) else number - 1)
    job = running_totals(tmp_path)
    run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
    assert [report.decision for report in job.reports] == ["repeat", "run"]
    found = deliveries(spark, tmp_path)
    expected = undisturbed()
    assert {delivery: calls[0] for delivery, calls in found.items()} == {
        f"{records(root)[-1].query_id}/0/{number}": expected[number] for number in range(BATCHES)
    }
    assert all(call == calls[0] for calls in found.values() for call in calls)
    assert [len(calls) for calls in found.values()].count(2) == 1, "only the death after the sink delivers again"
    assert committed(root) == list(range(BATCHES))
