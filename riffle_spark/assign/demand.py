"""Group tasks into rows of alike tasks, and compute where each may stay and how many each member should have."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board, count_copies_that_fit
from riffle_spark.assign.counts import Bounds, Demand
from riffle_spark.assign.model import AssignSettings

FreeSet = tuple[int, ...] | None
"""The members on which a task costs no move; ``None`` for all members."""
Range = tuple[list[int], list[int]]
"""The fewest and the most tasks of each member."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AlikeTasks:
    """Tasks grouped into rows: each task's row, each row's group and allowed members, and the user's costs by task and
    member (empty without).
    """

    row_of: tuple[int, ...]
    group: tuple[str, ...]
    allowed: npt.NDArray[np.bool_]
    costs: tuple[tuple[int | None, ...], ...]


def group_alike_tasks(board: Board, settings: AssignSettings) -> AlikeTasks:
    """Group the tasks into rows. Tasks of a row have the same group and may go to the same members.

    Three things split a group: a user's cost, quarantined members, and a drain while a lost member is awaited. In the
    last case the tasks of the drained member go to live members. A cost that allows a task nowhere is ignored.
    """
    costs = _evaluate_user_costs(board, settings)
    keys: dict[tuple[str, tuple[bool, ...]], int] = {}
    row_of_task = []
    for t, task in enumerate(board.tasks):
        owner = board.owners[t]
        eligible_members = board.placeable if owner == NOBODY or board.placeable[owner] else board.may_own
        allowed = eligible_members
        if costs:
            allowed = tuple(may and cost is not None for may, cost in zip(eligible_members, costs[t], strict=True))
            allowed = allowed if any(allowed) else eligible_members
        if board.quarantined and board.quarantined[t]:
            unquarantined = tuple(may and not board.is_quarantined(t, m) for m, may in enumerate(allowed))
            allowed = unquarantined if any(unquarantined) else allowed
        row_of_task.append(keys.setdefault((task.id.group, allowed), len(keys)))
    matrix = np.array([allowed for _, allowed in keys], bool).reshape(len(keys), len(board.members))
    return AlikeTasks(tuple(row_of_task), tuple(group for group, _ in keys), matrix, costs)


def _evaluate_user_costs(board: Board, settings: AssignSettings) -> tuple[tuple[int | None, ...], ...]:
    """Return the user's cost of each task (outer) on each member (inner), ``None`` where it is not allowed; empty
    without a cost function.
    """
    rule = settings.user_cost
    if rule is None:
        return ()
    return tuple(tuple(rule(task, member) for member in board.members) for task in board.tasks)


def find_free_sets(board: Board, rows: AlikeTasks) -> list[FreeSet]:
    """Return for each task the members on which it costs no move: its pin, its owner if that may stay, or the most
    caught-up members. ``None`` stands for all members.
    """
    single = {m: (m,) for m in range(len(board.members))}
    free_sets: list[FreeSet] = []
    for t, incumbent in enumerate(board.incumbents):
        if board.pins[t] != NOBODY:
            free_sets.append(single[board.pins[t]])
        elif incumbent != NOBODY and rows.allowed[rows.row_of[t], incumbent] and _may_stay(board, t):
            free_sets.append(single[incumbent])
        else:
            free_sets.append(_find_most_caught_up(board, t, rows))
    return free_sets


def _may_stay(board: Board, task: int) -> bool:
    """Return whether the task's present (or awaited) owner may keep it: it is awaited, has just returned, or is as
    caught up as any other member.
    """
    incumbent = board.incumbents[task]
    ranks = board.copy_ranks[task]
    if incumbent != board.owners[task] or ranks.get(incumbent, 1) == 0:
        return True
    own_rank = board.rank(task, incumbent)
    return all(rank >= own_rank or not board.placeable[m] for m, rank in ranks.items())


def _find_most_caught_up(board: Board, task: int, rows: AlikeTasks) -> FreeSet:
    """Return the members that may own the task and have the most caught-up copies, or ``None`` (all members) if no copy
    is closer than starting empty.
    """
    eligible_members: Sequence[bool] = board.may_own
    if rows.costs or board.quarantined:
        eligible_members = [may and bool(rows.allowed[rows.row_of[task], m]) for m, may in enumerate(eligible_members)]
    copy_ranks = [(rank, m) for m, rank in board.copy_ranks[task].items() if eligible_members[m]]
    without_copy = board.rank_without_copy[task]
    lowest = min(copy_ranks)[0] if copy_ranks else without_copy
    if not any(eligible_members) or (lowest >= without_copy and len(copy_ranks) < sum(eligible_members)):
        return None
    return tuple(sorted(m for rank, m in copy_ranks if rank == lowest))


def compute_fair_bounds(board: Board, rows: AlikeTasks, settings: AssignSettings) -> Bounds:
    """Return the fewest and the most tasks that each member should have: in all (tasks of other kinds included) and of
    each row.
    """
    slots = board.placeable_slots
    count = len(board.tasks) + sum(board.other_task_counts)
    fits = count_copies_that_fit(board, count)
    limits = None if fits is None else [fit if slot else 0 for fit, slot in zip(fits, slots, strict=True)]
    fair = fair_range(count, slots, limits)
    if (
        settings.store_balance > 0
        and not any(board.other_task_counts)
        and all(incumbent != NOBODY for incumbent in board.incumbents)
    ):
        fair = _keep_present_range(board, fair)
    low, high = _row_bounds(board, rows, fair)
    return Bounds(low, high, np.array(fair[0], np.int64), np.array(fair[1], np.int64))


def _keep_present_range(board: Board, fair: Range) -> Range:
    """Return ``fair``, or the range of the present counts if these are at least as level per slot.

    With unequal capacities fair shares may be further apart than the present shares. Then nothing needs to move.
    """
    slots = board.placeable_slots
    members_with_slots = [m for m, slot in enumerate(slots) if slot]
    counts = np.bincount(np.array(board.incumbents, np.int64), minlength=len(slots))
    if len({slots[m] for m in members_with_slots}) == 1 or any(counts[m] for m in range(len(slots)) if not slots[m]):
        return fair
    ratios = [counts[m] / slots[m] for m in members_with_slots]
    least = min(ratios)
    highest = max(ratios)
    apart = max(fair[1][m] / slots[m] for m in members_with_slots) - min(
        fair[1][m] / slots[m] for m in members_with_slots
    )
    if highest - least > min(1.0, apart):
        return fair
    return [math.ceil(least * slot) for slot in slots], [math.floor(highest * slot) for slot in slots]


def _row_bounds(board: Board, rows: AlikeTasks, fair: Range) -> tuple[Ints, Ints]:
    """Return the fewest and the most tasks of each row on each member (rows x members).

    They are wide enough for every total within ``fair``.
    """
    slots = board.placeable_slots
    totals = np.bincount(np.array(rows.row_of, np.int64), minlength=len(rows.group))
    low = np.zeros(rows.allowed.shape, np.int64)
    high = np.zeros(rows.allowed.shape, np.int64)
    other_tasks = np.array(board.other_task_counts)
    member_low, member_high = (np.maximum(np.array(side, np.int64) - other_tasks, 0) for side in fair)
    uniform = len({slot for slot in slots if slot}) == 1
    count = max(1, len(rows.row_of))
    for row, total in enumerate(totals.tolist()):
        allowed = [slot if may else 0 for slot, may in zip(slots, rows.allowed[row].tolist(), strict=True)]
        if not any(allowed):
            continue
        low[row], high[row] = fair_range(total, allowed)
        if not uniform:
            low[row] = np.minimum(low[row], member_low * total // count)
            high[row] = np.maximum(high[row], -(-member_high * total // count))
        if rows.group.count(rows.group[row]) > 1:
            low[row] = 0
    return low, high


def choose_single_members(
    board: Board, rows: AlikeTasks, free_sets: Sequence[FreeSet], bounds: Bounds
) -> list[FreeSet]:
    """Return the free sets with each set of several members reduced to one member with room, the smallest sets first.
    ``None`` stays.
    """
    slots = board.placeable_slots
    narrow = list(free_sets)
    fixed_counts = _count_by_row(rows, free_sets)
    load = fixed_counts.sum(axis=0)
    choices = [(len(free), t, free) for t, free in enumerate(free_sets) if free is not None and len(free) > 1]
    high = bounds.high
    member_high = bounds.member_high
    for _, t, free in sorted(choices):
        row = rows.row_of[t]
        full = {m: bool(load[m] >= member_high[m]) + bool(fixed_counts[row, m] >= high[row, m]) for m in free}
        member = min(free, key=lambda m: (full[m], load[m] / max(slots[m], 1), fixed_counts[row, m] - high[row, m], m))
        narrow[t] = (member,)
        fixed_counts[row, member] += 1
        load[member] += 1
    return narrow


def _count_by_row(rows: AlikeTasks, free_sets: Sequence[FreeSet]) -> Ints:
    """Return a rows x members matrix of the number of tasks whose free set is that single member."""
    counts = np.zeros(rows.allowed.shape, np.int64)
    single = [(rows.row_of[t], free[0]) for t, free in enumerate(free_sets) if free is not None and len(free) == 1]
    if single:
        np.add.at(counts, tuple(np.array(single, np.int64).T), 1)
    return counts


def count_demand(
    board: Board, rows: AlikeTasks, free_sets: Sequence[FreeSet], bounds: Bounds, settings: AssignSettings
) -> Demand:
    """Return the tasks as counts per row and member, the input of ``balance_counts``.

    Free sets have one member or are ``None``.
    """
    free_sets_without_owner = [
        free if incumbent == NOBODY else None for free, incumbent in zip(free_sets, board.incumbents, strict=True)
    ]
    pinned = [None if pin == NOBODY else free for free, pin in zip(free_sets, board.pins, strict=True)]
    anywhere = np.array([rows.row_of[t] for t, free in enumerate(free_sets) if free is None], np.int64)
    fewest_first = settings.store_balance == 0
    return Demand(
        owned=_count_by_row(rows, free_sets),
        strays=_count_by_row(rows, free_sets_without_owner),
        pinned_units=_count_by_row(rows, pinned),
        free=np.bincount(anywhere, minlength=len(rows.group)).astype(np.int64),
        allowed=rows.allowed,
        bounds=bounds,
        other_task_counts=np.array(board.other_task_counts, np.int64),
        slots=np.array(board.placeable_slots, np.int64),
        store_weight=round(100 * settings.store_balance),
        instance_weight=round(10_000 * settings.instance_balance),
        move_price=len(board.tasks) + 1 if fewest_first else 8,
        stray_price=-len(board.tasks) if fewest_first else 1,
        stateless=all(task.kind == "stateless" for task in board.tasks),
    )


def fair_range(count: int, slots: Sequence[int], limits: Sequence[int] | None = None) -> Range:
    """Return the fewest and the most of ``count`` tasks that each member should have, in proportion to its slots.
    Members without slots get none.

    ``limits`` caps the tasks of single members. The others take the rest.

    >>> fair_range(5, [1, 1, 2])
    ([1, 1, 3], [1, 1, 3])
    """
    if limits is None and len({slot for slot in slots if slot}) == 1:
        return _equal_range(count, slots)
    limits = [count if slot else 0 for slot in slots] if limits is None else limits
    step = _loads_of_one_task(slots)
    final_load = _find_final_load(count, slots, limits)
    fewest = [min(-(-final_load // step[m]) - 1, limits[m]) if step[m] else 0 for m in range(len(slots))]
    highest = [min(final_load // step[m], limits[m]) if step[m] else 0 for m in range(len(slots))]
    if sum(highest) <= count:
        return highest, highest
    return [max(0, low) for low in fewest], highest


def _equal_range(count: int, slots: Sequence[int]) -> Range:
    """Return the fair range for members that have equal slots or none."""
    members = sum(1 for slot in slots if slot)
    low, remainder = divmod(count, members)
    high = low + (1 if remainder else 0)
    return [low if slot else 0 for slot in slots], [high if slot else 0 for slot in slots]


def _loads_of_one_task(slots: Sequence[int]) -> list[int]:
    """Return the load that one task puts on each member: a whole number, smaller with more slots; 0 for members without
    slots.
    """
    unit = math.lcm(*(slot for slot in slots if slot)) if any(slots) else 1
    return [unit // slot if slot else 0 for slot in slots]


def _find_final_load(count: int, slots: Sequence[int], limits: Sequence[int]) -> int:
    """Place ``count`` tasks one by one on the member with the lowest load and room within its limit.

    Return the load that the last task reached.
    """
    step = _loads_of_one_task(slots)
    total = sum(slots)
    shares = [min(count * slot // total, limits[m]) if slot else 0 for m, slot in enumerate(slots)]
    heap = [((shares[m] + 1) * step[m], m) for m in range(len(shares)) if step[m] and shares[m] < limits[m]]
    heapq.heapify(heap)
    final_load = 0
    for _ in range(count - sum(shares)):
        if not heap:
            break
        load, m = heapq.heappop(heap)
        final_load = max(final_load, load)
        shares[m] += 1
        if shares[m] < limits[m]:
            heapq.heappush(heap, (load + step[m], m))
    if final_load:
        return final_load
    loads = [(shares[m] * step[m], shares[m] < limits[m]) for m in range(len(slots)) if step[m]]
    return max((load for load, may_grow in loads if may_grow), default=0) or max((load for load, _ in loads), default=0)
