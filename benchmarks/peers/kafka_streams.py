"""Kafka Streams: instances that share a topic."""

from __future__ import annotations

from apps.demo.servers import Child
from benchmarks.peers.programs import Programs, words_of
from benchmarks.peers.readings import marks_in
from benchmarks.peers.work import Group, Work

__all__ = ["StreamsGroup", "alone", "copies_in"]

CACHE_BYTES = 64 << 20
LAG = 10_000
"""The total lag in records up to which copies count as caught up: the load between two commits."""
PATIENCE: dict[str, object] = {
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 2_000,
    "probing.rebalance.interval.ms": 60_000,
    "max.warmup.replicas": 4,
}
"""A death is detected after 10 s (default 45 s). Warm-ups are checked as often as is allowed (default 10 min)."""


def alone(programs: Programs, work: Work) -> Child:
    """Start an instance with two threads and exactly-once processing. It has a larger cache, as is usual for such a
    load.
    """
    settings = {"num.stream.threads": 2, "statestore.cache.max.bytes": CACHE_BYTES, **_settings(work)}
    return programs.start(work.name, "StreamsTotals", words_of(work.arguments, settings), "streams", 2048)


def _settings(work: Work) -> dict[str, object]:
    return {"processing.guarantee": "exactly_once_v2", "commit.interval.ms": work.each_ms}


class StreamsGroup(Group):
    """Instances with one thread each."""

    def __init__(self, programs: Programs, work: Work) -> None:
        self._programs = programs
        self._work = work
        self._instances: list[Child] = []

    def start(self, members: int) -> None:
        """Start the first instances."""
        for _ in range(members):
            self.add()

    def add(self) -> None:
        """Start an instance with its own folder."""
        number = len(self._instances)
        arguments = {**self._work.arguments, "folder": self._work.folder / str(number)}
        options = {"client.id": f"i{number}", "num.standby.replicas": self._work.standbys, "num.stream.threads": 1}
        words = words_of(arguments, {**_settings(self._work), **options, **PATIENCE})
        self._instances.append(
            self._programs.start(f"{self._work.name}-{number}", "StreamsTotals", words, "streams", 700)
        )

    def rows(self) -> int:
        """Return the sum of the rows that the instances have logged."""
        marks = (marks_in(child.log_tail()) for child in self._instances)
        return sum(mark[-1].rows for mark in marks if mark)

    def is_ready(self) -> bool:
        """Return whether every partition has all its copies, and their total lag is at most ``LAG``."""
        reported_copies = [copies_in(child.log_tail()) for child in self._instances]
        expected = self._work.partitions * (1 + self._work.standbys)
        return sum(count for count, _ in reported_copies) == expected and sum(lag for _, lag in reported_copies) <= LAG

    def kill(self) -> None:
        """Kill the last instance with SIGKILL."""
        self._instances.pop().kill()

    def stop(self) -> None:
        """End all instances at the same time."""
        for child in self._instances:
            child.ask_to_stop()
        for child in self._instances:
            child.stop()

    def check(self) -> None:
        """Check that each instance runs."""
        for child in self._instances:
            child.check_alive()


def copies_in(log: str) -> tuple[int, int]:
    """Return the number of an instance's copies, and their total lag in records, from the last such line of its log."""
    copies_lines = [
        line.split() for line in log.split("\n")[:-1] if line.startswith("copies ") and len(line.split()) == 3
    ]
    return (int(copies_lines[-1][1]), int(copies_lines[-1][2])) if copies_lines else (0, 0)
