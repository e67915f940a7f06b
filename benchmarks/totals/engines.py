"""Running totals on riffle and on Spark's operators, each in its own process.

Spark's aggregation runs on both of its stores. riffle also runs with encryption, with many key-groups, in a session of
``riffle_spark.configure``, and without upkeep.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark as riffle
from benchmarks.kit.cpu import BatchCpu
from benchmarks.kit.streams import HEAP, measure, median, session, source
from riffle_spark.messages.upkeep_orders import UpkeepOrder
from riffle_spark.protocol.upkeep.rounds import Rounds

__all__ = ["ENGINES", "Spec", "play_here"]

SECONDS = 1500.0
SMALL_ROWS = 100
MANY_GROUPS = 1_024
SETTLED = 3
"""The number of batches without upkeep work after which a query is settled."""
Spec = dict[str, Any]
"""The specification of one side: ``engine``, ``rows`` per batch, ``keys``, measured ``batches``, earlier ``warm_up``
batches, ``filled`` (rows per batch to fill the state with all keys first; 0 for none), ``folder``, the state's ``root``
at ``endpoint``, and ``server_pids``, the processes of this server.
"""


def play_here(spec: Spec) -> dict[str, Any]:
    """Run the specified side in this process; return its figures."""
    folder = Path(spec["folder"])
    folder.mkdir(parents=True)
    return ENGINES[spec["engine"]](spec, folder)


class _Ours:
    """Stateful aggregation with riffle and state in S3. The query may continue with batches of other sizes."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        configured = [partial(riffle.configure, kafka=False)] if spec["engine"] == "configured" else []
        self._spark = session("local[2]", *configured, **{"spark.scheduler.mode": "FAIR"})
        self._spec = spec
        self._folder = folder
        self._settings = riffle.Settings(
            root=spec["root"], s3_endpoint=spec["endpoint"], s3_region="us-east-1", local_dir=str(folder)
        )
        if spec["engine"] == "encrypted":
            self._settings = self._settings.but(encryption_keys=f"file:{_keys(folder)}")
        if spec["engine"] == "many_groups":
            self._settings = self._settings.but(key_groups=MANY_GROUPS)
        if spec["engine"] == "without_upkeep":
            Rounds.submit = _submit_nothing  # type: ignore[assignment,method-assign]

    def _job(self) -> riffle.StatefulJob:
        compute = riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount"))
        return riffle.Stateful("totals", key="key", compute=compute, settings=self._settings).into(
            lambda rows, _: rows.write.format("noop").mode("append").save()
        )

    def fill(self) -> int:
        """Feed every key once. Return the number of changed keys."""
        rows = self._spec["filled"]
        keys = self._spec["keys"]
        job = self._job()
        measure(self._writer(job, rows), self._folder / "checkpoint", keys // rows, SECONDS)
        return sum(report.keys for report in _ran(job)[: keys // rows])

    def settle(self) -> None:
        """Run small batches with pauses, until upkeep has finished the work that filling the state has caused."""
        job = self._job()
        query = self._writer(job, SMALL_ROWS).trigger(processingTime="1 second")
        running = query.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        deadline = time.monotonic() + SECONDS
        while running.isActive and time.monotonic() < deadline and not _is_settled(_ran(job)):
            time.sleep(1)
        running.stop()

    def steady(self, cpu: BatchCpu) -> tuple[list[float], Sequence[Any]]:
        """Return the seconds of the measured batches, and their reports."""
        job = self._job()
        warm_up = self._spec["warm_up"]
        writer = self._writer(job, self._spec["rows"])
        batches = warm_up + self._spec["batches"]
        seconds = measure(writer, self._folder / "checkpoint", batches, SECONDS, cpu)[warm_up:]
        return seconds, _ran(job)[warm_up:][: len(seconds)]

    def _writer(self, job: riffle.StatefulJob, rows: int) -> DataStreamWriter:
        named_first = self._spec["keys"] if self._spec["filled"] else 0
        return source(self._spark, rows, self._spec["keys"], named_first).writeStream.foreachBatch(job)


def _submit_nothing(rounds: Rounds, orders: Mapping[str, UpkeepOrder], bandwidth: int) -> None:
    """Ignore a plan of upkeep: no snapshot is taken, and no deltas are merged in the store."""


def _keys(folder: Path) -> Path:
    """Write one key into a file of a side's folder."""
    path = folder / "keys"
    path.write_text(f"bench = {base64.b64encode(os.urandom(32)).decode()}\n")
    return path


def _ran(job: riffle.StatefulJob) -> list[Any]:
    return [report for report in job.reports if report.decision == "run"]


def _is_settled(reports: Sequence[Any]) -> bool:
    """Return whether upkeep has no more work.

    The first two batches are ignored: the first orders due work, and the second may report some of it.
    """
    last = reports[2:][-SETTLED:]
    return len(last) == SETTLED and not any(report.snapshots or report.upkeep_requests for report in last)


def ours(spec: Spec, folder: Path) -> dict[str, Any]:
    """Run riffle. Return the seconds of each batch, and figures from the reports of these batches."""
    query = _Ours(spec, folder)
    keys_held = 0
    if spec["filled"]:
        keys_held = query.fill()
        query.settle()
    cpu = _cpu(spec)
    seconds, reports = query.steady(cpu)
    return {
        **cpu.figures(),
        "seconds": seconds,
        "versions": [report.version for report in reports],
        "keys_held": keys_held,
        "snapshots": sum(report.snapshots for report in reports),
        "requests": median(sum(report.requests.values()) for report in reports),
        "upkeep_requests": sum(sum(report.upkeep_requests.values()) for report in reports) / len(reports),
        "sealed_bytes": median(report.sealed_bytes for report in reports),
        "phases": {name: median(r.seconds.get(name, 0.0) for r in reports) for name in reports[0].seconds},
        "slots": {name: median(r.slot_seconds.get(name, 0.0) for r in reports) for name in reports[0].slot_seconds},
    }


def builtin(spec: Spec, folder: Path, **conf: str) -> dict[str, Any]:
    """Run Spark's own streaming aggregation on RocksDB with changelog checkpointing."""
    stream = source(session(**conf), spec["rows"], spec["keys"]).groupBy("key").agg({"*": "count", "amount": "sum"})
    return _theirs(spec, folder, stream.writeStream.outputMode("update").format("noop"))


def builtin_heap(spec: Spec, folder: Path) -> dict[str, Any]:
    """Run Spark's own aggregation on its default store, ``HDFSBackedStateStoreProvider``."""
    return builtin(spec, folder, **HEAP)


def stateless(spec: Spec, folder: Path) -> dict[str, Any]:
    """Aggregate each batch by itself in Spark, without state. This is the minimal time of Spark's part of a batch."""

    def run(batch: DataFrame, _: int) -> None:
        totals = batch.groupBy("key").agg({"*": "count", "amount": "sum"})
        totals.write.format("noop").mode("append").save()

    stream = source(session(), spec["rows"], spec["keys"])
    return _theirs(spec, folder, stream.writeStream.foreachBatch(run))


def apply_in_pandas(spec: Spec, folder: Path, **conf: str) -> dict[str, Any]:
    """Run the totals with ``applyInPandasWithState``."""
    import pandas as pd

    def totals(key: tuple[int], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        count, total = state.get if state.exists else (0, 0)
        for frame in frames:
            count = count + len(frame)
            total = total + int(frame["amount"].sum())
        state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "total": [total]})

    grouped = source(session(**conf), spec["rows"], spec["keys"]).groupBy("key")
    stream = grouped.applyInPandasWithState(
        totals, "key long, count long, total long", "count long, total long", "update", "NoTimeout"
    )
    return _theirs(spec, folder, stream.writeStream.outputMode("update").format("noop"))


def apply_in_pandas_heap(spec: Spec, folder: Path) -> dict[str, Any]:
    """Run the totals with ``applyInPandasWithState`` on Spark's default store."""
    return apply_in_pandas(spec, folder, **HEAP)


def transform_with_state(spec: Spec, folder: Path) -> dict[str, Any]:
    """Run the totals with ``transformWithStateInPandas``, for which Spark requires RocksDB."""
    from benchmarks.kit.pandas_totals import PandasTotals

    grouped = source(session(), spec["rows"], spec["keys"]).groupBy("key")
    stream = grouped.transformWithStateInPandas(
        PandasTotals(), "key long, count long, total long", outputMode="update", timeMode="none"
    )
    return _theirs(spec, folder, stream.writeStream.outputMode("update").format("noop"))


def _theirs(spec: Spec, folder: Path, writer: DataStreamWriter) -> dict[str, Any]:
    batches = spec["warm_up"] + spec["batches"]
    cpu = _cpu(spec)
    seconds = measure(writer, folder / "checkpoint", batches, SECONDS, cpu)[spec["warm_up"] :]
    return {**cpu.figures(), "seconds": seconds}


def _cpu(spec: Spec) -> BatchCpu:
    return BatchCpu(spec["warm_up"], spec["server_pids"])


ENGINES: dict[str, Callable[[Spec, Path], dict[str, Any]]] = {
    "ours": ours,
    "before": ours,
    "configured": ours,
    "encrypted": ours,
    "many_groups": ours,
    "without_upkeep": ours,
    "builtin": builtin,
    "builtin_heap": builtin_heap,
    "stateless": stateless,
    "apply_in_pandas": apply_in_pandas,
    "apply_in_pandas_heap": apply_in_pandas_heap,
    "transform_with_state": transform_with_state,
}
