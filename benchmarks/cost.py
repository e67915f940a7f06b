"""Measure the bytes written per changed byte, with the real driver, slots and upkeep, on a store that counts bytes.

./run bench cost [--only uniform_1_128,...] [--batches 100] [--warm-up 110] [--keys 100000] [--json]

A case such as `uniform_0.1_1024` changes 0.1 % of the keys with each batch, drawn uniformly, and has 1,024 key-groups.
`hot` changes the same keys in each batch. `zipf` draws keys by Zipf's law. A key and its value have 100 bytes, which
cannot be compressed. Two executors of one core hold an owner and a standby of each key-group. They run in this process,
on a simulated clock. No figure depends on the speed of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.costs.figures import figures_of
from benchmarks.costs.load import PATTERNS, KeyPattern, load_of

__all__ = ["CASES", "CostCase", "figure_name", "main", "parse_case"]

KEYS = 100_000
WARM_UP = 110
"""More batches than the age at which deltas are merged."""
MEASURED = 100
"""The number of measured batches. During them the deltas of every changed key-group are merged at least once."""
CASES = (
    "uniform_0.01_128",
    "uniform_0.1_128",
    "uniform_1_128",
    "uniform_10_128",
    "hot_1_128",
    "zipf_1_128",
    "uniform_1_1024",
    "uniform_1_4096",
)
TARGETS = {"put_ratio": "<= 5", "space_ratio": "<= 2.5", "disk_ratio": "<= 2.0"}


@dataclass(frozen=True, slots=True)
class CostCase:
    """The changed keys (one of ``PATTERNS``), their percentage per batch, and the number of key-groups."""

    pattern: str
    percent: float
    key_groups: int


def parse_case(name: str) -> CostCase:
    """Return the case of a name such as ``zipf_0.1_128``. Raises ``ValueError`` for any other text."""
    pattern, percent, key_groups = name.split("_")
    if pattern not in PATTERNS:
        raise ValueError(f"{pattern!r} is not one of {', '.join(PATTERNS)}")
    return CostCase(pattern, float(percent), int(key_groups))


def figure_name(figure: str, case: str) -> str:
    """Return the name under which a case's figure is saved. Points separate names, so it has none."""
    return f"{figure}.{case.replace('.', '')}"


def run_case(name: str, keys: int, warm_up: int, batches: int) -> dict[str, float]:
    """Run one case; return its figures by name."""
    case = parse_case(name)
    pattern = KeyPattern(case.pattern, keys, max(1, round(keys * case.percent / 100)))
    with load_of(case.key_groups) as load:
        written, spaces = load.measure(pattern, warm_up, batches)
    return {figure_name(figure, name): value for figure, value in figures_of(written, spaces).items()}


def main(arguments: Sequence[str]) -> None:
    """Run the cases in turn and print the figures; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="./run bench cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES), help="these cases, or others of the same form (%(default)s)")
    parser.add_argument("--keys", type=int, default=KEYS, help="keys of the state (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="batches before those that are counted")
    parser.add_argument("--batches", type=int, default=MEASURED, help="counted batches (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    try:
        list(map(parse_case, names))
    except ValueError as error:
        parser.error(f"no such case: {error}")
    figures: dict[str, float] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        figures |= run_case(name, options.keys, options.warm_up, options.batches)
    figures = {name: round(value, 3) for name, value in figures.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<46}{value:>14,.2f}   {TARGETS.get(name.partition('.')[0], '')}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
