"""Matrices of cases of which ``./run test`` runs a sample."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

__all__ = ["sampled"]


def sampled(cases: Iterable[object], step: int) -> list[ParameterSet]:
    """Return all cases as parameters. ``./run test`` runs each ``every``-th of them, ``--all`` runs all."""
    return [
        pytest.param(case, marks=[] if number % step == 0 else pytest.mark.long) for number, case in enumerate(cases)
    ]
