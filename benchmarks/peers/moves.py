"""Measure how long partitions stop if a member dies or two join under a steady load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from apps.demo.servers import Child, KafkaBroker
from benchmarks.peers.programs import Programs
from benchmarks.peers.readings import Downtime, Result, downtime_around, results_in
from benchmarks.peers.work import Group, Work
from riffle_spark.errors import UnavailableError

__all__ = ["Play", "WatchedTopics"]

MEMBERS = 2
ROWS_PER_S = 2_000
FILL_SECONDS = 300.0
READY_SECONDS = 90.0
START_SECONDS = 180.0
LOAD_SECONDS = 900
POLL_SECONDS = 0.3


class WatchedTopics:
    """The topics of a work. Rows are put into the first, and results are read from the second."""

    def __init__(self, programs: Programs, broker: KafkaBroker, work: Work, stack: ExitStack) -> None:
        self._programs = programs
        self._stack = stack
        self._watch: Child | None = None
        self.work = work
        for topic in filter(None, (work.topic, work.out)):
            broker.create_topic(topic, work.partitions)

    def fill(self, arguments: dict[str, object]) -> None:
        """Put all rows as fast as possible."""
        self._client("Produce", {"topic": self.work.topic, **arguments}).wait(FILL_SECONDS)

    def load(self, rows_per_s: int, check: Callable[[], None]) -> None:
        """Start to put rows at a steady rate and to read results. Return after the first results.

        ``check`` is called repeatedly. It raises an error if the engine has ended.
        """
        watch = self._watch = self._client("Watch", {"topic": self.work.out})
        watch.wait_until(lambda: "watching" in watch.log_tail(), START_SECONDS)
        arguments = {"topic": self.work.topic, "rows": rows_per_s * LOAD_SECONDS, "rate": rows_per_s, "stamped": "true"}
        self._client("Produce", arguments)

        def has_some() -> bool:
            check()
            return "result" in watch.log_tail()

        watch.wait_until(has_some, START_SECONDS)

    def results(self) -> list[Result]:
        """Return all results that were read so far."""
        assert self._watch is not None, "load it first"
        self._watch.check_alive()
        return results_in(self._watch.log.read_text(errors="replace"))

    def _client(self, main: str, arguments: dict[str, object]) -> Child:
        work = self.work
        common = {"bootstrap": work.bootstrap, "partitions": work.partitions, "keys": work.keys}
        kind = "load" if "rate" in arguments else main.lower()
        child = self._programs.client(f"{work.name}-{kind}", main, {**common, **arguments})
        self._stack.callback(child.stop)
        return child


class Play:
    """One run of a group: fill it with state, put load on it, kill or add members, and watch its results."""

    def __init__(self, watching: WatchedTopics, group: Group) -> None:
        self._watching = watching
        self._group = group

    def downtime(self, grows: bool, before_s: float, after_s: float) -> Downtime:
        """Run to the end. Return the downtime of partitions while the group grew or lost a member."""
        try:
            self._fill()
            self._watching.load(ROWS_PER_S, self._group.check)
            self._wait("copies", self._group.is_ready, READY_SECONDS, must=False)
            time.sleep(before_s)
            self._group.check()
            event = time.time()
            self._change_members(grows)
            time.sleep(max(0.0, event + after_s - time.time()))
            results = self._watching.results()
        finally:
            self._group.stop()
        return downtime_around(results, event, event + after_s)

    def _change_members(self, grows: bool) -> None:
        if not grows:
            self._group.kill()
        for _ in range(MEMBERS if grows else 0):
            self._group.add()

    def _fill(self) -> None:
        """Put every key once, and wait until the group has processed all of them."""
        keys = self._watching.work.keys
        self._watching.fill({"rows": keys, "order": "each"})
        self._group.start(MEMBERS)
        self._wait("rows", lambda: self._group.rows() >= keys, FILL_SECONDS)

    def _wait(self, description: str, condition: Callable[[], bool], seconds: float, must: bool = True) -> None:
        end = time.monotonic() + seconds
        while not condition():
            self._group.check()
            if time.monotonic() > end:
                rows = self._group.rows()
                text = f"{self._watching.work.name}: {description} not there after {seconds:g} s, {rows} rows"
                if must:
                    raise UnavailableError(text, remedy="take a smaller --state-mb, or look at the logs")
                print(f"  {text}; going on", file=sys.stderr, flush=True)
                return
            time.sleep(POLL_SECONDS)
