"""Sends the demo's events to Kafka and writes the ledger of what was sent. Knows kafka-python. Does not know the job.

    python -m apps.demo.producer BOOTSTRAP TOPIC EVENTS KEYS LEDGER

The ledger appears once the broker has acknowledged every event and counts as many as were sent.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from apps.demo.ledger import Events, Ledger, make_events
from riffle_spark.errors import UnavailableError

FLUSH_TIMEOUT_SECONDS = 120


def produce(bootstrap: str, topic: str, events: Events) -> None:
    """Send every event as JSON, spread over the topic's partitions, and wait until all are acknowledged."""
    # Compressed batches are smaller to hand to the socket, which costs this client more than compressing them.
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=20, batch_size=1 << 18, compression_type="gzip"
    )
    partitions = np.arange(len(events.keys)) % len(producer.partitions_for(topic))
    for key, amount, partition in zip(events.keys.tolist(), events.amounts.tolist(), partitions.tolist(), strict=True):
        producer.send(topic, b'{"user_id":"u%d","amount":%d}' % (key, amount), partition=partition)
    producer.flush(FLUSH_TIMEOUT_SECONDS)
    producer.close()


def held_by_broker(bootstrap: str, topic: str) -> int:
    """How many events the broker holds in a topic that nobody trims."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return int(sum(consumer.end_offsets(partitions).values()))
    finally:
        consumer.close()


def _main(arguments: list[str]) -> None:
    bootstrap, topic, events, keys, path = arguments
    made = make_events(int(events), int(keys))
    produce(bootstrap, topic, made)
    held = held_by_broker(bootstrap, topic)
    if held != int(events):
        raise UnavailableError(f"sent {events} events, the broker holds {held}", where=topic)
    Ledger.of(made, int(keys)).write(Path(path))


if __name__ == "__main__":
    _main(sys.argv[1:])
