"""A wrapped query over a real broker is forked, and the fork continues from the printed offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_fork_app import EVERY_ROWS, KEYS, ROWS, SAVEPOINT_BATCH, TOPIC
from tests.kit.streams.streaming import told_by

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TIMEOUT_SECONDS = 280


def totals(rows: int) -> dict[str, list[int]]:
    """Return the count and the sum of each key after so many rows."""
    return {f"k{key}": [len(range(key, rows, KEYS)), sum(range(key, rows, KEYS))] for key in range(KEYS)}


def test_a_fork_of_a_wrapped_query_is_continued_exactly(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """The fork is refused until it is adopted. Then it reads the rows after the savepoint once, and the source query
    keeps its state.
    """
    kafka_broker.create_topic(TOPIC, 2)
    jars = ",".join(str(jar) for jar in connector_jars())
    app = APPS / "kafka_fork_app.py"
    (told,) = told_by(app, str(tmp_path), kafka_broker.bootstrap, jars, seconds=TIMEOUT_SECONDS)
    before = EVERY_ROWS * (SAVEPOINT_BATCH + 1)
    assert told["at_savepoint"] == told["copied"] == totals(before)
    assert json.loads(told["offsets"]) == {TOPIC: {"0": before // 2, "1": before // 2}}
    assert [bool(error) for error in told["errors"]] == [False, False, True, True, False], told["errors"]
    assert all("RIFFLE-0210" in error for error in told["errors"][2:4])
    assert told["own"] == told["forked"] == totals(ROWS)
    assert told["batches"][1] == [*range(len(told["batches"][1]))]
