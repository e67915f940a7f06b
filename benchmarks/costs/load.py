"""Run batches with the real driver, slots and upkeep in one process, and count what they write."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.costs.counting_store import CountingStore
from benchmarks.costs.figures import MeasuredBatches, Space
from benchmarks.kit.incoming import incoming_batch
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.operator import operator_of
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.testing import InlineBackground, ManualClock, SimCluster, SimSink, SimWork, home_of

__all__ = ["PATTERNS", "ROW_BYTES", "CostLoad", "KeyPattern"]

STORE = "rows"
COPIES = 2
"""One owner and one standby of each key-group, on two executors of one core."""
PAYLOAD_BYTES = 92
ROW_BYTES = 8 + PAYLOAD_BYTES
"""Bytes of a key and its value. The value is random, so that no codec makes it smaller."""
BATCH_SECONDS = 37.0
"""The time between two batches. It is less than ``SURE_SECONDS``, and 100 batches take more than the hour of
``retained_for``.
"""
SPACE_BATCHES = 16
"""Space is measured after each of these batches, because two deletes are at most this number of records apart."""
SEED = 11
INPUT = pa.schema([("key", pa.int64()), ("payload", pa.binary(PAYLOAD_BYTES))])


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The keys that a batch changes: the same ones in each (``hot``), or drawn ``uniform`` or by ``zipf``."""

    name: str
    keys: int
    changed: int

    def draw(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the distinct keys of each batch, without end."""
        chance = np.random.default_rng(SEED)
        ranks = 1.0 / np.arange(1, self.keys + 1)
        weights = chance.permutation(ranks / ranks.sum())
        hot = chance.choice(self.keys, self.changed, replace=False)
        while True:
            if self.name == "hot":
                yield hot
            else:
                yield chance.choice(self.keys, self.changed, replace=False, p=weights if self.name == "zipf" else None)


PATTERNS = ("uniform", "hot", "zipf")


def replaced(rows: pa.Table, _: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return no output, and the rows as the new state of their keys."""
    return rows.slice(0, 0), rows


class CostLoad:
    """A query whose batches replace the values of some keys."""

    def __init__(self, folder: Path, key_groups: int) -> None:
        self._local_dir = folder
        self.objects = CountingStore()
        chance = random.Random(SEED)  # noqa: S311 - the same names each time
        home = home_of("memory://costs", folder)
        self._cluster = SimCluster(home, self.objects, chance.randbytes)
        for number in range(COPIES):
            self._cluster.add(str(number))
        self._clock = ManualClock()
        self._background = InlineBackground(deferred=True)
        value = pa.schema([INPUT.field("payload")])
        self._operator = operator_of(STORE, ["key"], arrow_function(replaced, state=value, output=INPUT), (), INPUT)
        ports = DriverPorts(
            self.objects, self._cluster, self._clock, self._background, new_id=lambda: chance.randbytes(16).hex()
        )
        self.settings = Settings(key_groups=key_groups, num_standbys=COPIES - 1)
        self._driver = Driver(self.settings, home, ports)
        self._values = np.random.default_rng(SEED)
        self._version = -1

    def batch(self, keys: npt.NDArray[np.int64]) -> None:
        """Replace the values of these keys, and run the upkeep that the driver orders."""
        self._version += 1
        self._clock.advance(BATCH_SECONDS)
        values = pa.FixedSizeBinaryArray.from_buffers(
            INPUT.field("payload").type, len(keys), [None, pa.py_buffer(self._values.bytes(PAYLOAD_BYTES * len(keys)))]
        )
        rows = pa.table([pa.array(keys), values], schema=INPUT)
        work = SimWork(self._cluster, rows, [self._operator], {STORE: SimSink()})
        incoming = incoming_batch(self._version, self._clock.wall_ms())
        self._driver.process(incoming, [self._operator], work)
        self._background.run()

    def measure(self, pattern: KeyPattern, warm_up: int, batches: int) -> tuple[MeasuredBatches, list[Space]]:
        """Fill the state with all keys, run the batches to warm up, and count what the next ``batches`` write.

        Return that, and the space after each of ``SPACE_BATCHES`` more.
        """
        self.batch(np.arange(pattern.keys))
        draws = pattern.draw()
        for _ in range(warm_up):
            self.batch(next(draws))
        put_before = Counter(self.objects.put_bytes)
        requests_before = Counter(self.objects.requests)
        read_before = self.objects.read_bytes
        local_before = written_bytes()
        for _ in range(batches):
            self.batch(next(draws))
        measured = MeasuredBatches(
            batches,
            batches * pattern.changed * ROW_BYTES,
            self.objects.put_bytes - put_before,
            self.objects.read_bytes - read_before,
            written_bytes() - local_before,
            Counter(self.objects.requests) - requests_before,
            COPIES,
        )
        return measured, [self._space_after(next(draws), pattern.keys) for _ in range(SPACE_BATCHES)]

    def _space_after(self, changed: npt.NDArray[np.int64], keys: int) -> Space:
        """Return the space after one more batch."""
        self.batch(changed)
        return self._space(keys)

    def _space(self, keys: int) -> Space:
        log = Log(self.objects, "memory://costs")
        newest = log.open()
        assert newest is not None
        first = max(newest.sequence - self.settings.retained_versions + 1, log.first)
        retained = [log.read(sequence) for sequence in range(first, newest.sequence)]
        listed_by_newest = log.manifest.object_names()
        listed = set().union(*log.listed_objects(retained, log.first)) - listed_by_newest
        files = (path.stat() for path in self._local_dir.rglob("*") if path.is_file())
        return Space(
            live_bytes=keys * ROW_BYTES,
            stored_bytes=sum(self.objects.sizes.values()),
            retained_bytes=self.objects.bytes_of(listed),
            disk_bytes=sum({status.st_ino: status.st_size for status in files}.values()),
            copies=COPIES,
        )


def written_bytes() -> int:
    """Return the bytes that this process has passed to ``write``, which are those of its files."""
    fields: Mapping[str, str] = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


@contextmanager
def load_of(key_groups: int) -> Iterator[CostLoad]:
    """Yield a load whose local copies are in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="riffle-bench-"))
    try:
        yield CostLoad(folder, key_groups)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
