"""A Spark query over a real Kafka broker is moved with its offsets and state to a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_import_app import ROWS, TAKEN
from tests.kit.streams.streaming import run_app

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.needs_spark4("the source statestore")]

TOPIC = "moved"
TIMEOUT_SECONDS = 280


def test_a_query_over_kafka_continues_from_its_offsets(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Each later batch of the moved query has the same rows as the query that stays on Spark."""
    kafka_broker.create_topic(TOPIC, 2)
    jars = ",".join(str(jar) for jar in connector_jars())
    app = APPS / "kafka_import_app.py"
    (outcome,) = run_app(app, str(tmp_path), kafka_broker.bootstrap, TOPIC, jars, seconds=TIMEOUT_SECONDS)
    (offsets,) = outcome["offsets"]
    assert sum(json.loads(offsets)[TOPIC].values()) == ROWS
    assert len(outcome["before"]) == ROWS // TAKEN
    assert [rows for rows in outcome["moved"].values() if rows] == [rows for rows in outcome["stayed"].values() if rows]
    assert next(iter(outcome["moved"])) == str(ROWS // TAKEN)
    newest = {key: (rows, total) for batch in outcome["moved"].values() for key, rows, total in batch}
    different = ROWS // 2 + ROWS // 4
    assert sum(rows for rows, _ in newest.values()) == different
    assert sum(total for _, total in newest.values()) == sum(range(different))
