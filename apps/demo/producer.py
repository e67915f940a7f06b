"""Send the demo's events to Kafka and write the ledger of the sent events.

    python -m apps.demo.producer BOOTSTRAP TOPIC EVENTS KEYS LEDGER MINUTES

The ledgers of keys and minutes are written after the broker has acknowledged every event and reports the same number.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from apps.demo.ledger import MINUTES, Events, Ledger, make_events, minutes_of, times_of
from apps.demo.servers.child import Child
from riffle_spark.errors import UnavailableError

FLUSH_TIMEOUT_SECONDS = 120
TOLD_EVENTS = 20_000
SENT = "events sent: "
# The producer represents other machines, so it yields the processors to the job.
NICENESS = 10
MINUTE_MS = 60_000


def produce(bootstrap: str, topic: str, events: Events) -> int:
    """Send every event as JSON, and wait until all are acknowledged. Return the number of partitions.

    Events are spread over the topic's partitions and the last minutes.
    """
    # Compressing costs this client less than passing larger batches to the socket.
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=20, batch_size=1 << 18, compression_type="gzip"
    )
    count = len(producer.partitions_for(topic))
    partitions = np.arange(len(events.keys)) % count
    times = times_of(len(events.keys)) + (time.time_ns() // 1_000_000 // MINUTE_MS - MINUTES) * MINUTE_MS
    for first in range(0, len(events.keys), TOLD_EVENTS):
        chunk = slice(first, first + TOLD_EVENTS)
        numbers = [column[chunk].tolist() for column in (events.keys, events.amounts, partitions, times)]
        for key, amount, partition, time_ms in zip(*numbers, strict=True):
            value = b'{"user_id":"u%d","amount":%d}' % (key, amount)
            producer.send(topic, value, partition=partition, timestamp_ms=time_ms)
        print(f"{SENT}{first + len(numbers[0])}", flush=True)
    producer.flush(FLUSH_TIMEOUT_SECONDS)
    producer.close()
    return count


def produced_by(producer: Child) -> str:
    """Return the number of events that a producer process has sent, from its log."""
    return f"{int(producer.log_tail().rpartition(SENT)[2] or 0):,}"


def held_by_broker(bootstrap: str, topic: str) -> int:
    """Return the number of events in a topic without deletions."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return int(sum(consumer.end_offsets(partitions).values()))
    finally:
        consumer.close()


def _main(arguments: list[str]) -> None:
    bootstrap, topic, events, keys, path, minutes_path = arguments
    os.nice(NICENESS)
    new_events = make_events(int(events), int(keys))
    partitions = produce(bootstrap, topic, new_events)
    held_events = held_by_broker(bootstrap, topic)
    if held_events != int(events):
        raise UnavailableError(f"sent {events} events, the broker holds {held_events}", where=topic)
    minutes_of(new_events, partitions).write(Path(minutes_path))
    Ledger.of(new_events, int(keys)).write(Path(path))


if __name__ == "__main__":
    _main(sys.argv[1:])
