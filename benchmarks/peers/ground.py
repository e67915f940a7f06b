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
from benchmarks.peers.moves import Play, WatchedTopics
from benchmarks.peers.ours import RiffleGroup
from benchmarks.peers.programs import Programs
from benchmarks.peers.readings import Downtime, ages_ms
from benchmarks.peers.throughput import Rate, measured
from benchmarks.peers.work import Group, Work

__all__ = ["BACKENDS", "ENGINES", "OURS", "Ground"]

KEYS = 200_000
FILL_ROWS_PER_S = 1_300_000
"""The rate for which the filled topic suffices. A faster reader has fewer intervals."""
LATENCY_ROWS_PER_S = 1_000
WARM_UP = 0.5
LATE_SECONDS = 5.0
"""The seconds to wait for late results of counted rows."""
PAYLOAD = 1000
FILL_BATCH_ROWS = 50_000
WATCHED = 1.8
"""Results are watched for this multiple of the seconds after a member has died or two have joined."""
PROBING_SECONDS = {"kafka_streams": 62.0}
"""Additional seconds after members have joined. Kafka Streams checks its warm-ups at most once a minute."""
OURS = {"riffle": 100_000, "riffle_million": 1_000_000}
"""The rows per batch of riffle_spark."""
BACKENDS = {"flink_rocksdb": "rocksdb", "flink_heap": "hashmap"}
ENGINES = (*OURS, *BACKENDS, "kafka_streams")


class Ground:
    """The servers and programs on which the engines run one after the other. All files are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = S3Server(folder / "s3")
        self.broker = KafkaBroker(folder / "broker")
        self._servers = ExitStack()
        self._works = 0

    @cached_property
    def programs(self) -> Programs:
        """The Java programs, compiled on first use. riffle_spark runs even if the others cannot be fetched."""
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
        """Fill a topic for a measurement of ``seconds``, and return the number of its rows."""
        rows = int(seconds * FILL_ROWS_PER_S)
        work = Work(topic, self.folder, KEYS, bootstrap=self.broker.bootstrap, topic=topic)
        with ExitStack() as stack:
            WatchedTopics(self.programs, self.broker, work, stack).fill({"rows": rows})
        return rows

    @contextmanager
    def _work(self, engine: str, between: bool = False, **options: Any) -> Iterator[Work]:
        """Yield the work of an engine, with its own name and folder. The folder is removed after the block, the logs
        are not.

        With ``between`` the work reads from one new topic and writes to another.
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
        """Return the rate of an engine, and its numbers of checkpoints, if it reports them."""
        counts: dict[str, int] = {}
        with self._work(engine, topic=topic) as work:
            rate = measured(self.start(engine, work), seconds, lambda: counts.update(flink.checkpoints(work.folder)))
        return rate, counts

    def latency(self, engine: str, seconds: float, guarantee: str = "") -> list[float]:
        """Return the ages of results in milliseconds at a steady load. They are measured for ``seconds`` after a
        warm-up.
        """
        each_ms = 100 if engine == "kafka_streams" else 2000
        options: dict[str, Any] = {"each_ms": each_ms, "guarantee": guarantee}
        with self._work(engine, between=True, **options) as work, ExitStack() as stack:
            watching = WatchedTopics(self.programs, self.broker, work, stack)
            child = self.start(engine, work)
            stack.callback(child.stop)
            watching.load(LATENCY_ROWS_PER_S, child.check_alive)
            time.sleep(seconds * (1 + WARM_UP) + LATE_SECONDS)
            child.check_alive()
            results = watching.results()
        since = min(result.at for result in results) + seconds * WARM_UP
        return ages_ms(results, since, since + seconds)

    def downtime(self, engine: str, case: str, state_mb: int, seconds: float) -> Downtime:
        """Return the downtime of an engine's partitions when a member dies or two join."""
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
            play = Play(WatchedTopics(self.programs, self.broker, work, stack), group)
            after = seconds * WATCHED + (PROBING_SECONDS.get(engine, 0.0) if grows else 0.0)
            return play.downtime(grows, seconds / 2, after)

    @contextmanager
    def _group(self, engine: str, work: Work, grows: bool) -> Iterator[Group]:
        """Yield a new group, with a store for large state if the engine uses one."""
        with ExitStack() as stack:
            if engine == "kafka_streams":
                yield StreamsGroup(self.programs, work)
                return
            store = stack.enter_context(DiskS3Server(work.folder / "s3"))
            if engine in OURS:
                yield RiffleGroup(work, store)
            else:
                yield FlinkGroup(self.programs, work, store, grows)
