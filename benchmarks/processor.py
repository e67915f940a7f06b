"""StatefulProcessors on riffle, with state committed to an S3 server, against the same ones on Spark's own operator.

./run bench processor [--json] [--only row_form,pandas_form,list,map,expiry,ten_million]

Both sides read the same Parquet files, one a batch, on local[2] with two shuffle partitions, each side in a process of
its own. Spark commits to a checkpoint on local disk, riffle to an S3 server process (versitygw, built with Go on first
use). All but ``pandas_form`` run on Spark 4.3.0, whose environment is set up on first use.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from benchmarks.processors.loads import APPENDED
from benchmarks.processors.play import NEW_SPARK, NOT_PLAYED, PINNED_SPARK, Played, Side, play, play_here
from riffle_spark.errors import RiffleError

OURS, THEIRS, EXPIRED = 10, 3, 5
WARM_UP, THEIR_WARM_UP = 3, 1
COUNTED = {"keys": 200_000, "rows": 100_000}
LISTS = {"keys": 50_000, "length": 1_000}
MAPS = {"keys": 50_000}
TOUCHED = 100_000
FEW, MANY = 1_000_000, 10_000_000
WANTED = {
    "row_form_ratio": ">= 8",
    "pandas_form_ratio": ">= 20",
    "list_ratio": ">= 5 (the smaller of list_short_ratio and list_long_ratio)",
    "map_ratio": ">= 5",
    "expiry_ratio": "<= 2",
    "ten_million_ratio": "<= 1.5",
    "ten_million_worker_peak_mb": "bounded",
}
Player = Callable[[Side], Played]
Figures = dict[str, float]


def row_form(run: Player) -> Figures:
    """Running count in the Row form."""
    return _form("row_form", run, "counting")


def pandas_form(run: Player) -> Figures:
    """Running count in the pandas form, on the pinned Spark."""
    return _form("pandas_form", run, "counting_in_pandas", PINNED_SPARK)


def _form(name: str, run: Player, load: str, spark_version: str = NEW_SPARK) -> Figures:
    mine, theirs = _both(run, load, COUNTED, spark_version)
    return {
        f"{name}_ratio": mine.rows_per_s / theirs.rows_per_s,
        f"{name}_rows_per_s": mine.rows_per_s,
        f"{name}_rows_per_s_spark": theirs.rows_per_s,
        f"{name}_batch_s": mine.median_s(),
        f"{name}_batch_s_spark": theirs.median_s(),
    }


def list_(run: Player) -> Figures:
    """Append to short lists, then to long ones."""
    mine, theirs = _both(run, "appending", LISTS)
    mine_short_s = mine.median_s(until=WARM_UP + OURS)
    their_short_s = theirs.median_s(until=THEIR_WARM_UP + THEIRS)
    short = their_short_s / mine_short_s
    long = theirs.median_s() / mine.median_s()
    return {
        "list_ratio": min(short, long),
        "list_short_ratio": short,
        "list_long_ratio": long,
        "list_short_elements_per_s": APPENDED * mine.rows / mine_short_s,
        "list_short_elements_per_s_spark": APPENDED * theirs.rows / their_short_s,
        "list_long_elements_per_s": APPENDED * mine.rows_per_s,
        "list_long_elements_per_s_spark": APPENDED * theirs.rows_per_s,
    }


def map_(run: Player) -> Figures:
    """Read and update one entry in each of many maps."""
    mine, theirs = _both(run, "mapping", MAPS)
    return {
        "map_ratio": mine.rows_per_s / theirs.rows_per_s,
        "map_rows_per_s": mine.rows_per_s,
        "map_rows_per_s_spark": theirs.rows_per_s,
    }


def _both(run: Player, load: str, sizes: dict[str, int], spark_version: str = NEW_SPARK) -> tuple[Played, Played]:
    mine = run(Side(load, "riffle", {**sizes, "batches": WARM_UP + OURS}, OURS, spark_version))
    theirs = run(Side(load, "spark", {**sizes, "batches": THEIR_WARM_UP + THEIRS}, THEIRS, spark_version))
    return mine, theirs


def expiry(run: Player) -> Figures:
    """Fire so many timers out of many, and out of few."""
    return _against_few("expiry", run, Side("expiring", "riffle", {"rows": TOUCHED, "batches": 7}, EXPIRED))


def ten_million(run: Player) -> Figures:
    """Touch so many keys of many, and of few."""
    sizes = {"rows": TOUCHED, "batches": WARM_UP + OURS}
    return _against_few("ten_million", run, Side("counting_many", "riffle", sizes, OURS))


def _against_few(name: str, run: Player, side: Side) -> Figures:
    few, many = (run(replace(side, sizes={**side.sizes, "keys": keys})) for keys in (FEW, MANY))
    return {
        f"{name}_ratio": many.median_s() / few.median_s(),
        f"{name}_batch_s": many.median_s(),
        f"{name}_batch_s_of_a_tenth": few.median_s(),
        f"{name}_worker_peak_mb": many.worker_peak_mb,
    }


CASES: dict[str, Callable[[Player], Figures]] = {
    "row_form": row_form,
    "pandas_form": pandas_form,
    "list": list_,
    "map": map_,
    "expiry": expiry,
    "ten_million": ten_million,
}


def run(names: list[str], engines: list[str], scale: float) -> Figures:
    """Run the cases in turn on these engines, at a scale, and return their figures together."""

    def player(side: Side) -> Played:
        return play(side.scaled(scale)) if side.engine in engines else NOT_PLAYED

    found: Figures = {}
    for name in names:
        started = time.monotonic()
        found |= CASES[name](player)
        found[f"{name}_case_s"] = time.monotonic() - started
    return {name: round(value, 3) for name, value in found.items() if not math.isnan(value)}


def repetitions(names: Iterable[str]) -> dict[str, int]:
    """Return of how many of our batches, or of Spark's, figures are the medians."""
    medians = [name for name in names if not name.endswith(("_case_s", "_mb"))]
    batches = {name: EXPIRED if name.startswith("expiry") else OURS for name in medians}
    return batches | {name: THEIRS for name in medians if name.endswith("_spark")}


def main() -> int:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="these cases (%(default)s)")
    parser.add_argument("--engines", default="riffle,spark", help="leave a side out (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and rows (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(play_here(json.loads(options.side))))
        return 0
    names = options.only.split(",")
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    try:
        result = run(names, options.engines.split(","), options.scale)
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({**result, "repetitions": repetitions(result)}))
        return 0
    for name, value in result.items():
        print(f"{name:36} {value!s:>16}  {WANTED.get(name, '')}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
