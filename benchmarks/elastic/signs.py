"""Conditions on the reports of a running query."""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark import BatchReport

__all__ = ["CALM", "has_standbys", "is_calm", "is_shared", "is_warming", "owner_moves", "owning"]

CALM = 4
"""The number of batches without a move, warm-up or fetched copy after which a query is settled."""
Reports = Sequence[BatchReport]


def is_shared(reports: Reports, executors: int) -> bool:
    """Return whether this number of executors owns key-groups. The assignor decides on their balance (``is_calm``)."""
    return bool(reports) and owning(reports[-1]) == executors


def is_calm(reports: Reports) -> bool:
    """Return whether the last ``CALM`` batches had no move, no warm-up and no fetched copy."""
    last = reports[-CALM:]
    return len(last) == CALM and not any(
        report.moves or is_warming(report) or report.upkeep_restores or report.restores for report in last
    )


def has_standbys(reports: Reports, count: int) -> bool:
    """Return whether there is this number of standbys."""
    return bool(reports) and sum(reports[-1].standbys.values()) == count


def is_warming(report: BatchReport) -> bool:
    """Return whether warm-ups were running."""
    return any(report.warmups.values())


def owner_moves(report: BatchReport) -> int:
    """Return the number of owners that moved before the batch."""
    return sum(move["role"] == "owner" for move in report.moves)


def owning(report: BatchReport) -> int:
    """Return the number of executors that owned key-groups."""
    return sum(count > 0 for count in report.owners.values())
