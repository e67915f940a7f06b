"""The servers of the demo serve, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from kafka import KafkaConsumer, KafkaProducer

from apps.demo.servers import DiskS3Server, KafkaBroker, S3Server, StandaloneCluster

pytestmark = pytest.mark.cluster

JOB = """
import sys, time
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()

deadline = time.monotonic() + 90
while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 4 and time.monotonic() < deadline:
    time.sleep(0.1)  # three executors and the driver: then each gets one of the tasks

def place_of(_):
    import os
    return os.environ["SPARK_LOCAL_IP"] + os.environ.get("RIFFLE_RACK", "")

print("PLACES", *sorted(set(spark.sparkContext.parallelize(range(3), 3).map(place_of).collect())))
"""


def test_what_is_produced_is_read_back(kafka_broker: KafkaBroker) -> None:
    """A topic of several partitions keeps what is sent to it, in order."""
    kafka_broker.create_topic("round-trip", partitions=3)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    for number in range(100):
        producer.send("round-trip", str(number).encode(), partition=1)
    producer.close()
    consumer = KafkaConsumer(
        "round-trip",
        bootstrap_servers=kafka_broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    numbers = [int(next(consumer).value) for _ in range(100)]
    consumer.close()
    assert numbers == list(range(100))


def test_an_object_is_put_only_if_absent(s3_server: S3Server) -> None:
    """The S3 server refuses a second conditional put of one name."""
    client = boto3.client("s3", **s3_server.client_arguments)
    client.put_object(Bucket=s3_server.bucket, Key="servers/once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3_server.bucket, Key="servers/once", Body=b"2", IfNoneMatch="*")
    client.close()


@pytest.mark.long
def test_files_outlive_their_server(tmp_path: Path) -> None:
    """What one server over files was given, the next on the same folder serves, by ranges and put-if-absent."""
    for number in range(2):
        with DiskS3Server(tmp_path) as server:
            client = boto3.client("s3", **server.client_arguments)
            if number == 0:
                client.put_object(Bucket=server.bucket, Key="kept/once", Body=b"0123456789", IfNoneMatch="*")
            with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
                client.put_object(Bucket=server.bucket, Key="kept/once", Body=b"2", IfNoneMatch="*")
            part = client.get_object(Bucket=server.bucket, Key="kept/once", Range="bytes=2-4")
            assert part["Body"].read() == b"234"
            assert server.measure("kept") == (1, 10)
            client.close()


@pytest.mark.long
def test_workers_come_and_go(spark_cluster: StandaloneCluster, tmp_path: Path) -> None:
    """A job runs on three hosts; a killed worker leaves no process, and may return to its address."""
    assert _places_of_a_job(spark_cluster, tmp_path) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    spark_cluster.kill_worker(1)
    spark_cluster.wait_until_ready()
    assert spark_cluster.registered_workers() == 2
    assert not _processes_naming(str(spark_cluster.local_folder(1).parent))
    spark_cluster.return_worker(1)
    assert spark_cluster.registered_workers() == 3


@pytest.mark.long
def test_what_a_worker_is_told_reaches_its_executors(tmp_path: Path) -> None:
    """Workers take the environments in turn, and Python workers on them see theirs."""
    racks = [{"RIFFLE_RACK": "a"}, {"RIFFLE_RACK": "b"}]
    with StandaloneCluster(tmp_path / "cluster", environments=racks) as cluster:
        assert _places_of_a_job(cluster, tmp_path) == ["127.0.0.2a", "127.0.0.3b", "127.0.0.4a"]


def _places_of_a_job(cluster: StandaloneCluster, folder: Path) -> list[str]:
    script = folder / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), cluster.url], capture_output=True, text=True, timeout=120, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("PLACES ")]
    assert lines, done.stderr
    return lines[0].split()[1:]


def _processes_naming(text: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=60)
    return [line for line in listed.stdout.splitlines() if text in line]
