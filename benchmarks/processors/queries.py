"""Run a query with a processor, with riffle_spark or with Spark's own operator, and measure its batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark as riffle
from apps.demo.servers.guard import descendants
from benchmarks.kit.cpu import BatchCpu
from benchmarks.kit.streams import peak_kb, session, wait_for_rows
from riffle_spark import StatefulProcessor

__all__ = ["Load", "run_riffle", "run_spark"]


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a side: a processor in a form (``rows`` or ``pandas``), over files with a schema."""

    processor: StatefulProcessor
    schema: str
    form: str = "rows"
    time_mode: str = "None"
    watermark: tuple[str, str] | None = None

    def stream(self, folder: Path, **conf: str) -> DataFrame:
        """Return the stream of the files, one file per batch, in a session that is started with ``conf``."""
        rows = session(**conf).readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return rows.parquet(str(folder))


OUTPUT = "key long, count long"


def run_riffle(load: Load, spec: dict[str, Any], files: int) -> dict[str, Any]:
    """Run a load with riffle, with state in the S3 server. Return the seconds of each batch, and the memory."""
    folder = Path(spec["folder"])
    stream = load.stream(folder / "in", **{"spark.scheduler.mode": "FAIR"})
    settings = riffle.Settings(
        root=spec["root"], s3_endpoint=spec["endpoint"], s3_region="us-east-1", local_dir=str(folder / "copies")
    )
    make: Callable[..., riffle.Stateful] = (
        riffle.transform_with_state if load.form == "rows" else riffle.transform_with_state_in_pandas
    )
    operator = make(
        load.processor,
        key="key",
        output=OUTPUT,
        output_mode="update",
        time_mode=load.time_mode,
        watermark=load.watermark,
        store="measured",
        settings=settings,
    )
    job = operator.into(lambda rows, _: rows.write.format("noop").mode("append").save())
    result = _measured(stream.writeStream.foreachBatch(job), spec, files)
    reports = [report for report in job.reports if report.decision == "run"][-spec["measured"] :]
    result["sealed_bytes"] = sorted(report.sealed_bytes for report in reports)[len(reports) // 2]
    return result


def run_spark(load: Load, spec: dict[str, Any], files: int) -> dict[str, Any]:
    """Run a load with Spark's own operator, with state in a checkpoint on the local disk."""
    stream = load.stream(Path(spec["folder"]) / "in")
    if load.watermark is not None:
        stream = stream.withWatermark(*load.watermark)
    grouped: Any = stream.groupBy("key")  # the checked version of PySpark has no transformWithState
    transform = grouped.transformWithState if load.form == "rows" else grouped.transformWithStateInPandas
    result = transform(load.processor, OUTPUT, "update", load.time_mode)
    return _measured(result.writeStream.outputMode("update").format("noop"), spec, files)


def _measured(writer: DataStreamWriter, spec: dict[str, Any], files: int) -> dict[str, Any]:
    """Run the query over all files. Return the time from trigger to trigger of each batch with rows."""
    cpu = BatchCpu(files - spec["measured"], spec["server_pids"])
    query = writer.option("checkpointLocation", f"{spec['folder']}/checkpoint").start()
    try:
        progress = wait_for_rows(query, files, spec["limit_s"], cpu)
        return {
            **cpu.figures(),
            "seconds": [entry["durationMs"]["triggerExecution"] / 1000 for entry in progress],
            "rows": progress[-1]["numInputRows"],
            "worker_peak_mb": _worker_peak_mb(),
        }
    finally:
        query.stop()


def _worker_peak_mb() -> float:
    """Return the largest peak resident size of a Python worker below this process."""
    return max((peak_kb(pid) for pid in descendants(os.getpid()) if _is_worker(pid)), default=0) / 1024


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"pyspark.daemon" in words or b"pyspark.worker" in words
