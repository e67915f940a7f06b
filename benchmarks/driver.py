"""Measure the driver: its CPU, messages and memory per batch, without Spark and without executors.

./run bench driver [--only 10x128,...,memory,records] [--batches 48] [--json]

A case such as `10x128` has 10 executors of 4 cores, 128 key-groups and one standby each. The driver, log, ownership,
upkeep and messages are the real ones. The executors are simulated, and the log is in this process's memory. Each batch
changes all key-groups. CPU is the CPU of the driver's process with the upkeep between two batches, without the
simulated executors. `memory` runs 3,600 batches of one second on a simulated clock, with the log in a local folder.
`records` encodes and decodes records of 4,096 key-groups. Each case has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.drivers.load import DriverLoad, code_ms, rss_mb
from benchmarks.kit.names import wanted_names
from benchmarks.kit.side import answer, in_process

__all__ = ["CASES", "batches_of", "main", "play_here"]

EXECUTORS = (10, 100, 1_000)
KEY_GROUPS = (128, 1_024, 4_096, 32_768)
CASES = (*(f"{executors}x{key_groups}" for executors in EXECUTORS for key_groups in KEY_GROUPS), "memory", "records")
STANDBYS = 1
WARM_UP = 48
"""The batches before the measured ones. After them chains have their usual length, and snapshots are due in every
batch.
"""
MEASURED = 48
"""Three distances between full records."""
LARGE = 4_096
WARM_UP_OF_LARGE = 24
MEASURED_OF_LARGE = 16
HOUR_OF_BATCHES = 3_600
RECORD_EXECUTORS, RECORD_KEY_GROUPS = 100, 4_096
REPEATS = 15
CASE_SECONDS = 1_800.0
TARGETS = {
    "cpu_ms.10x128": "<= 8",
    "cpu_ms.10x1024": "<= 30",
    "commit_ms.10x1024": "<= 25",
    "rss_mb": "<= 150",
    "encode_ms": "<= 30",
    "decode_ms": "<= 30",
}


def batches_of(key_groups: int, batches: int) -> tuple[int, int]:
    """Return the number of warm-up batches and of measured batches (``batches``, or the default if it is 0)."""
    if key_groups > LARGE:
        return WARM_UP_OF_LARGE, batches or MEASURED_OF_LARGE
    return WARM_UP, batches or MEASURED


def play_here(spec: Mapping[str, Any]) -> dict[str, float]:
    """Run one case in this process; return its figures by name."""
    case = spec["case"]
    if case == "memory":
        return _memory(spec["batches"] or HOUR_OF_BATCHES)
    if case == "records":
        return _records()
    executors, key_groups = map(int, case.split("x"))
    warm_up, measured = batches_of(key_groups, spec["batches"])
    load = DriverLoad(executors, key_groups, num_standbys=STANDBYS)
    load.run(warm_up)
    return {f"{name}.{case}": value for name, value in load.run(measured).figures().items()}


def _memory(batches: int) -> dict[str, float]:
    """Return the memory of a driver of 10 executors and 128 key-groups: when it starts, and after these batches."""
    with tempfile.TemporaryDirectory(prefix="riffle-bench-") as folder:
        load = DriverLoad(10, 128, root=f"file://{folder}/state", num_standbys=STANDBYS)
        started_mb = rss_mb()
        load.run(batches)
        return {"rss_mb_at_start": started_mb, "rss_mb": rss_mb(), "memory_batches": batches}


def _records() -> dict[str, float]:
    """Return the time to encode and decode the full record of a steady query, and the record after it."""
    load = DriverLoad(RECORD_EXECUTORS, RECORD_KEY_GROUPS, num_standbys=STANDBYS)
    load.run(WARM_UP)
    while (full := load.newest_record()).bases:
        load.run(1)
    load.run(1)
    encode_ms, decode_ms = code_ms(full, REPEATS)
    encode_next_ms, decode_next_ms = code_ms(load.newest_record(), REPEATS)
    return {
        "encode_ms": encode_ms,
        "decode_ms": decode_ms,
        "encode_ms_next": encode_next_ms,
        "decode_ms_next": decode_next_ms,
        "links_a_key_group": sum(len(entry.chain) for entry in full.entries.values()) / RECORD_KEY_GROUPS,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the cases in turn and print the figures; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="./run bench driver", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES), help="these cases (%(default)s)")
    parser.add_argument("--batches", type=int, default=0, help="measured batches of a case (0: as many as it needs)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        answer(play_here(json.loads(options.side)))
        return 0
    names = wanted_names(parser, options.only, CASES)
    figures: dict[str, float] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        figures |= in_process("benchmarks.driver", {"case": name, "batches": options.batches}, CASE_SECONDS, {})
    figures = {name: round(value, 2) for name, value in figures.items()}
    if options.json:
        print(json.dumps(figures))
        return 0
    for name, value in figures.items():
        print(f"{name:<32}{value:>16,.1f}   {TARGETS.get(name, '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
