"""A wrapped windowed query from Kafka to Kafka: every result arrives with its delivery id."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from tests.kit.folders import APPS
from tests.kit.streams.apps.kafka_sinks_app import BROKEN, EVENTS, RESULTS
from tests.kit.streams.streaming import run_app

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TIMEOUT_SECONDS = 240


def test_results_of_a_broken_batch_arrive_again_with_the_same_delivery_id(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """The results of a broken batch arrive again with the same delivery id, so a reader can remove the duplicates."""
    for topic, partitions in ((EVENTS, 2), (RESULTS, 1)):
        kafka_broker.create_topic(topic, partitions)
    jars = ",".join(str(jar) for jar in connector_jars())
    (outcome,) = run_app(
        APPS / "kafka_sinks_app.py", str(tmp_path), kafka_broker.bootstrap, jars, seconds=TIMEOUT_SECONDS
    )
    assert outcome["failed"]
    assert outcome["ended"] == ["", ""]
    messages = [(row.pop("delivery"), row["window"]["start"], row["page"], row) for row in outcome["found"]]
    batches = [int(delivery.rpartition("/")[2]) for delivery, *_ in messages]
    assert batches == sorted(batches)
    assert len({delivery.rpartition("/")[0] for delivery, *_ in messages}) == 1
    once = {(delivery, start, page): row for delivery, start, page, row in messages}
    assert len(messages) - len(once) >= outcome["before"]  # The broken batch's results are all there twice.
    assert sum(batch > 0 for batch in batches) == sum(not delivery.endswith("/0") for delivery, *_ in once)
    latest = {(start, page): row for (_, start, page), row in once.items()}
    assert latest == {(row["window"]["start"], row["page"]): row for row in outcome["expected"]}
    assert BROKEN in {page for _, page in latest}
