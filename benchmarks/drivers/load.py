"""Run batches on a real driver, log, ownership and upkeep, with simulated executors and a simulated clock."""

from __future__ import annotations

import gc
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from benchmarks.drivers.executors import CpuMeter, SimulatedExecutors, SimulatedWork
from benchmarks.kit.incoming import incoming_batch
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.operator import operator_of
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.paths import LOG
from riffle_spark.state.log.record import Record, decode, encode
from riffle_spark.state.objects.open import open_store
from riffle_spark.testing import InlineBackground, ManualClock, home_of

__all__ = ["DriverLoad", "Measured", "code_ms", "rss_mb"]

STORE = "totals"
INPUT = pa.schema([("key", pa.string()), ("amount", pa.int64())])
BATCH_SECONDS = 1.0


@dataclass
class Measured:
    """Figures of the measured batches, one value per batch.

    ``cpu_s``: the CPU of the driver, also between batches. ``commit_s``: the time from the sink's end to the committed
    record.
    """

    cpu_s: list[float] = field(default_factory=list)
    commit_s: list[float] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    received_bytes: list[int] = field(default_factory=list)
    record_bytes: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return the mean CPU per batch (full records and snapshots are in some batches only), and other figures."""
        return {
            "cpu_ms": 1000 * statistics.mean(self.cpu_s),
            "cpu_median_ms": 1000 * statistics.median(self.cpu_s),
            "commit_ms": 1000 * statistics.median(self.commit_s),
            "sent_bytes": statistics.mean(self.sent_bytes),
            "received_bytes": statistics.mean(self.received_bytes),
            "record_bytes": statistics.mean(self.record_bytes),
        }


class DriverLoad:
    """A driver with simulated executors. Every batch changes all key-groups.

    ``root`` is the root of its log. It is empty for a log in this process's memory.
    """

    def __init__(self, executors: int, key_groups: int, *, root: str = "", **settings: object) -> None:
        self.meter = CpuMeter()
        self.root = root or f"memory://{uuid.uuid4().hex}"
        self.executors = SimulatedExecutors(executors, self.meter)
        self.objects = open_store(self.root)
        self._clock = ManualClock()
        self._background = InlineBackground(deferred=True)
        self._operator = operator_of(STORE, ["key"], aggregate(rows=count(), total=sum_("amount")), (), INPUT)
        self._work = SimulatedWork(self.executors)
        self._ids = 0
        self._step_s: dict[str, float] = {}
        ports = DriverPorts(
            self.objects, self.executors, self._clock, self._background, new_id=self._new_id, reached=self._reached
        )
        home = home_of(self.root, Path("unused"))
        self._driver = Driver(Settings(key_groups=key_groups, **settings), home, ports)  # type: ignore[arg-type]
        self._version = -1

    def run(self, batches: int) -> Measured:
        """Run batches of one second each, each followed by the upkeep that it ordered; return their figures."""
        measured = Measured()
        for _ in range(batches):
            self._version += 1
            self._clock.advance(BATCH_SECONDS)
            messages = self.executors.messages
            sent_before = messages.sent
            received = messages.received
            started_s = self.meter.seconds()
            self._driver.process(incoming_batch(self._version, self._clock.wall_ms()), [self._operator], self._work)
            self._background.run()
            measured.cpu_s.append(self.meter.seconds() - started_s)
            measured.commit_s.append(self._step_s["after record"] - self._step_s["after sink"])
            measured.sent_bytes.append(messages.sent - sent_before)
            measured.received_bytes.append(messages.received - received)
        records = self.objects.list(LOG)[-batches:]
        measured.record_bytes = [len(self.objects.get(name) or b"") for name in records]
        return measured

    def newest_record(self) -> Record:
        """Return the newest record with the entries that it has itself: all entries if it is full."""
        newest = Log(self.objects, self.root).open()
        assert newest is not None
        return newest

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def _reached(self, step: str) -> None:
        self._step_s[step] = self.meter.seconds()


def code_ms(record: Record, repeats: int) -> tuple[float, float]:
    """Return the CPU milliseconds to encode and to decode a record, the medians of ``repeats`` calls."""
    data = encode(record)
    return _median_ms(lambda: encode(record), repeats), _median_ms(lambda: decode(data, ""), repeats)


def _median_ms(call: Callable[[], object], repeats: int) -> float:
    meter = CpuMeter()
    times: list[float] = []
    for _ in range(repeats):
        started_s = meter.seconds()
        call()
        times.append(meter.seconds() - started_s)
    return 1000 * statistics.median(times)


def rss_mb() -> float:
    """Return the resident memory of this process, after a collection of garbage."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024
