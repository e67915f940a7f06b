"""Test matrices, of which ``./run test`` runs only a sample of the cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

__all__ = ["choose_cases", "mark_sample"]


def mark_sample(cases: Sequence[pytest.Function]) -> None:
    """Mark the cases that a test's mark ``sample`` does not choose as ``long`` and as ``rest``.

    The mark has either the ids of the chosen cases, or ``step=N`` for the first of each N cases that are not ``long``.
    """
    mark = cases[0].get_closest_marker("sample")
    if mark is None:
        return
    fast = {case.callspec.id: case for case in cases if not case.get_closest_marker("long")}
    chosen = choose_cases(cases[0].nodeid.partition("[")[0], list(fast), *mark.args, **mark.kwargs)
    for id, case in fast.items():
        if id not in chosen:
            case.add_marker("long")
            case.add_marker("rest")


def choose_cases(name: str, ids: Sequence[str], *chosen: str, step: int = 1) -> Sequence[str]:
    """Return the ids of the cases of a test that ``./run test`` runs.

    Raises ``pytest.UsageError`` for an id that no case has. Otherwise a misspelt id would make every case ``long``.
    """
    if unknown := sorted(set(chosen) - set(ids)):
        raise pytest.UsageError(f"{name} samples unknown cases {unknown}. It has {sorted(ids)}.")
    return chosen or ids[::step]
