"""Compare a running count and sum per key on riffle, with state in an S3 server, with Spark's state stores.

./run bench throughput [--json] [--only rows,million,fixed,tail,keys,encrypted,groups,upkeep,python]
                       [--against REVISION [--rounds 2]]

`rows` has 100 000 rows per batch, `million` 1 000 000, and `fixed` 100. After 60 warm-up batches these three are
compared with Spark's aggregation on its default store, whose state is on the heap, and on RocksDB with changelog.
`tail` is the 95th percentile over 300 batches of 100 000 rows, compared with the default store. The other parts have
100 000 rows per batch. `keys` compares 10 million keys with one million, `encrypted` compares encryption with none,
`groups` 1,024 key-groups with 128, and `upkeep` upkeep with none. `python` measures Spark's Python operators after 10
batches.

CPU is the CPU of driver, JVM and Python workers per batch. The CPU of the S3 server is printed separately. With
`--against`, riffle's sides also run on the code of the revision, in turn with this code.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import boto3

from apps.demo.servers import DiskS3Server
from benchmarks.kit.names import wanted_names
from benchmarks.kit.side import HERE, Code, alternately, answer, at_revision, in_process
from benchmarks.totals.engines import play_here
from benchmarks.totals.figures import CASES, PARTS, Side, figures, repetitions, sides_of
from riffle_spark.errors import RiffleError
from riffle_spark.settings import Settings

SECONDS_A_SIDE = 2000.0
TARGETS = {
    "ratio_vs_builtin_heap": ">= 2.0",
    "ratio_vs_builtin_heap_million": ">= 2.5",
    "ratio_vs_builtin": ">= 8",
    "ratio_vs_builtin_million": ">= 5",
    "cpu_ms": "<= 600",
    "fixed_cpu_ms": "<= 350",
    "fixed_ratio_heap": "<= 1.0",
    "rows_per_s_million": ">= 1 000 000 where Flink's RocksDB makes 300 000 to 400 000",
    "fixed_ratio": "<= 1.0",
    "totals_ten_million_ratio": "<= 1.3",
    "many_groups_ratio": "<= 1.15",
    "upkeep_cpu_share": "<= 0.08",
    "totals_keys_held": "10 000 000",
    "peak_memory_ratio": "<= 1.3",
    "p95_over_median": "<= 1.3",
    "batches": ">= 60",
    "snapshot_key_groups": "= key_groups: each had a snapshot in a measured batch",
}


def run(names: Sequence[str], options: argparse.Namespace, baseline: Code | None) -> dict[str, Any]:
    """Run the parts one after the other, and the sides of a part alternately. Return the figures."""
    results: dict[Side, list[dict[str, Any]]] = {}
    codes = {"before": baseline} if baseline else {}
    for name in names:
        sides = sides_of(name, against=baseline is not None)
        results |= alternately(sides, options.rounds, lambda side: _played(side, options, codes.get(side.engine, HERE)))
    result = figures(results)
    if result.get("snapshot_key_groups", 0) < result.get("key_groups", 0):
        print("not every key-group had a snapshot in a measured batch: run more --batches", file=sys.stderr)
    return {**result, **({"against": baseline.revision} if baseline else {}), "repetitions": repetitions(results)}


def _played(side: Side, options: argparse.Namespace, code: Code) -> dict[str, Any]:
    """Run a side in a process, with its own folder and S3 server."""
    case = CASES[side.case].scaled(options.scale) if "fixed" not in side.case else CASES[side.case]
    print(
        f"{side.engine}{code.revision and f' ({code.revision})'}, {case.rows} rows a batch, {case.keys} keys ...",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(prefix="riffle-bench-") as base, DiskS3Server(Path(base) / "s3") as server:
        folder = f"{base}/side"
        spec = {
            "engine": side.engine,
            "rows": case.rows,
            "keys": case.keys,
            "filled": case.filled,
            "batches": options.batches or case.batches,
            "warm_up": case.warm_up if options.warm_up < 0 else options.warm_up,
            "folder": folder,
            "root": f"s3://{server.bucket}/state",
            "endpoint": server.endpoint,
            "server_pids": server.pids,
        }
        result = in_process(
            "benchmarks.throughput", spec, SECONDS_A_SIDE, server.environment, code, samples_memory=True
        )
        shutil.rmtree(folder, ignore_errors=True)
        result["rows"] = case.rows
        if "versions" in result:
            result |= {"key_groups": Settings().key_groups, "snapshot_key_groups": _snapshot_key_groups(server, result)}
        return result


def _snapshot_key_groups(server: DiskS3Server, result: Mapping[str, Any]) -> int:
    """Return the number of key-groups with a snapshot from a measured batch in the store."""
    with closing(boto3.client("s3", **server.client_arguments)) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket, Prefix="state/totals/")
        names = [entry["Key"].split("/") for page in pages for entry in page.get("Contents", ())]
    return len({name[2] for name in names if int(name[-1].split("-")[0]) in result["versions"]})


def main() -> int:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="these parts (%(default)s)")
    parser.add_argument("--batches", type=int, default=0, help="measured a side (0: as many as each part is meant to)")
    parser.add_argument("--warm-up", type=int, default=-1, help="batches before these (-1: as each part is meant to)")
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and rows (%(default)s)")
    parser.add_argument("--against", metavar="REVISION", help="the commit whose code runs beside ours")
    parser.add_argument("--rounds", type=int, default=0, help="of each part (1, with --against 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        answer(play_here(json.loads(options.side)))
        return 0
    options.rounds = options.rounds or (2 if options.against else 1)
    names = wanted_names(parser, options.only, PARTS)
    try:
        with at_revision(options.against) if options.against else nullcontext() as baseline:
            result = run(names, options, baseline)
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        print(f"{name:40} {value!s:>16}  {TARGETS.get(name, '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
