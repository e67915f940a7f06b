"""Compare StatefulProcessors on riffle, with state in an S3 server, with the same processors on Spark's own operator.

./run bench processor [--json] [--only row_form,pandas_form,list,map,expiry,ten_million]
                      [--against REVISION [--rounds 2]]

Both sides read the same Parquet files, one file per batch. Each side has its own process with local[2] and two shuffle
partitions. Spark commits to RocksDB with changelog, in a checkpoint on the local disk, because its default store lacks
the column families that ``transformWithState`` needs. riffle commits to an S3 server process (versitygw, built with Go
on first use).

Each side is measured after ten batches. All cases but ``pandas_form`` run on Spark 4.3.0, whose environment is set up
on first use. With `--against`, riffle's sides also run on the code of the revision, in turn with this code. Spark's
sides run once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.kit import cases
from benchmarks.kit.cases import Case, Figures
from benchmarks.kit.side import answer
from benchmarks.kit.streams import median
from benchmarks.processors.loads import APPENDED
from benchmarks.processors.play import NEW_SPARK, NOT_PLAYED, PINNED_SPARK, Played, Side, play, play_here

OURS = 10
THEIRS = 5
EXPIRED = 5
WARM_UP = 10
THEIR_WARM_UP = 10
"""Spark runs Python per key. That takes so long that the JVM has compiled the code after ten batches."""
COUNTED = {"keys": 200_000, "rows": 100_000}
LISTS = {"keys": 50_000, "length": 1_000}
MAPS = {"keys": 50_000}
TOUCHED = 100_000
FEW = 1_000_000
MANY = 10_000_000
TARGETS = {
    "row_form_ratio": ">= 10",
    "row_form_ratio_vs_before": ">= 1.0",
    "pandas_form_ratio": ">= 16",
    "pandas_form_ratio_vs_before": ">= 1.2",
    "list_ratio": ">= 5 (the smaller of list_short_ratio and list_long_ratio)",
    "list_ratio_vs_before": ">= 1.0",
    "map_ratio": ">= 6",
    "map_ratio_vs_before": ">= 1.0",
    "expiry_ratio": "<= 2",
    "ten_million_ratio": "<= 1.5",
    "ten_million_worker_peak_mb": "bounded",
}
Player: TypeAlias = cases.Player[Side, Played]


@dataclass(frozen=True, slots=True)
class ComparedResults:
    """The results of a case: those of riffle and of the other revision by round, and that of Spark."""

    ours: Sequence[Played]
    before: Sequence[Played]
    spark: Played

    def batch_s(self, until: int | None = None) -> float:
        """Return riffle's median time of a batch: of the last batches, or of the last ones before batch ``until``."""
        return median(play.median_s(until) for play in self.ours)

    def vs_before(self, until: int | None = None) -> float:
        """Return the speed relative to the other revision: the median ratio of the rounds."""
        return median(b.median_s(until) / a.median_s(until) for a, b in zip(self.ours, self.before, strict=True))

    @property
    def rows(self) -> int:
        """The rows of riffle's last batch."""
        return self.ours[-1].rows

    @property
    def rows_per_s(self) -> float:
        """The rows of riffle's last batch divided by the median time."""
        return self.rows / self.batch_s()


def row_form(run: Player) -> Figures:
    """Running count in the Row form."""
    return _form("row_form", run, "counting")


def pandas_form(run: Player) -> Figures:
    """Running count in the pandas form, on the pinned Spark."""
    return _form("pandas_form", run, "counting_in_pandas", PINNED_SPARK)


def _form(name: str, run: Player, load: str, spark_version: str = NEW_SPARK) -> Figures:
    comparison = _compared(run, load, COUNTED, spark_version)
    return {
        **_rates(name, comparison),
        f"{name}_batch_s": comparison.batch_s(),
        f"{name}_batch_s_spark": comparison.spark.median_s(),
    }


def _rates(name: str, comparison: ComparedResults) -> Figures:
    return {
        f"{name}_ratio": comparison.rows_per_s / comparison.spark.rows_per_s,
        f"{name}_ratio_vs_before": comparison.vs_before(),
        f"{name}_rows_per_s": comparison.rows_per_s,
        f"{name}_rows_per_s_spark": comparison.spark.rows_per_s,
        f"{name}_cpu_ms": median(play.cpu_ms for play in comparison.ours),
        f"{name}_cpu_ms_spark": comparison.spark.cpu_ms,
        f"{name}_s3_cpu_ms": median(play.server_cpu_ms for play in comparison.ours),
    }


def list_(run: Player) -> Figures:
    """Append to short lists, then to long ones."""
    comparison = _compared(run, "appending", LISTS)
    ours_short = WARM_UP + OURS
    short_s = comparison.batch_s(ours_short)
    short_s_spark = comparison.spark.median_s(THEIR_WARM_UP + THEIRS)
    short = short_s_spark / short_s
    long = comparison.spark.median_s() / comparison.batch_s()
    return {
        "list_ratio": min(short, long),
        "list_short_ratio": short,
        "list_long_ratio": long,
        "list_ratio_vs_before": min(comparison.vs_before(ours_short), comparison.vs_before()),
        "list_short_elements_per_s": APPENDED * comparison.rows / short_s,
        "list_short_elements_per_s_spark": APPENDED * comparison.spark.rows / short_s_spark,
        "list_long_elements_per_s": APPENDED * comparison.rows_per_s,
        "list_long_elements_per_s_spark": APPENDED * comparison.spark.rows_per_s,
    }


def map_(run: Player) -> Figures:
    """Read and update one entry in each of many maps."""
    return _rates("map", _compared(run, "mapping", MAPS))


def _compared(run: Player, load: str, sizes: dict[str, int], spark_version: str = NEW_SPARK) -> ComparedResults:
    side = Side(load, "riffle", {**sizes, "batches": WARM_UP + OURS}, OURS, spark_version)
    plays = run.in_turn(side, "riffle", "before")
    theirs = Side(load, "spark", {**sizes, "batches": THEIR_WARM_UP + THEIRS}, THEIRS, spark_version)
    return ComparedResults(plays["riffle"], plays["before"], run(theirs))


def expiry(run: Player) -> Figures:
    """Fire the same number of timers out of many, and out of few."""
    return _against_few("expiry", run, Side("expiring", "riffle", {"rows": TOUCHED, "batches": 7}, EXPIRED))


def ten_million(run: Player) -> Figures:
    """Touch the same number of keys with many keys in state, and with few."""
    sizes = {"rows": TOUCHED, "batches": WARM_UP + OURS}
    return _against_few("ten_million", run, Side("counting_many", "riffle", sizes, OURS))


def _against_few(name: str, run: Player, side: Side) -> Figures:
    few, many_keys = (run(replace(side, sizes={**side.sizes, "keys": keys})) for keys in (FEW, MANY))
    return {
        f"{name}_ratio": many_keys.median_s() / few.median_s(),
        f"{name}_batch_s": many_keys.median_s(),
        f"{name}_batch_s_of_a_tenth": few.median_s(),
        f"{name}_worker_peak_mb": many_keys.worker_peak_mb,
    }


CASES: dict[str, Case[Side, Played]] = {
    "row_form": row_form,
    "pandas_form": pandas_form,
    "list": list_,
    "map": map_,
    "expiry": expiry,
    "ten_million": ten_million,
}


def repetitions(names: Iterable[str], rounds: int) -> dict[str, int]:
    """Return the number of batches behind each median."""
    medians = [name for name in names if not name.endswith(("_case_s", "_mb"))]
    alone = ("expiry", "ten_million")
    batches = {name: (EXPIRED if name.startswith("expiry") else OURS) for name in medians}
    batches |= {name: rounds * OURS for name in medians if not name.startswith(alone)}
    return batches | {name: THEIRS for name in medians if name.endswith("_spark")}


def main() -> int:
    """Parse the command line and print the figures."""
    options = cases.parse_options(__doc__, CASES)
    if options.side:
        answer(play_here(json.loads(options.side)))
        return 0
    return cases.run_and_print(options, CASES, play, NOT_PLAYED, repetitions, TARGETS)


if __name__ == "__main__":
    sys.exit(main())
