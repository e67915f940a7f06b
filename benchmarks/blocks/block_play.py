"""Run one side of a block in its own process: Spark's own operators, the wrapped query, or ``Stateful``."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

import riffle_spark as riffle
from apps.demo.servers import DiskS3Server
from benchmarks.blocks.block_feeds import write
from benchmarks.blocks.block_queries import BLOCKS, Block
from benchmarks.kit import cases
from benchmarks.kit.cpu import BatchCpu
from benchmarks.kit.side import HERE, Code, in_process
from benchmarks.kit.streams import HEAP, median, session, wait_for_rows

__all__ = ["NOT_PLAYED", "Played", "Side", "play", "play_here"]

START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Side(cases.Side):
    """A block on an engine, and its time limit.

    Engines: ``riffle`` wraps the query's frames, ``before`` does so on another revision, ``spark`` does not,
    ``spark_heap`` does not and has Spark's default store, and ``stateful`` is the running count as
    ``riffle_spark.Stateful``.
    """

    closes: bool = True
    """Whether rows leave the state in every measured batch."""
    limit_s: float = 1200.0


@dataclass(frozen=True, slots=True)
class Played(cases.Played):
    """The measured times of a side, and the number of rows that left the state in each batch."""

    removed: list[int]

    @property
    def closing_s(self) -> float:
        """Return the seconds per row that leaves the state.

        It is the difference between batches with such rows and batches without them.
        """
        removals = list(zip(self.seconds[-self.measured :], self.removed[-self.measured :], strict=True))
        with_some = [seconds for seconds, removed in removals if removed]
        without = [seconds for seconds, removed in removals if not removed]
        if not with_some or not without:
            return math.nan
        return (median(with_some) - median(without)) / median(removed for _, removed in removals if removed)


NOT_PLAYED = Played([math.nan], rows=0, measured=1, removed=[0])


def play(side: Side, code: Code = HERE) -> Played:
    """Run a side on a revision of the product in a process, with its own folder and S3 server."""
    print(f"{side.load} on {side.engine}{code.revision and f' ({code.revision})'}, {side.sizes} ...", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="riffle-blocks-", ignore_cleanup_errors=True) as base,
        DiskS3Server(Path(base) / "s3") as server,
    ):
        spec = asdict(side) | {"folder": f"{base}/side"}
        spec |= {"root": f"s3://{server.bucket}/state", "endpoint": server.endpoint, "server_pids": server.pids}
        result = in_process("benchmarks.blocks", spec, side.limit_s + START_SECONDS, server.environment, code)
    cpu = {name: result.get(name, math.nan) for name in ("cpu_ms", "server_cpu_ms")}
    return Played(result["seconds"], result["rows"], side.measured, result["removed"], **cpu)


def play_here(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Run the specified side in this process; return its figures."""
    block = BLOCKS[spec["load"]]
    folder = Path(spec["folder"])
    try:
        files = write(folder / "in", block.feed(spec["sizes"]))
        query = _stateful(block, spec) if spec["engine"] == "stateful" else _written(block, spec)
        return _measured(query, spec, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _streams(block: Block, spec: Mapping[str, Any], **conf: str) -> dict[str, DataFrame]:
    """Return the streams of the files, one file per batch, in a session that is started with ``conf``."""
    reader = session(**conf).readStream.schema(block.schema).option("maxFilesPerTrigger", 1)
    return {stream: reader.parquet(f"{spec['folder']}/in/{stream}") for stream in block.streams}


def _settings(spec: Mapping[str, Any]) -> riffle.Settings:
    return riffle.Settings(
        root=spec["root"],
        s3_endpoint=spec["endpoint"],
        s3_region="us-east-1",
        local_dir=f"{spec['folder']}/copies",
    )


def _written(block: Block, spec: Mapping[str, Any]) -> StreamingQuery:
    """Start the query on Spark's own frames or on wrapped ones. The sink reads all rows and discards them."""
    if spec["engine"] in ("spark", "spark_heap"):
        streams = _streams(block, spec, **(HEAP if spec["engine"] == "spark_heap" else {}))
    else:
        settings = _settings(spec)
        streams = {
            name: riffle.on(stream, settings=settings)
            for name, stream in _streams(block, spec, **{"spark.scheduler.mode": "FAIR"}).items()
        }
    writer = block.build(streams).writeStream.outputMode(block.mode).format("noop")
    return writer.option("checkpointLocation", f"{spec['folder']}/checkpoint").start()


def _stateful(block: Block, spec: Mapping[str, Any]) -> StreamingQuery:
    """Start the running count as an operator in ``foreachBatch``."""
    (stream,) = _streams(block, spec, **{"spark.scheduler.mode": "FAIR"}).values()
    operator = riffle.Stateful("measured", "key", riffle.aggregate(rows=riffle.count()), settings=_settings(spec))
    job = operator.into(lambda rows, _: rows.write.format("noop").mode("append").save())
    writer = stream.writeStream.foreachBatch(job)
    return writer.option("checkpointLocation", f"{spec['folder']}/checkpoint").start()


def _measured(query: StreamingQuery, spec: Mapping[str, Any], files: int) -> dict[str, Any]:
    """Wait for all files, and return the time from trigger to trigger of each batch with rows."""
    cpu = BatchCpu(files - spec["measured"], spec["server_pids"])
    try:
        progress = wait_for_rows(query, files, spec["limit_s"], cpu)
        removed = [sum(operator["numRowsRemoved"] for operator in entry["stateOperators"]) for entry in progress]
        if spec["closes"] and spec["engine"] != "stateful" and not all(removed[-spec["measured"] :]):
            raise RuntimeError(f"rows left the state in {removed}, not in each of the last {spec['measured']} batches")
        return {
            **cpu.figures(),
            "seconds": [entry["durationMs"]["triggerExecution"] / 1000 for entry in progress],
            "removed": removed,
            "rows": progress[-1]["numInputRows"],
        }
    finally:
        query.stop()
