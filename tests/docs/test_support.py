"""The table of tested versions is that of the stored outcomes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.spark_matrix import PAGE, Outcome, read_outcomes, read_report, run_pair, with_table

PAIR = Outcome("4.0.5", "3.11", "abc", "2026-11-26")


def test_the_page_shows_the_stored_outcomes() -> None:
    """``./run matrix`` writes both. An edit of one alone is noticed."""
    assert read_outcomes()
    assert PAGE.read_text() == with_table(PAGE.read_text(), read_outcomes())


def test_failed_tests_are_read_from_the_summary() -> None:
    """A pair with failures is shown with their number, and stored with their names."""
    failures = "FAILED tests/a.py::test_b[c] - assert 1\nERROR tests/a.py::test_d - no\n"
    outcome = read_report(f"{failures}1 failed, 40 passed, 2 skipped, 1 error in 3s", PAIR)
    assert outcome == replace(PAIR, passed=40, skipped=2, failed=("tests/a.py::test_b[c]", "tests/a.py::test_d"))
    assert outcome.cell == "2 of 42 failed"
    assert replace(PAIR, passed=7, sample=True).cell == "7 passed (sample)"


@pytest.mark.parametrize(("spark", "python"), [("3.5.9", "3.13"), ("4.3.0", "3.10")])
def test_a_pair_that_spark_does_not_support_runs_no_tests(spark: str, python: str) -> None:
    """Its cell is refused, with the reason that ``riffle_spark.configure`` has."""
    outcome = run_pair(spark, python, Path(sys.executable), [], ())
    assert (outcome.cell, outcome.passed) == ("refused", 0)
    assert f"does not support Python {python}" in outcome.refused
