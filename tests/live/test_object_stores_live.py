"""A streaming query runs on each object store, while an executor is killed and all local copies are lost."""

from __future__ import annotations

import base64
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from tests.kit.servers.cloud_servers import CloudServer
from tests.kit.servers.object_server import ObjectServer
from tests.kit.streams.streaming import CollectingSink, Feed, executor_processes, settings_in, start, wait_for

pytestmark = pytest.mark.cluster

KEYS = 30
BATCHES = 8
KILLED_AFTER = 3
CREDENTIALS = ("aws_environment", "google_credentials", "azure_credentials")


@pytest.fixture(scope="module")
def master(request: pytest.FixtureRequest) -> str:
    """Return the master of two executors. They inherit this process's credentials, which are set before Spark
    starts.
    """
    for name in CREDENTIALS:
        request.getfixturevalue(name)
    return "local-cluster[2,1,600]"


@dataclass(frozen=True)
class Place:
    """A new root with the settings and store options that reach it."""

    root: str
    settings: dict[str, Any]
    options: StoreOptions


@pytest.fixture(params=["file", "s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new root in each object store. State in GCS and Azure is encrypted."""
    if request.param == "file":
        return Place(f"file://{tmp_path}/root", {}, StoreOptions())
    if request.param == "s3":
        server: ObjectServer = request.getfixturevalue("object_server")
        return Place(server.new_root(), {"s3_endpoint": server.endpoint, "s3_region": "us-east-1"}, server.options)
    cloud: CloudServer = request.getfixturevalue(f"{request.param}_server")
    (tmp_path / "keys").write_text(f"first = {base64.b64encode(os.urandom(32)).decode()}\n")
    (tmp_path / "keys").chmod(0o600)
    settings = {f"{request.param}_endpoint": cloud.endpoint, "encryption_keys": f"file:{tmp_path}/keys"}
    return Place(cloud.new_root(), settings, cloud.options)


def rows_of(number: int) -> list[dict[str, int]]:
    """Return the rows of a batch."""
    return [{"k": k, "v": 100 * number + k} for k in range(KEYS) if (k + number) % 3]


def expected(batches: int) -> dict[object, dict[str, object]]:
    """Return the totals after some batches."""
    rows: dict[object, int] = defaultdict(int)
    totals: dict[object, int] = defaultdict(int)
    for number in range(batches):
        for row in rows_of(number):
            rows[row["k"]] += 1
            totals[row["k"]] += row["v"]
    return {k: {"rows": rows[k], "total": totals[k]} for k in rows}


def test_a_query_counts_exactly_after_a_kill(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """Each row counts once after an executor is killed. A second run without local copies continues from the object
    store.
    """
    feed = Feed(tmp_path / "in", "k long, v long")
    sink = CollectingSink()

    def job_with(local: str) -> StatefulJob:
        settings = settings_in(tmp_path, root=place.root, local_dir=f"{tmp_path}/{local}", **place.settings)
        compute = aggregate(rows=count(), total=sum_("v"))
        return Stateful("totals", "k", compute, settings=settings).into(sink)

    def run(local: str, batches: range, between: Callable[[int], None]) -> StatefulJob:
        job = job_with(local)
        query = start(feed.stream(spark), job, tmp_path / "checkpoint", processingTime="0 seconds")
        try:
            for number in batches:
                feed.add(rows_of(number))
                between(number)
                query.processAllAvailable()
        finally:
            query.stop()
        return job

    run("first", range(BATCHES), lambda number: kill_an_executor() if number == KILLED_AFTER else None)
    assert sink.latest("k") == expected(BATCHES)
    job = run("second", range(BATCHES, BATCHES + 2), lambda _: None)
    assert sink.latest("k") == expected(BATCHES + 2)
    assert job.reports[0].fetched_bytes > 0
    store = open_store(place.root, place.options)
    parts = [store.get(name) or b"" for name in store.list("delta/")]
    assert parts
    assert all((b"RFE2" in part) == ("encryption_keys" in place.settings) for part in parts)


def kill_an_executor() -> None:
    """Kill an executor, perhaps inside its batch, and wait until it is gone."""
    victim = next(iter(executor_processes().values()))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: victim not in executor_processes().values(), "the executor is gone")
