"""Count costs of a batch that do not depend on the machine: Python calls in a slot, file operations, and sealed bytes.

./run bench calls [--save] [--json]

Prints each count with the newest stored count. ``--save`` adds a run to ``benchmarks/results/calls.json``, which keeps
all runs to show the trend.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.kit.results import RESULTS, read
from riffle_spark.process.blocks.block import Computation
from tests.kit.worker.counted_slot import FEW, OneSlot, ending, sums, totals

__all__ = ["count_costs", "main"]

KEYS = 1_000
KEY_GROUPS = 16
LOADS: dict[str, Callable[[], Computation]] = {"columns": totals, "columns_with_end": ending, "variables": sums}


def count_costs(folder: Path) -> dict[str, float]:
    """Return the counts by name.

    ``*.calls``: calls that the product's own code makes in a slot of 1,000 changed keys in 16 key-groups.
    ``*.calls_a_key_group``: the same for each further key-group. ``*.file_operations`` and
    ``*.file_operations_a_key_group``: files that the slot opens, creates, removes or locks.
    ``*.sealed_bytes_a_key`` and ``*.snapshot_bytes_a_key``: bytes of deltas and snapshots.
    """
    costs: dict[str, float] = {}
    for name, load in LOADS.items():
        slot = OneSlot(folder / name, load(), KEY_GROUPS)
        settled_slot = slot.settled(FEW, KEYS)
        wide = OneSlot(folder / f"{name}-wide", load(), 2 * KEY_GROUPS).settled(FEW, KEYS)
        taken_bytes, taken_rows = slot.snapshots()
        costs[f"{name}.calls"] = settled_slot.slot.ours
        costs[f"{name}.calls_a_key_group"] = (wide.slot.ours - settled_slot.slot.ours) / KEY_GROUPS
        costs[f"{name}.file_operations"] = settled_slot.slot.file_operations
        further_operations = wide.slot.file_operations - settled_slot.slot.file_operations
        costs[f"{name}.file_operations_a_key_group"] = further_operations / KEY_GROUPS
        costs[f"{name}.sealed_bytes_a_key"] = settled_slot.receipt.sealed_bytes / KEYS
        costs[f"{name}.snapshot_bytes_a_key"] = taken_bytes / taken_rows
    return costs


def main(arguments: Sequence[str]) -> None:
    """Count and print; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(prog="./run bench calls")
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args(arguments).json
    with tempfile.TemporaryDirectory() as folder:
        costs = count_costs(Path(folder))
    if as_json:
        print(json.dumps(costs))
        return
    runs = read(RESULTS / "calls.json")
    stored = runs[-1].figures if runs else {}
    for name, cost in costs.items():
        stored_text = f"{stored[name].value:,.1f}" if name in stored else "not stored"
        print(f"{name:<40} {cost:>12,.1f}   before: {stored_text}")


if __name__ == "__main__":
    main(sys.argv[1:])
