"""Run the engines one after the other, on the same servers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from apps.demo.servers import Child, DiskS3Server, KafkaBroker, S3Server
from benchmarks.peers import flink, kafka_streams, ours
from benchmarks.peers.flink import FlinkGroup
from benchmarks.peers.kafka_streams import StreamsGroup
from benchmarks.peers.moves import Play, Watching
from benchmarks.peers.ours import RiffleGroup
from benchmarks.peers.programs import Programs
from benchmarks.peers.readings import StandStill, ages_ms
from benchmarks.peers.throughput import Rate, measured
from benchmarks.peers.work import Group, Work

__all__ = ["BACKENDS", "ENGINES", "OURS", "Ground"]

KEYS = 200_000
FILL_ROWS_PER_S = 1_300_000
"""For so fast a reader the filled topic lasts; a faster one has fewer intervals."""
LATENCY_ROWS_PER_S = 1_000
WARM_UP = 0.5
LATE_SECONDS = 5.0
"""For how long results of rows that count are waited for."""
PAYLOAD = 1000
FILL_BATCH_ROWS = 50_000
WATCHED = 1.8
"""For how many times the seconds results are watched after a member has died, or two have come."""
PROBING_SECONDS = {"kafka_streams": 62.0}
"""For how much longer they are watched where members come: Kafka Streams looks after warm-ups once a minute at most."""
OURS = {"riffle": 100_000, "riffle_million": 1_000_000}
"""Rows a batch of ours."""
BACKENDS = {"flink_rocksdb": "rocksdb", "flink_heap": "hashmap"}
ENGINES = (*OURS, *BACKENDS, "kafka_streams")


class Ground:
    """Where engines run one after the other: the programs, an S3 server, a broker; all in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = S3Server(folder / "s3")
        self.broker = KafkaBroker(folder / "broker")
        self._servers = ExitStack()
        self._works = 0

    @cached_property
    def programs(self) -> Programs:
        """The programs, made when they are first needed: ours runs where the others cannot be fetched."""
        return Programs(self.folder)

    def __enter__(self) -> Ground:
        with ExitStack() as stack:
            for server in (self.store, self.broker):
                stack.callback(server.stop)
                server.start()
            self.store.wait_until_ready()
            self.broker.wait_until_ready()
            self._servers = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.close()

    def fill(self, topic: str, seconds: float) -> int:
        """Fill a topic for throughput that is measured for so long, and return how many rows it has."""
        rows = int(seconds * FILL_ROWS_PER_S)
        work = Work(topic, self.folder, KEYS, bootstrap=self.broker.bootstrap, topic=topic)
        with ExitStack() as stack:
            Watching(self.programs, self.broker, work, stack).fill({"rows": rows})
        return rows

    @contextmanager
    def _work(self, engine: str, between: bool = False, **options: Any) -> Iterator[Work]:
        """Give what an engine is to do, under a name and in a folder of its own, which goes afterwards; logs stay.

        ``between`` two topics of its own, or as is said.
        """
        self._works += 1
        name = f"{engine}-{self._works}"
        topics = {"topic": f"{name}-in", "out": f"{name}-out"} if between else {}
        common = {"bootstrap": self.broker.bootstrap, "keys": KEYS, "batch_rows": OURS.get(engine, 0)}
        folder = self.folder / name
        try:
            yield Work(name, folder, **{**common, **topics, **options})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, engine: str, work: Work) -> Child:
        """Start an engine as one process."""
        if engine in OURS:
            return ours.alone(work, self.store)
        if engine in BACKENDS:
            return flink.alone(self.programs, BACKENDS[engine], work, self.store)
        return kafka_streams.alone(self.programs, work)

    def rate(self, engine: str, topic: str, seconds: float) -> tuple[Rate, dict[str, int]]:
        """Return how fast an engine is, and how many checkpoints it made meanwhile, if it says so."""
        counts: dict[str, int] = {}
        with self._work(engine, topic=topic) as work:
            rate = measured(self.start(engine, work), seconds, lambda: counts.update(flink.checkpoints(work.folder)))
        return rate, counts

    def latency(self, engine: str, seconds: float, guarantee: str = "") -> list[float]:
        """Return ages of results in milliseconds at a steady load, for so long once it runs steadily."""
        each_ms = 100 if engine == "kafka_streams" else 2000
        options: dict[str, Any] = {"each_ms": each_ms, "guarantee": guarantee}
        with self._work(engine, between=True, **options) as work, ExitStack() as stack:
            watching = Watching(self.programs, self.broker, work, stack)
            child = self.start(engine, work)
            stack.callback(child.stop)
            watching.load(LATENCY_ROWS_PER_S, child.check_alive)
            time.sleep(seconds * (1 + WARM_UP) + LATE_SECONDS)
            child.check_alive()
            results = watching.results()
        since = min(result.at for result in results) + seconds * WARM_UP
        return ages_ms(results, since, since + seconds)

    def stood(self, engine: str, case: str, state_mb: int, seconds: float) -> StandStill:
        """Return how long partitions of an engine stand still when a member dies, or when two come."""
        grows = case == "scale_out"
        standbys = int(case == "kill_standby")
        options: dict[str, Any] = {
            "each_ms": 1000,
            "trigger_ms": 1000,
            "payload": PAYLOAD,
            "standbys": standbys,
            "partitions": 8,
        }
        options |= {"keys": state_mb * 1_000_000 // PAYLOAD, "batch_rows": FILL_BATCH_ROWS}
        with self._work(engine, between=True, **options) as work, ExitStack() as stack:
            group = stack.enter_context(self._group(engine, work, grows))
            play = Play(Watching(self.programs, self.broker, work, stack), group)
            after = seconds * WATCHED + (PROBING_SECONDS.get(engine, 0.0) if grows else 0.0)
            return play.stood(grows, seconds / 2, after)

    @contextmanager
    def _group(self, engine: str, work: Work, grows: bool) -> Iterator[Group]:
        """Make a group, with a store for large state if it keeps some there."""
        with ExitStack() as stack:
            if engine == "kafka_streams":
                yield StreamsGroup(self.programs, work)
                return
            store = stack.enter_context(DiskS3Server(work.folder / "s3"))
            if engine in OURS:
                yield RiffleGroup(work, store)
            else:
                yield FlinkGroup(self.programs, work, store, grows)
