"""Measure the cost of observing a query: the CPU time of batches with all exports and without, in interleaved pairs.

./run bench exports [--pairs 20] [--warm 60] [--rows 100,100000] [--json]

Two drivers run the same query with equal input in turn. The first exports nothing: it writes no status and no page,
reads no requests, and adds nothing to Spark's own progress. The second adds its state operators to Spark's progress and
its totals to Spark's metrics system, writes ``report_file``, the status object and the page, sends metrics and traces
by OTLP to a receiver on this machine, and listens to requests from outside. The figure of a batch is the CPU time of
the driver's whole process tree.

The exit code is 1 if the whole 95 % interval of a ratio is above 1.03.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from pyspark.sql import functions as F

import riffle_spark as riffle
from benchmarks.blocks import block_feeds as feeds
from benchmarks.kit.side import HERE
from benchmarks.kit.streams import session
from benchmarks.pairs import SLOWER_ALLOWED, SideProcess, ratio_of, run_pairs
from riffle_spark.spark import job
from riffle_spark.spark.engine.spark_progress import SparkProgress

PAIRS = 20
WARM_BATCHES = 60
KEYS = 50_000
SCHEMA = "key long, amount long"


def exports_on(folder: Path, receiver: str) -> dict[str, object]:
    """Return the settings of the driver that exports everything. ``receiver`` is the URL of the OTLP receiver."""
    return {
        "report_file": f"{folder}/reports.jsonl",
        "otlp_endpoint": receiver,
        "status_page": True,
        "control": "on",
    }


def export_nothing() -> None:
    """Disable all exports of this process's queries, also those without a setting."""
    SparkProgress.add = lambda *_: None  # type: ignore[method-assign]
    setattr(job, "exporters_of", lambda *_: [])  # noqa: B010 - private to the module


def run_side(folder: Path, receiver: str) -> None:
    """Run a query on the files that move to ``folder``/in, one batch per line of the standard input."""
    if not receiver:
        export_nothing()
    exports = exports_on(folder, receiver) if receiver else {}
    (folder / "in").mkdir(parents=True)
    reader = session(**{"spark.ui.showConsoleProgress": "false"}).readStream.schema(SCHEMA)
    settings = riffle.Settings(root=f"file://{folder}/state", local_dir=f"{folder}/copies", **exports)  # type: ignore[arg-type]
    rows = riffle.on(reader.parquet(f"{folder}/in"), settings=settings)
    totals = rows.groupBy("key").agg(F.count("*").alias("rows"), F.sum("amount").alias("total"))
    writer = totals.writeStream.outputMode("update").format("noop")
    running = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        file = f"{number:06d}.parquet"
        (folder / "all" / "rows" / file).replace(folder / "in" / file)
        running.processAllAvailable()
        print("done", flush=True)
    running.stop()


class _Receiver(BaseHTTPRequestHandler):
    """Accepts everything that is posted, and discards it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def _receiver() -> Iterator[str]:
    """Run an OTLP receiver in this process, which is not measured. Yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def compare(rows: int, pairs: int, warm: int) -> dict[str, float]:
    """Return the median ratio of CPU times (on to off), its 95 % interval, and both medians in seconds."""
    base = Path(tempfile.mkdtemp(prefix="riffle-exports-"))
    sides: list[SideProcess] = []
    try:
        with _receiver() as receiver:
            for name, url in (("off", ""), ("on", receiver)):
                feeds.write(base / name / "all", feeds.drawn(KEYS, rows, warm + pairs))
                sides.append(SideProcess(["benchmarks.exports", "--side", str(base / name), url], HERE))
            measured, _ = run_pairs((sides[0], sides[1]), pairs, warm)
            for side in sides:
                side.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    off_s, on_s = np.median(measured, axis=0)
    return {**ratio_of(measured), "off_s": off_s, "on_s": on_s}


def main(arguments: Sequence[str]) -> int:
    """Compare batches of each size. Return 1 if chance does not explain the cost of exports."""
    parser = argparse.ArgumentParser(prog="./run bench exports", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--warm", type=int, default=WARM_BATCHES)
    parser.add_argument("--rows", default="100,100000")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures = {}
    for rows in map(int, options.rows.split(",")):
        figure = compare(rows, options.pairs, options.warm)
        figures[str(rows)] = {name: round(float(value), 4) for name, value in figure.items()}
        if not options.json:
            print(rows, "rows a batch:", figures[str(rows)], flush=True)
    if options.json:
        print(json.dumps({"pairs": options.pairs, "warm": options.warm, "cpu": figures}))
    return int(any(figure["low"] > SLOWER_ALLOWED for figure in figures.values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        run_side(Path(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main(sys.argv[1:]))
