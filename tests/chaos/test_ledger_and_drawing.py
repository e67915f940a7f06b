"""The ledger of a chaos run finds lost, doubled and wrong rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.chaos.ledger import Call, Delivery, Ledger, Verdict, compare

Rows = list[tuple[int, int, int]]


def call(batch: int, rows: Rows, line: int = 0) -> Call:
    """Return a call of a sink with these rows: index, count, sum."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Call(Delivery("q", line, batch), *columns)


def ledger(*rows: tuple[int, int]) -> Ledger:
    """Return a ledger of two users."""
    counts, sums = np.array(rows, np.int64).T
    return Ledger(counts, sums)


MORE = [call(0, [(0, 1, 5)]), call(1, [(0, 2, 7), (1, 1, 4)])]
"""Three events of user 0, one of user 1."""
TOTALS = [call(0, [(0, 1, 5)]), call(1, [(0, 3, 12), (1, 1, 4)])]
"""The same events as running totals."""


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        (MORE, Verdict()),
        ([*MORE, call(1, [(1, 1, 4), (0, 2, 7)])], Verdict()),
        (MORE[:1], Verdict(lost=3, wrong=2)),
        (MORE[1:], Verdict(lost=1, wrong=1, missing=1)),
        ([*MORE, call(2, [(1, 2, 8)])], Verdict(doubled=2, wrong=1)),
        ([*MORE, call(0, [(0, 1, 6)])], Verdict(wrong=1, differing=1)),
        ([*MORE, call(1, [(0, 2, 7), (1, 1, 4)], line=1)], Verdict()),
        ([*MORE, call(0, [(0, 3, 12), (1, 1, 4)], line=1)], Verdict()),
        ([*MORE, call(2, [(0, 3, 12)], line=1)], Verdict(doubled=3, wrong=1)),
    ],
    ids=[
        "exact",
        "a repeated delivery",
        "a batch is lost",
        "the first batch is missing",
        "a row is counted twice",
        "a repeated delivery with other rows",
        "rolled back to the first",
        "rolled back before the first",
        "a rollback that removes nothing",
    ],
)
def test_the_ledger_counts_each_delivered_row_once(calls: list[Call], verdict: Verdict) -> None:
    """Rows that are added up: each delivery counts once, and deliveries removed by a rollback do not count."""
    assert compare(ledger((3, 12), (1, 4)), calls, running=False) == verdict


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        (TOTALS, Verdict()),
        ([*TOTALS, TOTALS[1]], Verdict()),
        (TOTALS[:1], Verdict(lost=3, wrong=2)),
        ([*TOTALS, call(2, [(0, 3, 12)])], Verdict(wrong=1)),
        ([call(0, [(0, 2, 5)]), call(1, [(0, 1, 5), (1, 1, 4)]), call(2, [(0, 3, 12)])], Verdict(wrong=1)),
    ],
    ids=["exact", "a repeated delivery", "a batch is lost", "a total is delivered twice", "a total decreases"],
)
def test_the_ledger_keeps_the_newest_running_total(calls: list[Call], verdict: Verdict) -> None:
    """Running totals: the newest counts, and a total that does not grow is wrong."""
    assert compare(ledger((3, 12), (1, 4)), calls, running=True) == verdict
