"""Runs one side of a case in a process of its own, on the Spark that the case needs. Knows environments and servers.
Does not know what is compared.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from apps.demo.servers import DiskS3Server
from benchmarks.kit.side import HERE, Code, in_process
from benchmarks.kit.streams import median
from benchmarks.processors.feeds import write
from benchmarks.processors.loads import LOADS
from benchmarks.processors.queries import run_riffle, run_spark

__all__ = ["NEW_SPARK", "NOT_PLAYED", "PINNED_SPARK", "Played", "Side", "play", "play_here"]

CHECKOUT = Path(__file__).resolve().parents[2]
NEW_SPARK = "4.3.0"
PINNED_SPARK = ""
"""Whatever Spark this process has."""
START_SECONDS = 120.0
SCALED = ("keys", "rows")


@dataclass(frozen=True, slots=True)
class Side:
    """A load on ``riffle``, ``before`` or ``spark``: its sizes, how many of its last batches are measured, on which
    Spark, and how long it may take.
    """

    load: str
    engine: str
    sizes: dict[str, int]
    measured: int
    spark_version: str = NEW_SPARK
    limit_s: float = 900.0

    def scaled(self, scale: float) -> Side:
        """Return it with so many times its keys and rows."""
        sizes = {name: round(size * scale) if name in SCALED else size for name, size in self.sizes.items()}
        return replace(self, sizes=sizes)


@dataclass(frozen=True, slots=True)
class Played:
    """What a side took: seconds of every batch, rows in the last one, and the largest Python worker."""

    seconds: list[float]
    rows: int
    worker_peak_mb: float
    measured: int

    def median_s(self, until: int | None = None) -> float:
        """Return the median of the last measured batches, or of the last before batch ``until``."""
        return median(self.seconds[:until][-self.measured :])

    @property
    def rows_per_s(self) -> float:
        """Rows of a batch over the median time."""
        return self.rows / self.median_s()


NOT_PLAYED = Played([math.nan], rows=0, worker_peak_mb=math.nan, measured=1)


def play(side: Side, code: Code = HERE) -> Played:
    """Run a side on a product in a process, with a folder and an S3 server of its own."""
    print(f"{side.load} on {side.engine}{code.revision and f' ({code.revision})'}, {side.sizes} ...", file=sys.stderr)
    python = _python(side.spark_version)
    with (
        tempfile.TemporaryDirectory(prefix="riffle-processor-", ignore_cleanup_errors=True) as base,
        DiskS3Server(Path(base) / "s3") as server,
    ):
        spec = asdict(side) | {"folder": f"{base}/side"}
        spec |= {"root": f"s3://{server.bucket}/state", "endpoint": server.endpoint}
        environment = {**_spark_environment(python), **server.environment}
        found = in_process("benchmarks.processor", spec, side.limit_s + START_SECONDS, environment, code, python)
    return Played(found["seconds"], found["rows"], found["worker_peak_mb"], side.measured)


def play_here(spec: dict[str, Any]) -> dict[str, Any]:
    """Run what a side's process was told; return its figures."""
    load, tables = LOADS[spec["load"]](spec["sizes"])
    folder = Path(spec["folder"])
    try:
        files = write(folder / "in", tables)
        return (run_spark if spec["engine"] == "spark" else run_riffle)(load, spec, files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _python(spark_version: str) -> str:
    """Return the Python that has that Spark, set up on first use."""
    if not spark_version:
        return sys.executable
    subprocess.run([CHECKOUT / "run", "setup", "--spark", spark_version], check=True, stdout=sys.stderr)
    return str(CHECKOUT / f".venv-{spark_version}" / "bin" / "python")


def _spark_environment(python: str) -> dict[str, str]:
    """Return what overrides the Spark that the caller's environment names."""
    told = subprocess.run(
        [python, "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {"SPARK_HOME": told.stdout.strip(), **dict.fromkeys(names, python)}
