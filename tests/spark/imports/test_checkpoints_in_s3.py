"""`riffle import` moves a Spark query whose checkpoint is in S3, and adds Spark's S3 connector itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
from pyspark.sql import SparkSession

from apps.demo.jars import spark_home
from apps.demo.servers import S3Server
from riffle_spark.offline.verify import verify
from riffle_spark.worker.member_folders import options_of
from tests.kit.folders import APPS, CHECKOUT
from tests.kit.queries.played_query import configured
from tests.kit.queries.record_checkpoints import STORES
from tests.kit.streams.apps.s3a_app import MASTER, feed_in, once_per_window, run
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.newer_spark,
    pytest.mark.needs_spark4("the source statestore"),
    pytest.mark.timeout(900),
]

TIMEOUT_SECONDS = 300
DEFAULTS = """\
spark.master                               {master}
spark.ui.enabled                           false
spark.log.level                            ERROR
spark.sql.shuffle.partitions               2
spark.hadoop.fs.s3a.path.style.access      true
spark.hadoop.fs.s3a.connection.ssl.enabled false
"""
BATCHES = [
    [("a", 0, 1), ("b", 1, 2), ("a", 0, 1)],
    [("a", 12, 1), ("b", 14, 5)],
    [("a", 12, 1), ("c", 15, 1), ("c", 26, 3)],
    [("b", 14, 5), ("b", 16, 7), ("c", 26, 3), ("d", 45, 1)],
    [("e", 90, 1)],
]
"""Page, second and number of each row. After the move some rows are repeated."""


@pytest.fixture
def process(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a Python program and returns its output.

    The address of the server is in ``PYSPARK_SUBMIT_ARGS``, the other settings are in ``spark-defaults.conf``.
    """
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.format(master=MASTER))
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.hadoop.fs.s3a.endpoint={s3_server.endpoint} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "MOVED_FOLDER": str(tmp_path),
        "MOVED_ROOT": f"s3://{s3_server.bucket}/{tmp_path.name}/state",
        "MOVED_ENDPOINT": s3_server.endpoint,
    }

    def run_process(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    return run_process


@pytest.mark.parametrize("store", STORES)
def test_a_query_moves_with_its_checkpoint_in_s3(
    spark: SparkSession, process: Callable[..., str], s3_server: S3Server, store: str, tmp_path: Path
) -> None:
    """A query whose checkpoints and root are in S3 returns the same rows after its move as the query that stays on
    Spark.

    The first checkpoint is copied to S3, because moto does not take the uploads of Spark's RocksDB store.
    """
    place = f"{s3_server.bucket}/{tmp_path.name}"
    old, new, root = f"s3a://{place}/spark", f"s3a://{place}/spark-riffle", f"s3://{place}/state"
    feed, native = feed_in(tmp_path), tmp_path / "spark"
    options = ["--s3-endpoint", s3_server.endpoint, "--query", "tests.kit.streams.apps.s3a_app:query", "--execute"]
    add(feed, BATCHES[:3])
    with configured(spark, STORES[store]):
        moved = run(once_per_window(feed.stream(spark)), str(native))
        upload(s3_server, native, f"{tmp_path.name}/spark")
        output = process("-m", "riffle_spark", "import", root, "--checkpoint", old, *options)
        assert f"write the checkpoint {new}." in output
        add(feed, BATCHES[3:])
        expected = run(once_per_window(feed.stream(spark)), str(native))
    assert json.loads(process(str(APPS / "s3a_app.py"), new).splitlines()[-1]) == expected != []
    assert moved != []
    settings = settings_in(tmp_path, root=root, s3_endpoint=s3_server.endpoint)
    assert verify(root, options=options_of(settings)).is_whole


def add(feed: Feed, batches: list[list[tuple[str, int, int]]]) -> None:
    """Add a file for each batch."""
    for rows in batches:
        feed.add([{"page": page, "t": f"2026-01-01T00:{s // 60:02d}:{s % 60:02d}Z", "n": n} for page, s, n in rows])


def upload(server: S3Server, folder: Path, prefix: str) -> None:
    """Copy a folder into the bucket, without the checksum files of local disks."""
    client = boto3.client("s3", **server.client_arguments)
    for path in folder.rglob("[!.]*"):
        if path.is_file():
            client.upload_file(str(path), server.bucket, f"{prefix}/{path.relative_to(folder)}")
