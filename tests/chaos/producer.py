"""Send the events of a chaos run at their rate until a file ``stop`` exists, then write ``sent.json``.

    python -m tests.chaos.producer BOOTSTRAP TOPIC FOLDER PLAN_AS_JSON

``sent.json`` has the acknowledged events, the seconds, and the events that the broker holds. The client is idempotent,
so a restarted broker holds each event once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kafka import KafkaProducer

from apps.demo.producer import held_by_broker
from tests.chaos.events import CHUNK, Plan

__all__ = ["end_all_windows"]

FLUSH_TIMEOUT_SECONDS = 180
PATIENCE_MS = 300_000
NICENESS = 5
"""The producer represents other machines, so it yields to the tested processes but must keep its rate."""
FUTURE_MS = 3_600_000


def _client(bootstrap: str) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=20,
        batch_size=1 << 17,
        compression_type="gzip",
        max_block_ms=PATIENCE_MS,
        delivery_timeout_ms=PATIENCE_MS,
    )


def produce(bootstrap: str, topic: str, plan: Plan, stop: Path) -> tuple[int, float]:
    """Send one chunk after the other on time until the stop file exists.

    Return the number of events and the seconds.
    """
    producer = _client(bootstrap)
    index = 0
    started = time.monotonic()
    while not stop.exists():
        time.sleep(max(0.0, started + index * CHUNK / plan.rate - time.monotonic()))
        events = plan.chunk(index)
        rows = zip(
            *(column.tolist() for column in (events.numbers, events.users, events.amounts, events.times)), strict=True
        )
        for number, user, amount, time_ms in rows:
            value = b'{"user":%d,"amount":%d}' % (user, amount)
            producer.send(topic, value, partition=number % plan.partitions, timestamp_ms=time_ms)
        index += 1
    seconds = time.monotonic() - started
    producer.flush(FLUSH_TIMEOUT_SECONDS)
    producer.close()
    return index * CHUNK, seconds


def end_all_windows(bootstrap: str, topic: str, plan: Plan) -> None:
    """Send an event from the future to each partition, so that all earlier windows close."""
    producer = _client(bootstrap)
    for partition in range(plan.partitions):
        value = b'{"user":-1,"amount":0}'
        producer.send(topic, value, partition=partition, timestamp_ms=int(time.time() * 1000) + FUTURE_MS)
    producer.flush(FLUSH_TIMEOUT_SECONDS)
    producer.close()


def _main(bootstrap: str, topic: str, folder: Path, plan: Plan) -> None:
    os.nice(NICENESS)
    sent, seconds = produce(bootstrap, topic, plan, folder / "stop")
    summary = {"events": sent, "seconds": seconds, "held": held_by_broker(bootstrap, topic)}
    partial = folder / "sent.partial"
    partial.write_text(json.dumps(summary))
    partial.rename(folder / "sent.json")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Plan(**json.loads(sys.argv[4])))
