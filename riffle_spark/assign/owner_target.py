"""Choose where owners should be if every copy had caught up.

Theory of operation. The inputs decide which of three methods runs:

1. *Fewest moves*, without racks and user costs: each member gets its fair number of tasks, and as few tasks as possible
   leave their owner (``balance_counts``).
2. *Lowest cost*, with racks or user costs: a min-cost flow of classes of alike tasks to zones of alike members, within
   the same bounds (``solve``). The costs are reads across racks, the user's cost, and moves.
3. *Measured work*, if the tasks have weights: ``level_by_weight`` levels the work. With racks or user costs it starts
   from the result of the flow.

Each method keeps the target of the last assignment if that is as good, so that a plan does not change half-way.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.counts import Bounds, Demand, balance_counts
from riffle_spark.assign.demand import (
    AlikeTasks,
    FreeSet,
    choose_single_members,
    compute_fair_bounds,
    count_demand,
    find_free_sets,
    group_alike_tasks,
)
from riffle_spark.assign.flow import Network, TaskClass, solve
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_weights import PlaceCost, band_excess, has_weights, level_by_weight
from riffle_spark.assign.racks import Zones, member_zones, rack_cost, rack_zones

STANDBY_PARTS = 16
"""How many parts read by standbys cost as much as one part read by the owner."""


def owner_target(board: Board, settings: AssignSettings, *, racks: bool) -> list[int]:
    """Return the owner that each task should have in the end, by position.

    ``racks``: whether reads across racks count.
    """
    if not board.tasks:
        return []
    rows = group_alike_tasks(board, settings)
    free_sets = find_free_sets(board, rows)
    if has_weights(board) and not racks and not rows.costs:
        return level_by_weight(board, rows, free_sets, settings)
    fair = compute_fair_bounds(board, rows, settings)
    narrow = choose_single_members(board, rows, free_sets, fair)
    demand = count_demand(board, rows, narrow, fair, settings)
    if not racks and not rows.costs:
        last_target = _last_target_if_valid(board, rows, _merge_rows_for_racks(_subtract_other_tasks(demand), settings))
        return last_target or _choose_with_fewest_moves(board, rows, narrow, demand)
    if not racks:
        settings = replace(settings, rack_aware_assignment_traffic_cost=0)
    bounds = _merge_rows_for_racks(_widen_bounds(demand), settings)
    last_target = _last_target_if_valid(board, rows, bounds)
    cheapest = _solve_by_flow(board, rows, free_sets, bounds, settings)
    cost = _place_cost(board, rows, settings)
    if has_weights(board):
        return _level_by_work(board, rows, cheapest, cost, settings)
    tasks = range(len(board.tasks))
    if last_target and sum(map(cost, tasks, last_target)) <= sum(map(cost, tasks, cheapest)):
        return last_target
    return cheapest


def _last_target_if_valid(board: Board, rows: AlikeTasks, bounds: Bounds) -> list[int] | None:
    """Return the last assignment's target if it still obeys all rules and is level, so that no plan changes half-way;
    else ``None``.
    """
    if not _obeys_rules(board, rows, board.last_target):
        return None
    counts = np.zeros(rows.allowed.shape, np.int64)
    np.add.at(counts, (list(rows.row_of), list(board.last_target)), 1)
    total = counts.sum(axis=0)
    by_row = counts if bounds.by_row else total[None, :]
    fair = (total >= bounds.member_low).all() and (total <= bounds.member_high).all()
    apart = (by_row >= bounds.low).all() and (by_row <= bounds.high).all()
    return list(board.last_target) if fair and apart else None


def _obeys_rules(board: Board, rows: AlikeTasks, target: Sequence[int]) -> bool:
    """Return whether a target places all tasks on allowed members, pinned tasks at their pins, and the tasks of awaited
    and returned members on these members.
    """
    for t, member in enumerate(target):
        is_off_its_member = board.incumbents[t] not in (board.owners[t], member)
        is_off_its_pin = board.pins[t] not in (NOBODY, member)
        if member == NOBODY or is_off_its_member or is_off_its_pin or not rows.allowed[rows.row_of[t], member]:
            return False
    return True


def _place_cost(board: Board, rows: AlikeTasks, settings: AssignSettings) -> PlaceCost:
    """Return the function that computes the cost of a task on a member: its reads across racks, and the user's cost."""

    def cost(task: int, member: int) -> int:
        read_cost = rack_cost(board.tasks[task].owner_traffic, board.members[member].rack, settings)
        return read_cost + ((rows.costs[task][member] or 0) if rows.costs else 0)

    return cost


def _level_by_work(
    board: Board, rows: AlikeTasks, target: Sequence[int], cost: PlaceCost, settings: AssignSettings
) -> list[int]:
    """Return ``target`` levelled by measured work, or the last assignment's target if that is as level and as cheap."""
    levelled_target = level_by_weight(board, rows, [(m,) for m in target], settings, cost)
    if not _obeys_rules(board, rows, board.last_target):
        return levelled_target

    def worth(owners: Sequence[int]) -> tuple[float, int]:
        return band_excess(board, rows, owners, settings), sum(map(cost, range(len(owners)), owners))

    return list(board.last_target) if worth(board.last_target) <= worth(levelled_target) else levelled_target


def _subtract_other_tasks(demand: Demand) -> Bounds:
    """Return the bounds of a demand's own tasks, without the tasks of other kinds on the members."""
    bounds = demand.bounds
    low = np.maximum(bounds.member_low - demand.other_task_counts, 0)
    return replace(bounds, member_low=low, member_high=bounds.member_high - demand.other_task_counts)


def _widen_bounds(demand: Demand) -> Bounds:
    """Return the bounds widened so that the balanced counts of the demand are within them."""
    own_bounds = _subtract_other_tasks(demand)
    counts = balance_counts(demand)
    total = counts.sum(axis=0)
    low = np.minimum(own_bounds.low, counts)
    high = np.maximum(own_bounds.high, counts)
    member_low = np.minimum(own_bounds.member_low, total)
    member_high = np.maximum(own_bounds.member_high, total)
    if len(set(demand.slots[demand.slots > 0].tolist())) > 1:
        low = np.zeros_like(low)
        high = high + int(demand.stateless)
        if demand.stateless:
            # Within one task per slot, unequal members have room to save costs.
            mean = (demand.units + int(demand.other_task_counts.sum())) // max(int(demand.slots.sum()), 1)
            member_low = np.minimum(member_low, np.maximum(mean * demand.slots - demand.other_task_counts, 0))
            member_high = np.maximum(member_high, (mean + 1) * demand.slots - demand.other_task_counts)
    return Bounds(low, high, member_low, member_high)


def _merge_rows_for_racks(bounds: Bounds, settings: AssignSettings) -> Bounds:
    """Return the bounds with all rows merged into one if racks have precedence over the spread of groups, or the spread
    has no weight. Return them unchanged otherwise.
    """
    if settings.rack_aware_assignment_strategy != "min_cost" and settings.store_balance != 0:
        return bounds
    low = bounds.member_low[None, :]
    high = bounds.member_high[None, :]
    return replace(bounds, low=low, high=high, by_row=False)


def _solve_by_flow(
    board: Board, rows: AlikeTasks, free_sets: Sequence[FreeSet], bounds: Bounds, settings: AssignSettings
) -> list[int]:
    """Return the owner of each task by the min-cost flow.

    The flow gives tasks to single members first, then to zones of alike members. Tasks pinned to members that may own
    no other tasks are not in the flow.
    """
    zones = member_zones(board) if rows.costs or board.quarantined else rack_zones(board)
    classes = _group_by_cost(board, rows, free_sets, bounds, _ZoneCosts(board, rows, zones, settings))
    flow = solve(Network([task_class for task_class, _ in classes], zones.zone_of, bounds))
    target = [pin if zones.zone_of[pin] == NOBODY else NOBODY for pin in board.pins]
    tasks_by_zone: dict[tuple[int, int], list[int]] = defaultdict(list)
    for c, (task_class, tasks) in enumerate(classes):
        unplaced_tasks = _place_directly(target, tasks, {m: flow.direct.get((c, m), 0) for m, _ in task_class.direct})
        for zone, _, _ in task_class.edges:
            count = flow.to_zone.get((c, zone), 0)
            tasks_by_zone[task_class.row, zone] += unplaced_tasks[:count]
            unplaced_tasks = unplaced_tasks[count:]
        assert not unplaced_tasks, "the flow places every task"
    for (row, zone), tasks in sorted(tasks_by_zone.items()):
        room = {m: flow.from_zone.get((row, m), 0) for m in zones.members[zone]}
        _spread_in_zone(board, target, sorted(tasks), room)
    return target


class _ZoneCosts:
    """The cost of owning a task in each zone: the owner's reads and the user's cost, then the standbys' reads."""

    def __init__(self, board: Board, rows: AlikeTasks, zones: Zones, settings: AssignSettings) -> None:
        """Scale the prices in the settings so that all costs are whole numbers."""
        self._board = board
        self._rows = rows
        self.zones = zones
        self._settings = settings
        self.scale = 3 * len(board.tasks) + 1
        self.stay = settings.rack_aware_assignment_non_overlap_cost * self.scale
        self._part = settings.rack_aware_assignment_traffic_cost * self.scale // STANDBY_PARTS
        self._standbys = 0 if settings.rack_aware_assignment_tags else settings.num_standbys
        self._parts_by_reads: dict[tuple[int, ...], tuple[int, ...]] = {}

    def costs_by_zone(self, task: int) -> list[int | None]:
        """Return the cost of owning the task in each zone; ``None`` for a zone that is not allowed."""
        parts = self._standby_parts(task)
        unit = self._board.tasks[task].standby_traffic.unit
        return [
            None if cost is None else cost * self.scale + parts[zone] * self._part // unit
            for zone, cost in enumerate(self._owner_costs(task))
        ]

    def _owner_costs(self, task: int) -> list[int] | list[int | None]:
        """Return the cost of the owner's reads in each zone plus the user's cost; ``None`` for a zone that is not
        allowed.
        """
        traffic = self._board.tasks[task].owner_traffic
        by_zone = [rack_cost(traffic, rack, self._settings) for rack in self.zones.racks]
        if not self._rows.costs and not self._board.quarantined:
            return by_zone
        users = self._rows.costs[task] if self._rows.costs else (0,) * len(self.zones.zone_of)
        owner_costs: list[int | None] = [None] * len(by_zone)
        for m, zone in enumerate(self.zones.zone_of):
            if zone >= 0 and self._rows.allowed[self._rows.row_of[task], m]:
                owner_costs[zone] = by_zone[zone] + (users[m] or 0)
        return owner_costs

    def _standby_parts(self, task: int) -> tuple[int, ...]:
        """Return, for each zone that the owner may be in, the fewest parts that the task's standbys read across
        racks.
        """
        traffic = self._board.tasks[task].standby_traffic
        parts = tuple(traffic.parts_read_across(rack) for rack in self.zones.racks)
        if parts not in self._parts_by_reads:
            self._parts_by_reads[parts] = tuple(self._fewest_parts(parts, zone) for zone in range(len(parts)))
        return self._parts_by_reads[parts]

    def _fewest_parts(self, parts: tuple[int, ...], zone: int) -> int:
        """Return the fewest parts that the standbys read if the owner is in ``zone``.

        ``parts`` has the parts that one standby reads in each zone.
        """
        remaining = self._standbys
        total = 0
        for standby_zone in sorted(range(len(parts)), key=lambda number: parts[number]):
            count = min(remaining, len(self.zones.members[standby_zone]) - (standby_zone == zone))
            remaining -= count
            total += count * parts[standby_zone]
        return total


def _group_by_cost(
    board: Board, rows: AlikeTasks, free_sets: Sequence[FreeSet], bounds: Bounds, costs: _ZoneCosts
) -> list[tuple[TaskClass, list[int]]]:
    """Group the tasks into classes with the same costs for zones and single members.

    Return each class with its tasks.
    """
    alike: dict[TaskClass, list[int]] = defaultdict(list)
    zone_of = costs.zones.zone_of
    for t, free in enumerate(free_sets):
        pinned = board.pins[t] != NOBODY
        if pinned and zone_of[board.pins[t]] == NOBODY:
            continue
        stays = costs.costs_by_zone(t)
        # Tasks that were just taken over cost slightly more, so that they do not move twice.
        extra = 2 if free is None else costs.stay + 2 + (board.incumbents[t] == NOBODY)
        costs_of_move = tuple(None if cost is None else cost + extra for cost in stays)
        direct = {m: stays[zone_of[m]] or 0 for m in free or () if zone_of[m] >= 0}
        for m in () if pinned else _caught_up_members(board, t):
            cost = costs_of_move[zone_of[m]] if m not in direct and zone_of[m] >= 0 else None
            if cost is not None:
                direct[m] = cost - 1
        edges = tuple((zone, cost, 1) for zone, cost in enumerate(costs_of_move) if cost is not None)
        if pinned:
            edges = ()
        row = rows.row_of[t] if bounds.by_row else 0
        alike[TaskClass(row, edges, tuple(sorted(direct.items())))].append(t)
    return [(replace(task_class, count=len(tasks)), tasks) for task_class, tasks in alike.items()]


def _caught_up_members(board: Board, task: int) -> list[int]:
    """Return the members with a caught-up copy that should own tasks; empty if a member without a copy counts as caught
    up too.
    """
    if board.rank_without_copy[task] == 0:
        return []
    return [m for m, rank in board.copy_ranks[task].items() if rank == 0 and board.placeable[m]]


def _place_directly(target: list[int], tasks: list[int], room: dict[int, int]) -> list[int]:
    """Assign tasks of a class to single members in ``target``, as many to each as ``room`` allows.

    Return the other tasks.
    """
    unplaced_tasks = sorted(tasks)
    for m, count in sorted(room.items()):
        for t in unplaced_tasks[:count]:
            target[t] = m
        unplaced_tasks = unplaced_tasks[count:]
    return unplaced_tasks


def _spread_in_zone(board: Board, target: list[int], tasks: list[int], room: dict[int, int]) -> None:
    """Assign tasks to the members of a zone in ``target``: first to members with a usable copy, then so that the tasks
    of a group are spread. ``room`` has the free places of each member.
    """
    for t, m in _list_usable_copies(board, tasks, room):
        if target[t] == NOBODY and room[m]:
            target[t] = m
            room[m] -= 1
    crowd: dict[tuple[str, int], int] = defaultdict(int)
    for t in tasks:
        if target[t] != NOBODY:
            crowd[board.tasks[t].id.group, target[t]] += 1
    for t in tasks:
        if target[t] == NOBODY:
            group = board.tasks[t].id.group
            target[t] = min((m for m in room if room[m]), key=lambda m: (crowd[group, m], -room[m], m))
            room[target[t]] -= 1
            crowd[group, target[t]] += 1


def _choose_with_fewest_moves(
    board: Board, rows: AlikeTasks, free_sets: Sequence[FreeSet], demand: Demand
) -> list[int]:
    """Return the owner of each task, so that each row has its balanced counts.

    Free sets have one member or are ``None``. With a negative stray price, tasks that lost their owner move first.
    """
    target = [NOBODY if free is None else free[0] for free in free_sets]
    counts = balance_counts(demand).tolist()
    by_row: dict[int, list[int]] = defaultdict(list)
    for t, row in enumerate(rows.row_of):
        by_row[row].append(t)
    for row, tasks in by_row.items():
        room = dict(enumerate(counts[row]))
        room[NOBODY] = 0
        for t in tasks:
            room[target[t]] -= 1
        movable = [t for t in tasks if room[target[t]] < 0 and board.pins[t] == NOBODY]
        movable.sort(key=lambda t: (target[t] != NOBODY and board.incumbents[t] == NOBODY, target[t], t))
        if demand.stray_price < 0:
            _move_to_members_with_room(board, target, [t for t in movable if board.incumbents[t] == NOBODY], room)
            movable = [t for t in movable if board.incumbents[t] != NOBODY]
        _move_to_members_with_room(board, target, movable, room)
    return target


def _move_to_members_with_room(board: Board, target: list[int], tasks: list[int], room: dict[int, int]) -> None:
    """Move tasks in ``target`` from members with too many (negative ``room``) to members with too few, first to members
    with a usable copy.
    """
    tasks_to_move = set(tasks)
    for t, m in _list_usable_copies(board, tasks, room):
        if t in tasks_to_move and room[target[t]] < 0 < room[m]:
            room[target[t]] += 1
            room[m] -= 1
            target[t] = m
            tasks_to_move.remove(t)
    places = iter([m for m in sorted(room) for _ in range(room[m])])
    for t in tasks:
        if t in tasks_to_move and room[target[t]] < 0:
            room[target[t]] += 1
            target[t] = next(places)
            room[target[t]] -= 1


def _list_usable_copies(board: Board, tasks: Sequence[int], room: dict[int, int]) -> list[tuple[int, int]]:
    """Return (task, member) for each copy of these tasks that is at a member with room and closer to caught up than
    starting empty. The closest are first.
    """
    able = {m for m, count in room.items() if count > 0}
    if not able:
        return []
    choices = []
    for t in tasks:
        for m, rank in board.copy_ranks[t].items():
            if m in able and rank < max(board.rank_without_copy[t], 1):
                free = rank == 0 and board.incumbents[t] == NOBODY
                choices.append((not free, rank, m not in board.warmups[t], t, m))
    choices.sort()
    return [(t, m) for *_, t, m in choices]
