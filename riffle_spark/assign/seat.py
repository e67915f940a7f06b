"""From numbers to names: which tasks fill the counts. Knows existing copies. Does not know how the counts were found.

Where several tasks could move, those move whose copy is already at the destination, so that little is copied twice and
a warm-up that has begun is the one that is finished.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.rows import FreeSet, Rows

__all__ = ["seat_tasks", "with_copies_first"]


def seat_tasks(
    board: Board, rows: Rows, sets: list[FreeSet], counts: npt.NDArray[np.int64], *, strays_first: bool
) -> list[int]:
    """Return a member for every task, so that each row has its counts; free sets are singletons or ``None`` here.

    ``strays_first`` lets tasks that lost their owner leave before any other.
    """
    placed = [wanted[0] if wanted is not None else NOBODY for wanted in sets]
    by_row: dict[int, list[int]] = defaultdict(list)
    for t, row in enumerate(rows.of):
        by_row[row].append(t)
    for row, tasks in by_row.items():
        here: dict[int, int] = defaultdict(int)
        for t in tasks:
            here[placed[t]] += 1
        change = {m: int(count) - here.get(m, 0) for m, count in enumerate(counts[row].tolist())}
        change[NOBODY] = -here.get(NOBODY, 0)
        movable = [t for t in tasks if change[placed[t]] < 0 and board.pins[t] == NOBODY]
        movable.sort(key=lambda t: (placed[t] != NOBODY and board.homes[t] == NOBODY, placed[t], t))
        strays = [t for t in movable if board.homes[t] == NOBODY] if strays_first else movable
        for part in (strays, [t for t in movable if t not in set(strays)]):
            _move(board, placed, part, change)
    return placed


def _move(board: Board, placed: list[int], movable: list[int], change: dict[int, int]) -> None:
    """Move tasks from members with too many (``change`` below 0) to members with too few."""
    left = set(movable)
    for t, m in with_copies_first(board, movable, {m: by for m, by in change.items() if by > 0}):
        if t in left and change[placed[t]] < 0 < change[m]:
            change[placed[t]] += 1
            change[m] -= 1
            placed[t] = m
            left.remove(t)
    seats = iter([m for m in sorted(change) for _ in range(change[m])])
    for t in movable:
        if t in left and change[placed[t]] < 0:
            change[placed[t]] += 1
            placed[t] = next(seats)
            change[placed[t]] -= 1


def with_copies_first(board: Board, tasks: Iterable[int], seats: dict[int, int]) -> list[tuple[int, int]]:
    """Return (task, member) for every copy of a task at a member with a seat, closest to caught up first."""
    if not seats:
        return []
    found = []
    for t in tasks:
        for m, rank in board.ranks[t].items():
            if m in seats and rank < max(board.absent[t], 1):
                free = rank == 0 and board.homes[t] == NOBODY
                found.append((not free, rank, m not in board.warmups[t], t, m))
    found.sort()
    return [(t, m) for *_, t, m in found]
