"""The command line of a benchmark of cases that run in turn, against another revision too: its options, and how its
figures are told. Does not know the cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext

from benchmarks.kit.side import Code, at_revision
from riffle_spark.errors import RiffleError

__all__ = ["asked", "tell"]

Figures = dict[str, float]


def asked(told: str | None, cases: Collection[str]) -> argparse.Namespace:
    """Return the options of the command line, with ``names``, the cases that are wanted; exit if one is unknown."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(cases), help="these cases (%(default)s)")
    parser.add_argument("--engines", default="riffle,spark", help="leave a side out (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and rows (%(default)s)")
    parser.add_argument("--against", metavar="REVISION", help="the commit whose code runs beside ours")
    parser.add_argument("--rounds", type=int, default=0, help="of ours and the revision's (1, with --against 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.names = options.only.split(",")
    unknown = sorted(set(options.names) - set(cases))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    options.rounds = options.rounds or (2 if options.against else 1)
    return options


def tell(
    options: argparse.Namespace,
    run: Callable[[Sequence[str], Code | None], Figures],
    repetitions: Callable[[Figures, int], Mapping[str, int]],
    wanted: Mapping[str, str],
) -> int:
    """Run the cases, beside another revision if one was named, and print the figures; return the exit code."""
    try:
        with at_revision(options.against) if options.against else nullcontext() as before:
            result = run(options.names, before)
        told: dict[str, object] = {**result, **({"against": before.revision} if before else {})}
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({**told, "repetitions": repetitions(result, options.rounds)}))
        return 0
    for name, value in told.items():
        print(f"{name:36} {value!s:>16}  {wanted.get(name, '')}".rstrip())
    return 0
