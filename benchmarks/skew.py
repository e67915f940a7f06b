"""Measure hot keys, and several stores of one key, in running totals with 100 000 rows per batch.

./run bench skew [--only hot,together] [--rows 100000] [--batches 20] [--warm-up 60] [--json]

`hot` compares rows of which half have one key with rows whose keys are drawn uniformly from 200 000. `together`
compares four stores of one key in one job (`riffle_spark.together`) with one store, and counts how often each row of
the input is read. Each side has a process of its own with local[2] and an S3 server. CPU is the CPU of driver, JVM and
Python workers, without the S3 server. Rows from Kafka are a part of `peers`: ./run bench peers --only kafka --engines
riffle,riffle_million.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import riffle_spark as riffle
from apps.demo.servers import DiskS3Server
from benchmarks.kit.cpu import BatchCpu
from benchmarks.kit.names import wanted_names
from benchmarks.kit.side import answer, in_process
from benchmarks.kit.streams import session, source, wait_for_rows

__all__ = ["PARTS", "SideResult", "figures_of", "main", "play_here"]

KEYS = 200_000
SIDES = {"hot": ("uniform", "half_one_key"), "together": ("one_store", "four_stores")}
"""The sides of each part: the reference, and the compared side."""
PARTS = tuple(SIDES)
STORES = 4
LIMIT_S = 1500.0
TARGETS = {"hot_ratio": "<= 1.3", "together_ratio": "<= 1.5", "together_input_reads": "1"}
SideResult = Mapping[str, Any]
"""The result of a side: ``seconds`` of each measured batch, ``read_rows`` of the input in one, and ``cpu_ms``."""


def play_here(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Run one side in this process; return its result."""
    spark = session(**{"spark.scheduler.mode": "FAIR"})
    rows = source(spark, spec["rows"], KEYS)
    if spec["side"] == "half_one_key":
        rows = rows.selectExpr("if(amount % 2 = 0, 0L, key) as key", "amount")
    folder = Path(spec["folder"])
    settings = riffle.Settings(
        root=spec["root"], s3_endpoint=spec["endpoint"], s3_region="us-east-1", local_dir=str(folder / "copies")
    )
    job = _job(STORES if spec["side"] == "four_stores" else 1, settings)
    writer = rows.writeStream.foreachBatch(job).option("checkpointLocation", str(folder / "checkpoint"))
    cpu = BatchCpu(spec["warm_up"], spec["server_pids"])
    query = writer.start()
    try:
        progress = wait_for_rows(query, spec["warm_up"] + spec["batches"], LIMIT_S, cpu)[spec["warm_up"] :]
    finally:
        query.stop()
    return {
        **cpu.figures(),
        "seconds": [entry["durationMs"]["triggerExecution"] / 1000 for entry in progress],
        "read_rows": statistics.median(entry["numInputRows"] for entry in progress),
    }


def _job(stores: int, settings: riffle.Settings) -> riffle.StatefulJob:
    jobs = [
        riffle.Stateful(
            f"totals_{number}",
            key="key",
            compute=riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount")),
            settings=settings,
        ).into(lambda rows, _: rows.write.format("noop").mode("append").save())
        for number in range(stores)
    ]
    return riffle.together(*jobs) if stores > 1 else jobs[0]


def figures_of(part: str, plain: SideResult, compared: SideResult, rows: int) -> dict[str, float]:
    """Return the figures of a part by name: times and CPU of both sides, their ratios, and reads of each input row."""
    base_s = statistics.median(plain["seconds"])
    compared_s = statistics.median(compared["seconds"])
    base, name = SIDES[part]
    figures = {
        f"{part}_ratio": compared_s / base_s,
        f"{part}_batch_ms_{base}": 1000 * base_s,
        f"{part}_batch_ms_{name}": 1000 * compared_s,
        f"{part}_input_reads": compared["read_rows"] / rows,
    }
    for side, result in ((base, plain), (name, compared)):
        if "cpu_ms" in result:
            figures[f"{part}_cpu_ms_{side}"] = result["cpu_ms"]
    return figures


def _played(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a side in a process, with its own folder and S3 server."""
    print(f"{side} ...", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="riffle-bench-", ignore_cleanup_errors=True) as base,
        DiskS3Server(Path(base) / "s3") as server,
    ):
        spec = {
            "side": side,
            "rows": options.rows,
            "batches": options.batches,
            "warm_up": options.warm_up,
            "folder": f"{base}/side",
            "root": f"s3://{server.bucket}/state",
            "endpoint": server.endpoint,
            "server_pids": server.pids,
        }
        return in_process("benchmarks.skew", spec, LIMIT_S + 120, server.environment)


def main(arguments: Sequence[str]) -> int:
    """Run the parts in turn and print the figures; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="./run bench skew", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="these parts (%(default)s)")
    parser.add_argument("--rows", type=int, default=100_000, help="a batch (%(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="measured a side (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=60, help="batches before these (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        answer(play_here(json.loads(options.side)))
        return 0
    names = wanted_names(parser, options.only, PARTS)
    figures: dict[str, float] = {}
    for name in names:
        plain, compared = (_played(side, options) for side in SIDES[name])
        figures |= figures_of(name, plain, compared, options.rows)
    figures = {name: round(value, 3) for name, value in figures.items()}
    if options.json:
        print(json.dumps({**figures, "repetitions": dict.fromkeys(figures, options.batches)}))
        return 0
    for name, value in figures.items():
        print(f"{name:<36}{value:>12,.2f}   {TARGETS.get(name, '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
