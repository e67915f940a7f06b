"""Compare common queries, wrapped by ``riffle_spark.on``, with the same queries on Spark's own operators.

./run bench blocks [--json] [--only window,session,dedup,join,close,groups,chain,wrapper]
                   [--against REVISION [--rounds 2]]

All sides run the same query on the same Parquet files, one file per batch. Each side has its own process with local[2]
and two shuffle partitions. Spark commits to a checkpoint on the local disk: first with its default store, whose state
is on the heap, then with RocksDB and changelog. riffle commits to an S3 server process (versitygw, built with Go on
first use).

Batches are measured after 60 others, or after 10 if Spark runs Python per key. State expires in each measured batch.
CPU is the CPU of driver, JVM and Python workers. The CPU of the S3 server is printed separately. With `--against`,
riffle's sides also run on the code of the revision, in turn with this code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from benchmarks.blocks.block_play import NOT_PLAYED, Played, Side, play, play_here
from benchmarks.kit import cases
from benchmarks.kit.cases import Case, Figures
from benchmarks.kit.side import answer
from benchmarks.kit.streams import median

MEASURED = 10
IN_TURN = 60
WARM_UP = {"groups": 10}
COMPILED = 60
"""Batches before the measured ones. After them the JVM has compiled the code, the state has its full size, and rows
expire in each batch. With Spark's slow Python operators fewer batches suffice.
"""
LIMIT_S = 3600.0
ROWS = 100_000
SPARK_PYTHON_ROWS = 20_000
SLICES = 5
TARGETS = {
    "window_ratio_heap": ">= 1.5",
    "session_ratio_heap": ">= 2.5",
    "dedup_ratio_heap": ">= 1.5",
    "join_ratio_heap": ">= 1.5",
    "window_ratio": ">= 4",
    "session_ratio": ">= 3",
    "dedup_ratio": ">= 3",
    "join_ratio": ">= 2",
    "close_ratio": "<= 1.3",
    "groups_ratio": ">= 12",
    "chain_ratio": "<= 0.8",
    "wrapper_ratio": "<= 1.05",
}
Player: TypeAlias = cases.Player[Side, Played]


def _median_s(played: Iterable[Played]) -> float:
    return median(play.median_s() for play in played)


def _side(block: str, measured: int = MEASURED, **sizes: int) -> Side:
    batches = WARM_UP.get(block, COMPILED) + measured
    return Side(block, "riffle", {"rows": ROWS, "batches": batches, **sizes}, measured, limit_s=LIMIT_S)


def _rates(name: str, run: Player, ours: Side, theirs: Side) -> Figures:
    """Return our rows per second, and their ratio to those of Spark on each of its stores and of the other revision."""
    outcomes = run.in_turn(ours, "riffle", "before")
    heap = run(replace(theirs, engine="spark_heap"))
    spark = run(replace(theirs, engine="spark"))
    rows_per_s = outcomes["riffle"][-1].rows / _median_s(outcomes["riffle"])
    both = zip(outcomes["riffle"], outcomes["before"], strict=True)
    return {
        f"{name}_ratio_heap": rows_per_s / heap.rows_per_s,
        f"{name}_ratio": rows_per_s / spark.rows_per_s,
        f"{name}_ratio_vs_before": median(previous.median_s() / current.median_s() for current, previous in both),
        f"{name}_rows_per_s": rows_per_s,
        f"{name}_rows_per_s_heap": heap.rows_per_s,
        f"{name}_rows_per_s_spark": spark.rows_per_s,
        f"{name}_batch_s": _median_s(outcomes["riffle"]),
        f"{name}_batch_s_heap": heap.median_s(),
        f"{name}_batch_s_spark": spark.median_s(),
        f"{name}_cpu_ms": median(play.cpu_ms for play in outcomes["riffle"]),
        f"{name}_cpu_ms_heap": heap.cpu_ms,
        f"{name}_cpu_ms_spark": spark.cpu_ms,
        f"{name}_s3_cpu_ms": median(play.server_cpu_ms for play in outcomes["riffle"]),
    }


def window(run: Player) -> Figures:
    """Tumbling windows in append mode: count and sum, 10 000 keys. Six windows are open, and each batch closes one."""
    return _rates("window", run, _side("window", keys=10_000), _side("window", keys=10_000))


def session(run: Player) -> Figures:
    """Session windows of 50 000 keys, a tenth of which end with each batch."""
    return _rates("session", run, _side("session", keys=50_000), _side("session", keys=50_000))


def dedup(run: Player) -> Figures:
    """De-duplication within the watermark. Nine of ten ids are new, and the same number of ids expires."""
    return _rates("dedup", run, _side("dedup"), _side("dedup"))


def join(run: Player) -> Figures:
    """An inner join of two streams, half of whose rows have a partner within ten minutes."""
    return _rates("join", run, _side("join"), _side("join"))


def close(run: Player) -> Figures:
    """Measure the time to close one window: close one percent of many windows, and of few."""
    many_keys, few = (
        run(Side("close", "riffle", {"keys": keys, "slices": SLICES}, 3 * SLICES, closes=False))
        for keys in (5_000_000, 500_000)
    )
    return {
        "close_ratio": many_keys.closing_s / few.closing_s,
        "close_us_a_window": many_keys.closing_s * 1e6,
        "close_us_a_window_of_a_tenth": few.closing_s * 1e6,
    }


def groups(run: Player) -> Figures:
    """A running count in ``applyInPandasWithState`` over 200 000 keys. Spark's batches are smaller."""
    ours = _side("groups", keys=200_000)
    theirs = _side("groups", keys=200_000, rows=SPARK_PYTHON_ROWS)
    return _rates("groups", run, replace(ours, closes=False), replace(theirs, closes=False))


def chain(run: Player) -> Figures:
    """Windows of windows in one query, compared with each stage in a query of its own."""
    sides = (_side("chain", keys=10_000), _side("window", keys=10_000), _side("second_alone", keys=10_000))
    # A window of a minute closes with every sixth batch.
    both, first, second = (_median_s(run.in_turn(replace(side, closes=False), "riffle")["riffle"]) for side in sides)
    return {
        "chain_ratio": both / (first + second),
        "chain_batch_s": both,
        "chain_batch_s_first": first,
        "chain_batch_s_second": second,
    }


def wrapper(run: Player) -> Figures:
    """A running count through the wrapper and through ``Stateful``, in turn."""
    side = replace(_side("count", IN_TURN, keys=200_000), closes=False)
    outcomes = run.in_turn(side, "riffle", "stateful")
    medians = {engine: _median_s(played) for engine, played in outcomes.items()}
    return {
        "wrapper_ratio": medians["riffle"] / medians["stateful"],
        "wrapper_batch_s": medians["riffle"],
        "wrapper_batch_s_stateful": medians["stateful"],
    }


CASES: dict[str, Case[Side, Played]] = {
    "window": window,
    "session": session,
    "dedup": dedup,
    "join": join,
    "close": close,
    "groups": groups,
    "chain": chain,
    "wrapper": wrapper,
}


def repetitions(names: Iterable[str], rounds: int) -> dict[str, int]:
    """Return the number of batches behind each median."""
    medians = [name for name in names if not name.endswith("_case_s")]
    batches = {name: rounds * (IN_TURN if name.startswith("wrapper") else MEASURED) for name in medians}
    batches |= {name: SLICES for name in medians if name.startswith("close")}
    theirs = [name for name in medians if name.endswith(("_spark", "_heap"))]
    return batches | dict.fromkeys(theirs, MEASURED)


def main() -> int:
    """Parse the command line and print the figures."""
    options = cases.parse_options(__doc__, CASES)
    if options.side:
        answer(play_here(json.loads(options.side)))
        return 0
    return cases.run_and_print(options, CASES, play, NOT_PLAYED, repetitions, TARGETS)


if __name__ == "__main__":
    sys.exit(main())
