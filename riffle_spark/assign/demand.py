"""Tasks that are alike, where each would rather be, and how many each member should have. Knows groups, pins and
capacities. Does not place any.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board, copies_that_fit
from riffle_spark.assign.counts import Demand
from riffle_spark.assign.model import AssignSettings

__all__ = ["AlikeTasks", "FreeSet", "Range", "demand_of", "fair_range", "free_sets", "rows_of"]

FreeSet = tuple[int, ...] | None
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlikeTasks:
    """Each task's row, each row's group, and where each row may go; ``costs`` are the user's, by task and member."""

    of: tuple[int, ...]
    group: tuple[str, ...]
    allowed: npt.NDArray[np.bool_]
    costs: tuple[tuple[int | None, ...], ...]


def rows_of(board: Board, settings: AssignSettings) -> AlikeTasks:
    """Sort the tasks into rows; only a user's rule can split a group."""
    costs = _user_costs(board, settings)
    keys: dict[tuple[str, tuple[bool, ...]], int] = {}
    of = []
    for t, task in enumerate(board.tasks):
        allowed = _allowed(board, costs[t]) if costs else board.placeable
        of.append(keys.setdefault((task.id.group, allowed), len(keys)))
    matrix = np.array([allowed for _, allowed in keys], bool).reshape(len(keys), len(board.members))
    return AlikeTasks(tuple(of), tuple(group for group, _ in keys), matrix, costs)


def _user_costs(board: Board, settings: AssignSettings) -> tuple[tuple[int | None, ...], ...]:
    rule = settings.user_cost
    if rule is None:
        return ()
    return tuple(tuple(rule(task, member) for member in board.members) for task in board.tasks)


def _allowed(board: Board, costs: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Return where the rule lets a task go; a rule that lets it go nowhere is not followed."""
    allowed = tuple(may and cost is not None for may, cost in zip(board.placeable, costs, strict=True))
    return allowed if any(allowed) else board.placeable


def free_sets(board: Board, rows: AlikeTasks) -> list[FreeSet]:
    """Return the free set of every task."""
    everyone = [live and may for live, may in zip(board.live, board.placeable, strict=True)]
    single = {m: (m,) for m in range(len(board.members))}
    sets: list[FreeSet] = []
    for t, home in enumerate(board.homes):
        if board.pins[t] != NOBODY:
            sets.append(single[board.pins[t]])
        elif home != NOBODY and rows.allowed[rows.of[t], home] and _may_stay(board, t, home):
            sets.append(single[home])
        else:
            sets.append(_best_elsewhere(board, t, everyone, rows))
    return sets


def _may_stay(board: Board, task: int, home: int) -> bool:
    """Tell whether the home is awaited, has just returned, or is as caught up as any."""
    ranks = board.ranks[task]
    if home != board.owners[task] or ranks.get(home, 1) == 0:
        return True
    own = board.rank(task, home)
    return all(rank >= own or not board.placeable[m] for m, rank in ranks.items())


def _best_elsewhere(board: Board, task: int, everyone: list[bool], rows: AlikeTasks) -> FreeSet:
    among = everyone
    if rows.costs:
        among = [may and bool(rows.allowed[rows.of[task], m]) for m, may in enumerate(everyone)]
    return board.most_caught_up(task, among) if any(among) else None


def demand_of(board: Board, rows: AlikeTasks, sets: list[FreeSet], base: Ints, settings: AssignSettings) -> Demand:
    """Count tasks by row and the member they would rather be on, and add the fair ranges.

    A task that has several such members is seated at one of them, and its set in ``sets`` narrowed to it.
    """
    slots = [member.slots if may else 0 for member, may in zip(board.members, board.placeable, strict=True)]
    totals = np.bincount(np.array(rows.of, np.int64), minlength=len(rows.group)).astype(np.int64)
    count = int(totals.sum() + base.sum())
    fits = copies_that_fit(board.members, board.tasks, count)
    most = None if fits is None else [m if slot else 0 for m, slot in zip(fits, slots, strict=True)]
    member_low, member_high = fair_range(count, slots, most)
    if settings.store_balance > 0 and not base.any() and all(home != NOBODY for home in board.homes):
        member_low, member_high = _or_as_level_as_now(board, base, slots, (member_low, member_high))
    low, high = _row_ranges(rows, totals, slots, (np.array(member_low) - base, np.array(member_high) - base))
    owned, held, free = _seated(board, rows, sets)
    fewest_first = settings.store_balance == 0
    _seat_several(rows, sets, owned, (high, np.array(member_high) - base, slots))
    return Demand(
        owned=owned,
        strays=_strays(board, rows, sets, owned),
        held=held,
        free=free,
        allowed=rows.allowed,
        low=low,
        high=high,
        base=base,
        member_low=np.array(member_low, np.int64),
        member_high=np.array(member_high, np.int64),
        slots=np.array(slots, np.int64),
        store_weight=round(100 * settings.store_balance),
        instance_weight=round(10_000 * settings.instance_balance),
        move_price=len(board.tasks) + 1 if fewest_first else 8,
        stray_price=-len(board.tasks) if fewest_first else 1,
        stateless=all(task.kind == "stateless" for task in board.tasks),
    )


def _or_as_level_as_now(board: Board, base: Ints, slots: list[int], fair: Range) -> Range:
    """Return the fair range, or, where the present is at least as level per slot, the range that it spans.

    With unequal capacities fair shares may lie further apart than tasks do now; then nothing needs to move.
    """
    able = [m for m, slot in enumerate(slots) if slot]
    now = base + np.bincount(np.array(board.homes, np.int64), minlength=len(slots))
    if len({slots[m] for m in able}) == 1 or any(now[m] for m in range(len(slots)) if not slots[m]):
        return fair
    ratios = [now[m] / slots[m] for m in able]
    least, most = min(ratios), max(ratios)
    apart = max(fair[1][m] / slots[m] for m in able) - min(fair[1][m] / slots[m] for m in able)
    if most - least > min(1.0, apart):
        return fair
    return [math.ceil(least * slot) for slot in slots], [math.floor(most * slot) for slot in slots]


def _seated(board: Board, rows: AlikeTasks, sets: list[FreeSet]) -> tuple[Ints, Ints, Ints]:
    """Count the tasks with one place to be, those of them that are pinned there, and those that may be anywhere."""
    owned = np.zeros(rows.allowed.shape, np.int64)
    held, free = np.zeros_like(owned), np.zeros(len(owned), np.int64)
    for t, wanted in enumerate(sets):
        row = rows.of[t]
        if wanted is None:
            free[row] += 1
        elif len(wanted) == 1:
            owned[row, wanted[0]] += 1
            held[row, wanted[0]] += board.pins[t] != NOBODY
    return owned, held, free


def _strays(board: Board, rows: AlikeTasks, sets: list[FreeSet], owned: Ints) -> Ints:
    """Count the seated tasks that have no living owner."""
    strays = np.zeros_like(owned)
    for t, wanted in enumerate(sets):
        if wanted is not None and board.homes[t] == NOBODY:
            strays[rows.of[t], wanted[0]] += 1
    return strays


def _seat_several(
    rows: AlikeTasks, sets: list[FreeSet], owned: Ints, limits: tuple[Ints, npt.NDArray[np.int64], list[int]]
) -> None:
    """Seat the tasks with several places where there is room, those with the fewest places first."""
    high, member_high, slots = limits
    load = owned.sum(axis=0)
    several = [(len(wanted), t, wanted) for t, wanted in enumerate(sets) if wanted is not None and len(wanted) > 1]
    for _, t, wanted in sorted(several):
        row = rows.of[t]
        full = {m: bool(load[m] >= member_high[m]) + bool(owned[row, m] >= high[row, m]) for m in wanted}
        member = min(wanted, key=lambda m: (full[m], load[m] / max(slots[m], 1), owned[row, m] - high[row, m], m))
        sets[t] = (member,)
        owned[row, member] += 1
        load[member] += 1


def _row_ranges(rows: AlikeTasks, totals: Ints, slots: list[int], members: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return how many units of each row each member should have, wide enough for every fair total."""
    low, high = np.zeros(rows.allowed.shape, np.int64), np.zeros(rows.allowed.shape, np.int64)
    uniform = len({slot for slot in slots if slot}) == 1
    count = max(1, int(totals.sum()))
    for row, total in enumerate(totals.tolist()):
        allowed = rows.allowed[row].tolist()
        if not any(slot for slot, may in zip(slots, allowed, strict=True) if may):
            continue
        fair = fair_range(total, [slot if may else 0 for slot, may in zip(slots, allowed, strict=True)])
        low[row], high[row] = fair
        if not uniform:
            low[row] = np.minimum(low[row], np.maximum(members[0], 0) * total // count)
            high[row] = np.maximum(high[row], -(-np.maximum(members[1], 0) * total // count))
        if rows.group.count(rows.group[row]) > 1:
            low[row] = 0
    return low, high


Range = tuple[list[int], list[int]]


def fair_range(count: int, slots: Sequence[int], most: Sequence[int] | None = None) -> Range:
    """Return the fewest and the most tasks of ``count`` each member should have; a member of no slots gets none.

    ``most`` caps single members; what they cannot take goes to the others.

    >>> fair_range(5, [1, 1, 2])
    ([1, 1, 3], [1, 1, 3])
    """
    if most is None and len({slot for slot in slots if slot}) == 1:
        return _equal(count, slots)
    cap = [count if slot else 0 for slot in slots] if most is None else list(most)
    unit = lcm(*(slot for slot in slots if slot)) if any(slots) else 1
    step = [unit // slot if slot else 0 for slot in slots]
    total = sum(slots)
    shares = [min(count * slot // total, cap[m]) if slot else 0 for m, slot in enumerate(slots)]
    last = _fill(shares, cap, step, count)
    if last == 0:
        last = max((shares[m] * step[m] for m in range(len(slots)) if step[m] and shares[m] < cap[m]), default=0)
        last = last or max((shares[m] * step[m] for m in range(len(slots))), default=0)
    fewest = [min(-(-last // step[m]) - 1, cap[m]) if step[m] else 0 for m in range(len(slots))]
    highest = [min(last // step[m], cap[m]) if step[m] else 0 for m in range(len(slots))]
    if sum(highest) <= count:
        return highest, highest
    return [max(0, low) for low in fewest], highest


def _equal(count: int, slots: Sequence[int]) -> Range:
    members = sum(1 for slot in slots if slot)
    low, rest = divmod(count, members)
    high = low + (1 if rest else 0)
    return [low if slot else 0 for slot in slots], [high if slot else 0 for slot in slots]


def _fill(shares: list[int], cap: Sequence[int], step: Sequence[int], count: int) -> int:
    """Give out the shares that are left, one by one; return the load at which the last one went."""
    heap = [((shares[m] + 1) * step[m], m) for m in range(len(shares)) if step[m] and shares[m] < cap[m]]
    heapq.heapify(heap)
    last = 0
    for _ in range(count - sum(shares)):
        if not heap:
            return last
        load, m = heapq.heappop(heap)
        last = max(last, load)
        shares[m] += 1
        if shares[m] < cap[m]:
            heapq.heappush(heap, (load + step[m], m))
    return last
