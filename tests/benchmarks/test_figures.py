"""Benchmarks compute named figures from the measured seconds, rows and CPU of each side."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.blocks.__main__ import CASES as BLOCK_CASES
from benchmarks.blocks.block_play import NOT_PLAYED as NO_BLOCK
from benchmarks.blocks.block_play import Played as BlockPlayed
from benchmarks.blocks.block_play import Side as BlockSide
from benchmarks.elastic.gets import PIECE_BYTES, Span, pieces
from benchmarks.elastic.replay import one_owner
from benchmarks.kit.cases import Player, run
from benchmarks.kit.cpu import BatchCpu, own_cpu_s, tree_cpu_s
from benchmarks.kit.side import Code
from benchmarks.processor import CASES, ComparedResults
from benchmarks.processors.play import NOT_PLAYED, Played, Side, play
from benchmarks.totals import figures as totals
from riffle_spark.assign.model import AssignSettings, Member
from tests.kit.assign_views import view

FACTS = {
    "snapshots": 200,
    "snapshot_key_groups": 128,
    "key_groups": 128,
    "requests": 4,
    "upkeep_requests": 0.5,
    "sealed_bytes": 2e6,
    "phases": {},
    "slots": {},
    "keys_held": 10_000_000,
}


def _took(*seconds: float, rows: int = 100_000, pss_mb: float = 1_000.0) -> dict[str, Any]:
    return {**FACTS, "seconds": seconds, "rows": rows, "peak_pss_mb": pss_mb}


def _figures(**sides: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return totals.figures({totals.Side(*name.split("__")): rounds for name, rounds in sides.items()})


def test_ratios_compare_medians_over_all_rounds() -> None:
    """Ratios to the built-in stores and to the older revision compare the medians of all batches of all rounds."""
    figures = _figures(
        ours__rows=[_took(1.0, 1.0), _took(2.0)],
        before__rows=[_took(3.0)],
        builtin__rows=[_took(5.0, pss_mb=800.0)],
        builtin_heap__rows=[_took(0.9)],
    )
    assert (figures["ratio_vs_builtin_heap"], figures["rows_per_s_builtin_heap"]) == (0.9, 111_111)
    assert (figures["ratio_vs_builtin"], figures["ratio_vs_before"]) == (5.0, 3.0)
    assert (figures["rows_per_s"], figures["rows_per_s_before"]) == (100_000, 33_333)
    assert (figures["batches"], figures["snapshots"], figures["snapshot_key_groups"]) == (3, 200, 128)
    assert figures["peak_memory_ratio"] == 1.25


def test_the_cpu_share_of_upkeep_is_the_cpu_that_is_saved_without_it() -> None:
    """The CPU share of upkeep is one minus the CPU without upkeep by the CPU with it. It needs both sides."""
    with_upkeep = _took(0.5) | {"cpu_ms": 800.0, "server_cpu_ms": 60.0}
    without = _took(0.4) | {"cpu_ms": 700.0, "server_cpu_ms": 40.0}
    figures = _figures(ours__upkeep=[with_upkeep], without_upkeep__upkeep=[without])
    assert (figures["upkeep_cpu_share"], figures["upkeep_batch_ms_without_upkeep"]) == (0.125, 400)
    assert "upkeep_cpu_share" not in _figures(ours__upkeep=[with_upkeep])


def test_each_part_of_a_benchmark_has_separate_figures() -> None:
    """Large batches, small batches and many keys have separate figures. A part that did not run has none."""
    figures = _figures(
        ours__million=[_took(1.0, rows=1_000_000)],
        builtin__million=[_took(4.0, rows=1_000_000)],
        ours__fixed=[_took(0.3)],
        builtin__fixed=[_took(0.4)],
        builtin_heap__million=[_took(0.5, rows=1_000_000)],
        builtin_heap__fixed=[_took(0.2)],
        ours__one_million_keys=[_took(0.5)],
        ours__ten_million_keys=[_took(0.6)],
    )
    assert (figures["ratio_vs_builtin_million"], figures["rows_per_s_million"]) == (4.0, 1_000_000)
    assert (figures["ratio_vs_builtin_heap_million"], figures["rows_per_s_million_builtin_heap"]) == (0.5, 2_000_000)
    assert (figures["fixed_ratio_heap"], figures["fixed_ms_builtin_heap"]) == (1.5, 200)
    assert (figures["fixed_ratio"], figures["fixed_ms"], figures["fixed_ms_builtin"]) == (0.75, 300, 400)
    assert (figures["totals_ten_million_ratio"], figures["totals_keys_held"]) == (1.2, 10_000_000)
    assert "ratio_vs_builtin" not in figures
    assert "peak_memory_ratio" not in figures


def test_python_operators_are_compared_by_rate() -> None:
    """Spark's Python operators are compared by rows per second, because their batches are smaller."""
    figures = _figures(
        ours__rows=[_took(0.5)],
        apply_in_pandas__python=[_took(10.0, rows=20_000)],
        transform_with_state__python=[_took(20.0, rows=20_000)],
        transform_with_state__python_fixed=[_took(0.7, rows=100)],
    )
    assert (figures["ratio_vs_apply_in_pandas"], figures["ratio_vs_transform_with_state_in_pandas"]) == (100.0, 200.0)
    assert (figures["rows_per_s_apply_in_pandas"], figures["fixed_ms_transform_with_state"]) == (2_000, 700)


def test_the_95th_percentile_of_twenty_batches_is_the_second_slowest() -> None:
    """The 95th percentile of twenty batches is the second slowest, for riffle_spark and for Spark's default store."""
    figures = _figures(ours__tail=[_took(*[1.0] * 18, 1.5, 9.0)], builtin_heap__tail=[_took(1.0, 1.0, 3.0)])
    assert (figures["p95_over_median"], figures["p95_over_median_builtin_heap"]) == (1.5, 3.0)
    assert "rows_per_s" not in figures


def test_each_side_has_the_median_cpu_of_its_processes() -> None:
    """Each side has the CPU of its processes as a median over rounds. riffle_spark also has that of the S3 server."""

    def took(cpu_ms: float) -> dict[str, Any]:
        return {**_took(1.0), "cpu_ms": cpu_ms, "server_cpu_ms": cpu_ms / 10}

    figures = _figures(
        ours__rows=[took(1_000.0), took(1_200.0), took(2_000.0)],
        builtin_heap__rows=[took(700.0)],
        ours__million=[took(5_000.0)],
        builtin__fixed=[took(300.0)],
    )
    assert (figures["cpu_ms"], figures["s3_cpu_ms"], figures["cpu_ms_builtin_heap"]) == (1_200, 120, 700)
    assert (figures["cpu_ms_million"], figures["fixed_cpu_ms_builtin"]) == (5_000, 300)
    assert not {"s3_cpu_ms_builtin_heap", "fixed_s3_cpu_ms_builtin"} & figures.keys()


def test_cpu_is_counted_after_the_warm_up() -> None:
    """CPU is counted after the warm-up batches. A batch that ends between two samples counts at the second sample."""
    times = iter([(10.0, 1.0), (16.0, 2.5)])
    cpu = BatchCpu(60, [], lambda _: next(times))
    for batches in (0, 30, 59, 61, 62, 63):
        cpu.record_batches(batches)
    cpu.record_batches(64, is_last=True)
    assert cpu.figures() == {"cpu_ms": 2_000.0, "server_cpu_ms": 500.0}
    assert BatchCpu(5, []).figures() == {}


def test_cpu_of_a_process_tree_includes_ended_children() -> None:
    """The CPU of a process tree includes ended children. A process that does not exist has none."""
    before_s = tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert tree_cpu_s(os.getpid()) > before_s
    assert 0 < own_cpu_s([os.getpid()]) < tree_cpu_s(os.getpid())
    assert own_cpu_s([1 << 30]) == 0.0


def test_blocks_are_compared_with_both_stores() -> None:
    """Each block has a ratio, a rate and CPU for Spark's default store and for RocksDB."""
    seconds = {"riffle": 1.0, "spark": 4.0, "spark_heap": 0.5}

    def play_block(side: BlockSide, _: Code) -> BlockPlayed:
        assert side.sizes["batches"] - side.measured == 60
        return BlockPlayed([9.0, seconds[side.engine]], 100, 1, [0], cpu_ms=1_000 * seconds[side.engine])

    player = Player(play_block, NO_BLOCK, seconds)
    figures = run(["window"], BLOCK_CASES, player)
    assert (figures["window_ratio"], figures["window_ratio_heap"]) == (4.0, 0.5)
    assert (figures["window_rows_per_s"], figures["window_rows_per_s_heap"]) == (100.0, 200.0)
    assert (figures["window_cpu_ms"], figures["window_cpu_ms_heap"], figures["window_cpu_ms_spark"]) == (1e3, 500, 4e3)


def test_the_older_revision_runs_after_each_side_of_riffle_spark_only() -> None:
    """With an older revision, each side of riffle_spark is followed by that revision. Other sides are not."""
    with_one = totals.sides_of("keys", against=True)
    assert [side.engine for side in with_one] == ["ours", "before", "ours", "before"]
    engines = ["ours", "configured", "stateless", "builtin_heap", "builtin"]
    assert [side.engine for side in totals.sides_of("rows", against=False)] == engines
    assert [side.engine for side in totals.sides_of("python", against=True)].count("before") == 0


def _played(*seconds: float) -> Played:
    return Played(list(seconds), rows=100, measured=2, worker_peak_mb=1.0)


def test_the_ratio_to_a_revision_is_the_median_of_ratios_per_round() -> None:
    """The ratio to the older revision is the median of the ratios of each round."""
    compared_times = ComparedResults([_played(1, 1), _played(2, 2)], [_played(2, 2), _played(8, 8)], _played(9, 9))
    assert compared_times.vs_before() == 3.0
    assert compared_times.batch_s() == 1.5
    assert compared_times.rows_per_s == pytest.approx(100 / 1.5)


def test_figures_of_sides_that_did_not_run_are_not_reported() -> None:
    """Sides that did not run have NaN as their figures, and NaN figures are not reported."""
    player = Player(play, NOT_PLAYED, [], rounds=2)
    assert math.isnan(player(Side("counting", "before", {}, 1)).median_s())
    assert run(["row_form"], CASES, player).keys() == {"row_form_case_s"}


def test_adjacent_parts_of_an_object_are_read_in_one_range() -> None:
    """Adjacent parts of one object are read in one range of at most 8 MB. Parts with a gap between them are not."""
    parts = [Span("a", 10, 20), Span("b", 20, 30), Span("a", 0, 10), Span("a", 21, 22)]
    assert pieces(parts) == [Span("a", 0, 20), Span("a", 21, 22), Span("b", 20, 30)]
    assert pieces([Span("c", 5, PIECE_BYTES + 6)]) == [
        Span("c", 5, PIECE_BYTES + 5),
        Span("c", PIECE_BYTES + 5, PIECE_BYTES + 6),
    ]


def test_the_owner_keeps_all_tasks_when_a_second_member_joins() -> None:
    """With the one-owner assignment, the owner keeps all tasks when a member with a smaller name joins."""
    layout = view("b:0-3 c:")
    assigned = one_owner(layout, AssignSettings())
    assert set(assigned.owners.values()) == {"b"}
    assert set(assigned.standbys.values()) == {("c",)}
    assert one_owner(
        layout.__class__((*layout.members, Member("a")), layout.tasks, layout.owners), AssignSettings()
    ) == (type(assigned)(assigned.owners, dict.fromkeys(assigned.owners, ("a",)), target=assigned.target))
