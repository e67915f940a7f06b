"""Conditions on the reports of a running query."""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark import BatchReport

__all__ = ["CALM", "has_standbys", "is_calm", "is_shared", "is_warming", "owner_moves", "owning"]

CALM = 4
"""How many batches without any move, warm-up or fetched copy make a query count as settled."""
Reports = Sequence[BatchReport]


def is_shared(reports: Reports, executors: int) -> bool:
    """Tell whether so many executors own key-groups. How evenly is the assignor's to say: see ``is_calm``."""
    return bool(reports) and owning(reports[-1]) == executors


def is_calm(reports: Reports) -> bool:
    """Tell whether the last few batches saw no move, no warm-up and no copy fetched."""
    last = reports[-CALM:]
    return len(last) == CALM and not any(
        report.moves or is_warming(report) or report.upkeep_restores or report.restores for report in last
    )


def has_standbys(reports: Reports, count: int) -> bool:
    """Tell whether there are so many standbys."""
    return bool(reports) and sum(reports[-1].standbys.values()) == count


def is_warming(report: BatchReport) -> bool:
    """Tell whether warm-ups were under way."""
    return any(report.warmups.values())


def owner_moves(report: BatchReport) -> int:
    """Return how many owners moved before the batch."""
    return sum(move["role"] == "owner" for move in report.moves)


def owning(report: BatchReport) -> int:
    """Return how many executors owned key-groups."""
    return sum(count > 0 for count in report.owners.values())
