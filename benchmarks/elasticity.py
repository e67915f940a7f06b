"""Measure the costs of added, removed, killed and returning executors, and of the same scale-out with Spark's own
operator.

./run bench elasticity [--json] [--keys 1000000] [--only scale,cold_restore] [--against REVISION [--rounds 3]]

Workers of one core each run on this machine. State is in an S3 server over files (versitygw, built with Go on first
use). Every case starts its own servers, workers and application. `replay` measures the cost of standbys. With
`--against` it also runs on the code of the revision, in turn with this code.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apps.demo.gateway import ensure_gateway
from benchmarks.elastic.cold import cold_restore
from benchmarks.elastic.data import Size
from benchmarks.elastic.kill import standby_kill
from benchmarks.elastic.replay import replay
from benchmarks.elastic.returning import returning
from benchmarks.elastic.scale import scale
from benchmarks.elastic.spark_scale_out import spark_scale_out
from benchmarks.kit.names import wanted_names
from benchmarks.kit.side import HERE, Code, alternately, answer, at_revision, in_process
from riffle_spark.errors import RiffleError

SECONDS_A_CASE = 1500.0
CASES: dict[str, Callable[[Size, Path], dict[str, object]]] = {
    "scale": scale,
    "standby_kill": standby_kill,
    "cold_restore": cold_restore,
    "returning": returning,
    "replay": replay,
    "spark": spark_scale_out,
}
TARGETS = {
    "state_bytes": ">= 1 GB",
    "lost": "0",
    "doubled": "0",
    "rewritten_bytes": "0",
    "warm_move_ratio": "<= 1.2",
    "upkeep_ratio": "<= 1.25",
    "standby_kill_extra_s": "<= standby_kill_allowed_s (one batch and 4 s)",
    "standby_kill_next_ratio": "near 1",
    "standby_kill_snapshot_bytes": "0",
    "cold_fetched_over_listed": "near 1: nothing that was listed came from a disk",
    "cold_restore_ratio": ">= 0.8",
    "cold_restore_ratio_least": ">= 0.7",
    "return_fetched_over_missed": "<= 1",
    "standby_cpu_ratio": "<= 0.5",
    "spark_rescale_s": "ours stands still for 0 s",
    "spark_rewritten_bytes": "ours: rewritten_bytes",
}


def sizes(keys: int) -> dict[str, Size]:
    """Return the size of each case. ``keys`` is the number of keys in the largest."""
    small = max(keys // 5, 1000)
    return {
        "scale": Size(keys, vector_bytes=1024, rows=keys // 25, fill_rows=keys // 10),
        "standby_kill": Size(small, vector_bytes=256, rows=small // 10, fill_rows=small // 4),
        "cold_restore": Size(keys, vector_bytes=1024, rows=keys // 25, fill_rows=keys // 10),
        "returning": Size(small, vector_bytes=256, rows=small // 10, fill_rows=small // 4),
        "replay": Size(small, vector_bytes=32, rows=small // 4, fill_rows=small // 4),
        "spark": Size(keys, vector_bytes=1024, rows=keys // 25, fill_rows=keys // 10),
    }


def run(keys: int, names: list[str], baseline: Code | None, rounds: int) -> dict[str, Any]:
    """Run the cases one after the other, and return all figures."""
    ensure_gateway()
    results: dict[str, Any] = {}
    repetitions: dict[str, int] = {}
    for name in names:
        started = time.monotonic()
        figures = _replayed(sizes(keys)[name], baseline, rounds) if name == "replay" else _played(name, keys)
        repetitions |= figures.pop("repetitions", {})
        results |= {**figures, f"{name}_case_s": time.monotonic() - started}
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in results.items()}
    return {**rounded, **({"against": baseline.revision} if baseline else {}), "repetitions": repetitions}


def _replayed(size: Size, baseline: Code | None, rounds: int) -> dict[str, Any]:
    """Run the replay on this code and on the other revision in turn. Return the medians."""
    codes = (HERE, baseline) if baseline else (HERE,)
    runs = alternately(codes, rounds, lambda code: _in_folder("benchmarks.elastic.replay", "replay", size, code))
    medians = {
        code: statistics.median(result["standby_cpu_s"] for result in results_of_side)
        for code, results_of_side in runs.items()
    }
    result = {**runs[HERE][-1], "standby_cpu_s": medians[HERE], "repetitions": {"standby_cpu_s": rounds}}
    if baseline:
        result |= {"standby_cpu_s_before": medians[baseline], "standby_cpu_ratio": medians[HERE] / medians[baseline]}
    return result


def _played(name: str, keys: int) -> dict[str, Any]:
    return _in_folder("benchmarks.elasticity", name, sizes(keys)[name], HERE)


def _in_folder(module: str, name: str, size: Size, code: Code) -> dict[str, Any]:
    print(f"{name}{code.revision and f' ({code.revision})'} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="riffle-elastic-", ignore_cleanup_errors=True) as base:
        spec = {"case": name, "folder": base, "size": asdict(size)}
        return in_process(module, spec, SECONDS_A_CASE, {}, code)


def _run_case(spec: dict[str, Any]) -> dict[str, object]:
    folder = Path(spec["folder"]) / "case"
    folder.mkdir()
    try:
        return CASES[spec["case"]](Size(**spec["size"]), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the largest case, of 1 kB each (%(default)s)")
    parser.add_argument("--only", default=",".join(CASES), help="these cases (%(default)s)")
    parser.add_argument("--against", metavar="REVISION", help="the commit whose code replays beside ours")
    parser.add_argument("--rounds", type=int, default=0, help="of the replay (1, with --against 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        answer(_run_case(json.loads(options.side)))
        return 0
    names = wanted_names(parser, options.only, CASES)
    try:
        with at_revision(options.against) if options.against else nullcontext() as baseline:
            result = run(options.keys, names, baseline, options.rounds or (3 if baseline else 1))
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        print(f"{name:36} {value!s:>16}  {TARGETS.get(name, '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
