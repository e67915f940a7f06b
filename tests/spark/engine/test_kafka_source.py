"""Jobs that read a real Kafka broker: results in the order of offsets, source lag, and a warning without a limit per
batch.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from kafka import KafkaProducer

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_app import JOBS
from tests.kit.streams.streaming import run_app

pytestmark = pytest.mark.cluster

APP = APPS / "kafka_app.py"
EVENTS, KEYS = 120, 5
TIMEOUT_SECONDS = 240


@pytest.mark.long
def test_unbounded_sources_are_warned_of_and_the_source_lag_is_exact(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Only queries without ``maxOffsetsPerTrigger`` log a warning, wrapped or not. The source lag of each batch is the
    number of unread records.
    """
    kafka_broker.create_topic("events", partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    for number in range(EVENTS):
        key = number % KEYS
        producer.send("events", key=f"k{key}".encode(), value=f"v{number:04d}".encode(), partition=key % 2)
    producer.close()
    jars = ",".join(str(jar) for jar in connector_jars())
    outputs = run_app(APP, str(tmp_path), kafka_broker.bootstrap, "events", jars, seconds=TIMEOUT_SECONDS)
    expected = [1 if name.endswith("unbounded") else 0 for name, *_ in JOBS]
    assert [len(job["warned"]) for job in outputs] == expected, [job["warned"] for job in outputs]
    assert all("RIFFLE-0652" in text for job in outputs for text in job["warned"])
    assert [len(job["batches"]) > 1 for job in outputs] == [
        name.endswith(" bounded") or name == "bounded" for name, *_ in JOBS
    ]
    for job in outputs:
        assert job["lags"] == [EVENTS - rows for rows in accumulate(job["batches"])], job["name"]
    latest = {f"k{k}": {"rows": EVENTS // KEYS, "last": f"v{EVENTS - KEYS + k:04d}"} for k in range(KEYS)}
    assert [job["latest"] for job in outputs] == [latest] * len(JOBS)
