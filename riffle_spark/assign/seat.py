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


def seat_tasks(board: Board, rows: Rows, sets: list[FreeSet], counts: npt.NDArray[np.int64]) -> list[int]:
    """Return a member for every task, so that each row has its counts; free sets are singletons or ``None`` here."""
    placed = [wanted[0] if wanted is not None else NOBODY for wanted in sets]
    by_row: dict[int, list[int]] = defaultdict(list)
    for t, row in enumerate(rows.of):
        by_row[row].append(t)
    for row, tasks in by_row.items():
        room = {m: int(count) for m, count in enumerate(counts[row].tolist()) if count}
        stay: dict[int, list[int]] = defaultdict(list)
        for t in tasks:
            stay[placed[t]].append(t)
        _seat_row(board, placed, stay, room)
    return placed


def _seat_row(board: Board, placed: list[int], stay: dict[int, list[int]], room: dict[int, int]) -> None:
    leaving = {m: len(here) - room.get(m, 0) for m, here in stay.items() if len(here) > room.get(m, 0)}
    seats = {m: count - len(stay.get(m, ())) for m, count in room.items() if count > len(stay.get(m, ()))}
    movable = [t for m in sorted(leaving) for t in stay[m] if board.pins[t] == NOBODY]
    movable.sort(key=lambda t: (placed[t] != NOBODY and board.owners[t] == NOBODY, t))
    seated = set()
    for t, m in with_copies_first(board, movable, seats):
        if t not in seated and leaving[placed[t]] and seats[m]:
            leaving[placed[t]] -= 1
            seats[m] -= 1
            placed[t] = m
            seated.add(t)
    open_seats = iter([m for m in sorted(seats) for _ in range(seats[m])])
    for t in movable:
        if t not in seated and leaving[placed[t]]:
            leaving[placed[t]] -= 1
            placed[t] = next(open_seats)


def with_copies_first(board: Board, tasks: Iterable[int], seats: dict[int, int]) -> list[tuple[int, int]]:
    """Return (task, member) for every copy of a task at a member with a seat, closest to caught up first."""
    if not seats:
        return []
    found = []
    for t in tasks:
        for m, rank in board.ranks[t].items():
            if m in seats and rank < max(board.absent[t], 1):
                free = rank == 0 and board.owners[t] == NOBODY
                found.append((not free, rank, m not in board.warmups[t], t, m))
    found.sort()
    return [(t, m) for *_, t, m in found]
