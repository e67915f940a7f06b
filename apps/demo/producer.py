"""Sends the demo's events to Kafka and writes the ledger of what was sent. Knows kafka-python. Does not know the job.

    python -m apps.demo.producer BOOTSTRAP TOPIC EVENTS KEYS LEDGER

The ledger appears once the broker has acknowledged every event and counts as many as were sent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from apps.demo.ledger import Events, Ledger, make_events
from apps.demo.servers.child import Child
from riffle_spark.errors import UnavailableError

FLUSH_TIMEOUT_SECONDS = 120
TOLD_EVENTS = 20_000
SENT = "events sent: "
# It stands for machines elsewhere, which take no processor from the job.
NICENESS = 10


def produce(bootstrap: str, topic: str, events: Events) -> None:
    """Send every event as JSON, spread over the topic's partitions, and wait until all are acknowledged."""
    # Compressed batches are smaller to hand to the socket, which costs this client more than compressing them.
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=20, batch_size=1 << 18, compression_type="gzip"
    )
    partitions = np.arange(len(events.keys)) % len(producer.partitions_for(topic))
    for first in range(0, len(events.keys), TOLD_EVENTS):
        some = slice(first, first + TOLD_EVENTS)
        numbers = (events.keys[some].tolist(), events.amounts[some].tolist(), partitions[some].tolist())
        for key, amount, partition in zip(*numbers, strict=True):
            producer.send(topic, b'{"user_id":"u%d","amount":%d}' % (key, amount), partition=partition)
        print(f"{SENT}{first + len(numbers[0])}", flush=True)
    producer.flush(FLUSH_TIMEOUT_SECONDS)
    producer.close()


def produced_by(producer: Child) -> str:
    """How many events a producer in a process of its own has sent, as it says in its log."""
    return f"{int(producer.log_tail().rpartition(SENT)[2] or 0):,}"


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
    os.nice(NICENESS)
    made = make_events(int(events), int(keys))
    produce(bootstrap, topic, made)
    held = held_by_broker(bootstrap, topic)
    if held != int(events):
        raise UnavailableError(f"sent {events} events, the broker holds {held}", where=topic)
    Ledger.of(made, int(keys)).write(Path(path))


if __name__ == "__main__":
    _main(sys.argv[1:])
