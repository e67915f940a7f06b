"""The benchmark of hot keys and of several stores: its figures."""

from __future__ import annotations

from benchmarks.skew import figures_of


def test_a_part_compares_medians_and_counts_reads() -> None:
    """The ratio is of median batches; four reads of 100 rows are 400; a side without CPU has no figure of it."""
    plain = {"seconds": [1.0, 1.0, 9.0], "read_rows": 100, "cpu_ms": 700.0}
    compared = {"seconds": [3.0, 2.0, 2.0], "read_rows": 400}
    figures = figures_of("together", plain, compared, rows=100)
    assert (figures["together_ratio"], figures["together_input_reads"]) == (2.0, 4.0)
    assert (figures["together_batch_ms_one_store"], figures["together_batch_ms_four_stores"]) == (1_000.0, 2_000.0)
    assert (figures["together_cpu_ms_one_store"], "together_cpu_ms_four_stores" in figures) == (700.0, False)
