"""Matrices of cases of which ``./run test`` runs a sample."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

__all__ = ["mark_sample", "sampled"]


def sampled(cases: Iterable[object], step: int) -> list[ParameterSet]:
    """Return all cases as parameters. ``./run test`` runs each ``every``-th of them, ``--all`` runs all."""
    return [
        pytest.param(case, marks=[] if number % step == 0 else pytest.mark.long) for number, case in enumerate(cases)
    ]


def mark_sample(cases: list[pytest.Function]) -> None:
    """Mark the cases of one test as long that its mark ``sample`` does not choose.

    The mark has either the ids of the chosen cases, or ``step=N`` for the first of each N cases that are not long yet.
    Raises ``pytest.UsageError`` for an id that no case has, because the test would be long as a whole.
    """
    mark = cases[0].get_closest_marker("sample")
    if mark is None:
        return
    fast = [case for case in cases if not case.get_closest_marker("long")]
    ids = {case.callspec.id for case in cases}
    if unknown := [chosen for chosen in mark.args if chosen not in ids]:
        raise pytest.UsageError(f"{cases[0].originalname} samples unknown cases {unknown}. It has {sorted(ids)}.")
    for number, case in enumerate(fast):
        is_chosen = case.callspec.id in mark.args if mark.args else number % mark.kwargs["step"] == 0
        if not is_chosen:
            case.add_marker("long")
