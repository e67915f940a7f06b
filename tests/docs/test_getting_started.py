"""The queries on Kafka and S3 of getting-started.md run as printed, against servers on this machine.

Only the broker's address is replaced. The S3 server is set where an administrator would set it: in AWS's environment
variables and in ``spark-defaults.conf``. Spark downloads the Kafka connector and ``hadoop-aws``, about 600 MB, once.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, KafkaProducer

from apps.demo.jars import spark_home
from apps.demo.servers import KafkaBroker
from apps.demo.servers.child import Child, Launch
from apps.demo.servers.s3 import S3Server
from tests.kit.folders import CHECKOUT
from tests.kit.pages import blocks

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(900)]

PAGE = CHECKOUT / "docs" / "getting-started.md"
BROKER = "broker:9092"
BUCKET = "bucket"
USERS = 10
EVENTS = 300
DEFAULTS = """\
spark.master                               local[2]
spark.ui.enabled                           false
spark.sql.shuffle.partitions               2
spark.hadoop.fs.s3a.endpoint               {endpoint}
spark.hadoop.fs.s3a.path.style.access      true
spark.hadoop.fs.s3a.connection.ssl.enabled false
"""
EXPECTED = {
    f"u{user}": (EVENTS // USERS, sum(amount for amount in range(EVENTS) if amount % USERS == user))
    for user in range(USERS)
}
"""Count and total by user."""


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """Start an S3 server with the bucket of the page."""
    with S3Server(tmp_path / "s3", BUCKET) as server:
        yield server


@pytest.fixture
def run(s3: S3Server, kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Callable[[str, list[str]], Child]]:
    """Return a function that runs a block of the page. The started programs end with the test."""
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.format(endpoint=s3.endpoint))
    variables = {
        **s3.environment,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "SPARK_CONF_DIR": str(tmp_path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(spark_home() / "bin"), os.environ["PATH"]]),
    }
    children: list[Child] = []

    def start(code: str, command: list[str]) -> Child:
        code = code.replace(BROKER, kafka_broker.bootstrap)
        launch = Launch("the query of the page", [*command, code], tmp_path / "query.log", variables, 20)
        children.append(Child(launch))
        return children[-1]

    yield start
    for child in children:
        child.stop()


def block_with(text: str) -> str:
    """Return the only block of the page that contains a text."""
    (code,) = [block.code for block in blocks(PAGE) if text in block.code]
    return code


def send_events(broker: KafkaBroker, topic: str) -> None:
    """Send events with the schema of the page."""
    broker.create_topic(topic, 2)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for amount in range(EVENTS):
        producer.send(topic, json.dumps({"user_id": f"u{amount % USERS}", "amount": amount}).encode())
    producer.flush(60)
    producer.close()


def newest_totals(rows: list[Mapping[str, object]]) -> dict[str, tuple[int, int]]:
    """Return the greatest count and total per user."""
    newest: dict[str, tuple[int, int]] = {}
    for row in rows:
        user, count, total = row["user_id"], row["count"], row["total"]
        assert isinstance(user, str)
        assert isinstance(count, int)
        assert isinstance(total, int)
        newest[user] = max((count, total), newest.get(user, (0, 0)))
    return newest


def test_the_query_on_kafka_and_s3_runs(
    run: Callable[[str, list[str]], Child], s3: S3Server, kafka_broker: KafkaBroker
) -> None:
    """The Kafka query writes its totals to Parquet files, and its state and checkpoint to the bucket."""
    send_events(kafka_broker, "events")
    client = boto3.session.Session().client("s3", **s3.client_arguments)

    def keys(prefix: str) -> list[str]:
        answer = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for entry in answer.get("Contents", [])]

    def has_all_totals() -> bool:
        files = [client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys("totals/") if "part-" in key]
        rows = [row for file in files for row in pq.read_table(io.BytesIO(file)).to_pylist()]
        return newest_totals(rows) == EXPECTED

    query = run(block_with('.option("subscribe", "events")'), [sys.executable, "-c"])
    query.wait_until(has_all_totals, 600)
    assert keys("state/totals/log/")
    assert keys("checkpoints/totals/")


def test_the_printed_application_runs_with_spark_submit(
    run: Callable[[str, list[str]], Child], s3: S3Server, kafka_broker: KafkaBroker
) -> None:
    """The application of the page runs with `spark-submit` and the packages that the page prints."""
    topics = {"--topic events": "--topic submitted", "--output-topic totals": "--output-topic submitted-totals"}
    code = block_with("spark-submit --packages")
    for printed, own in topics.items():
        assert printed in code
        code = code.replace(printed, own)
    send_events(kafka_broker, "submitted")
    kafka_broker.create_topic("submitted-totals", 1)
    consumer = KafkaConsumer("submitted-totals", bootstrap_servers=kafka_broker.bootstrap, auto_offset_reset="earliest")
    rows: list[Mapping[str, object]] = []

    def has_all_totals() -> bool:
        for messages in consumer.poll(500).values():
            rows.extend(json.loads(message.value) for message in messages)
        return newest_totals(rows) == EXPECTED

    try:
        run(f"cd {CHECKOUT}\n{code}", ["bash", "-c"]).wait_until(has_all_totals, 600)
    finally:
        consumer.close()
