"""Dispatch by partition works with a real Kafka broker: partitions come from Spark's offsets, and the topic
may grow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_dispatch_app import NEW, OLD, PHASES, ROWS
from tests.kit.streams.streaming import run_app

pytestmark = pytest.mark.cluster

APP = APPS / "kafka_dispatch_app.py"
TIMEOUT_SECONDS = 280


@pytest.mark.long
def test_keys_continue_if_the_topic_grows_or_the_dispatch_changes(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Partitions become shards in order, including those without rows. Every key continues when the topic grows and
    when the dispatch changes.
    """
    kafka_broker.create_topic("dispatched", partitions=2)
    jars = ",".join(str(jar) for jar in connector_jars())
    phases = run_app(APP, str(tmp_path), kafka_broker.bootstrap, "dispatched", jars, seconds=TIMEOUT_SECONDS)
    assert [phase["dispatch"] for phase in phases] == [dispatch for dispatch, _ in PHASES]
    partitions = [["dispatched", number] for number in range(4)]
    assert [phase["shards"] for phase in phases] == [partitions[:2], partitions, [], partitions]
    assert phases[0]["batches"] == 1
    for phase, phase_output in enumerate(phases):
        rows = {f"k{number}": ROWS * (phase + 1) for number in OLD}
        rows |= {f"k{number}": ROWS * phase for number in NEW} if phase else {}
        assert {key: row["rows"] for key, row in phase_output["latest"].items()} == rows
        assert {row["newest"] for row in phase_output["latest"].values()} == {f"{phase}-{ROWS - 1}"}
