"""The servers of the demo serve, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from kafka import KafkaConsumer, KafkaProducer

from apps.demo.servers import KafkaBroker, S3Server, StandaloneCluster

pytestmark = pytest.mark.cluster

JOB = """
import socket, sys, time
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "512m").getOrCreate()

def host_of(_):
    import os, time
    time.sleep(2)
    return os.environ["SPARK_LOCAL_IP"]

print("HOSTS", *sorted(set(spark.sparkContext.parallelize(range(3), 3).map(host_of).collect())))
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
    read = [int(next(consumer).value) for _ in range(100)]
    consumer.close()
    assert read == list(range(100))


def test_an_object_is_put_only_if_absent(s3_server: S3Server) -> None:
    """The S3 server refuses a second conditional put of one name."""
    client = boto3.client("s3", **s3_server.client_arguments)
    client.put_object(Bucket=s3_server.bucket, Key="servers/once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3_server.bucket, Key="servers/once", Body=b"2", IfNoneMatch="*")
    client.close()


def test_workers_come_and_go(spark_cluster: StandaloneCluster, tmp_path: Path) -> None:
    """A job runs on three hosts; a killed worker leaves no process, and may return to its address."""
    assert _hosts_of_a_job(spark_cluster, tmp_path) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    spark_cluster.kill_worker(1)
    spark_cluster.wait_until_ready()
    assert spark_cluster.registered_workers() == 2
    assert not _processes_naming(str(spark_cluster.local_folder(1).parent))
    spark_cluster.return_worker(1)
    assert spark_cluster.registered_workers() == 3


def _hosts_of_a_job(cluster: StandaloneCluster, folder: Path) -> list[str]:
    script = folder / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), cluster.url], capture_output=True, text=True, timeout=120, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("HOSTS ")]
    assert lines, done.stderr
    return lines[0].split()[1:]


def _processes_naming(text: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=10)
    return [line for line in listed.stdout.splitlines() if text in line]
