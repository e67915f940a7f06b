"""Run one side of a case in its own process, with the Spark version that the case needs."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apps.demo.servers import DiskS3Server
from benchmarks.kit import cases
from benchmarks.kit.side import HERE, Code, in_process
from benchmarks.processors.feeds import write
from benchmarks.processors.loads import LOADS
from benchmarks.processors.queries import run_riffle, run_spark

__all__ = ["NEW_SPARK", "NOT_PLAYED", "PINNED_SPARK", "Played", "Side", "play", "play_here"]

CHECKOUT = Path(__file__).resolve().parents[2]
NEW_SPARK = "4.3.0"
PINNED_SPARK = ""
"""The Spark of this process."""
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Side(cases.Side):
    """A load on ``riffle``, ``before`` or ``spark``, with a version of Spark and a time limit."""

    spark_version: str = NEW_SPARK
    limit_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Played(cases.Played):
    """The results of a side, with the peak memory of its largest Python worker."""

    worker_peak_mb: float


NOT_PLAYED = Played([math.nan], rows=0, measured=1, worker_peak_mb=math.nan)


def play(side: Side, code: Code = HERE) -> Played:
    """Run a side on a revision of the product in a process, with its own folder and S3 server."""
    print(f"{side.load} on {side.engine}{code.revision and f' ({code.revision})'}, {side.sizes} ...", file=sys.stderr)
    python = _python(side.spark_version)
    with (
        tempfile.TemporaryDirectory(prefix="riffle-processor-", ignore_cleanup_errors=True) as base,
        DiskS3Server(Path(base) / "s3") as server,
    ):
        spec = asdict(side) | {"folder": f"{base}/side"}
        spec |= {"root": f"s3://{server.bucket}/state", "endpoint": server.endpoint, "server_pids": server.pids}
        environment = {**_spark_environment(python), **server.environment}
        result = in_process("benchmarks.processor", spec, side.limit_s + START_SECONDS, environment, code, python)
    cpu = {name: result.get(name, math.nan) for name in ("cpu_ms", "server_cpu_ms")}
    return Played(result["seconds"], result["rows"], side.measured, result["worker_peak_mb"], **cpu)


def play_here(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the specified side in this process; return its figures."""
    load, tables = LOADS[spec["load"]](spec["sizes"])
    folder = Path(spec["folder"])
    try:
        files = write(folder / "in", tables)
        return (run_spark if spec["engine"] == "spark" else run_riffle)(load, spec, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _python(spark_version: str) -> str:
    """Return the Python of an environment with this Spark, which is set up on first use."""
    if not spark_version:
        return sys.executable
    subprocess.run([CHECKOUT / "run", "setup", "--spark", spark_version], check=True, stdout=sys.stderr)
    return str(CHECKOUT / f".venv-{spark_version}" / "bin" / "python")


def _spark_environment(python: str) -> dict[str, str]:
    """Return environment variables that override the Spark of the caller's environment."""
    result = subprocess.run(
        [python, "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {"SPARK_HOME": result.stdout.strip(), **dict.fromkeys(names, python)}
