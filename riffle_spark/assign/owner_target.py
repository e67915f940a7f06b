"""Where owners should be if every copy were warm. Knows the order of the goals, and existing copies. Does not know who
is caught up now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.board import NOBODY, Board
from riffle_spark.assign.counts import Demand, balanced_counts
from riffle_spark.assign.demand import AlikeTasks, FreeSet, demand_of, free_sets, rows_of
from riffle_spark.assign.flow import Network, TaskClass, solve
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_weights import is_weighed, weighed_target
from riffle_spark.assign.racks import Zones, rack_cost, zones_of

__all__ = ["owner_target", "seat_tasks", "with_copies_first"]

SHADE = 16
"""What one part read by an owner counts in parts that its standbys will have to read because of its place."""
Ints = npt.NDArray[np.int64]


def owner_target(board: Board, base: Ints, settings: AssignSettings, *, racks: bool) -> list[int]:
    """Return the member each task should be owned by in the end; ``base`` is what members carry already."""
    if not board.tasks:
        return []
    rows = rows_of(board, settings)
    sets = free_sets(board, rows)
    if is_weighed(board) and not racks and not rows.costs:
        return weighed_target(board, rows, sets, settings.balance_band)
    seated = list(sets)
    demand = demand_of(board, rows, seated, base, settings)
    if not racks and not rows.costs:
        kept = _still_good(board, rows, _Bounds.of(demand, None, settings))
        return kept or seat_tasks(board, rows, seated, balanced_counts(demand), strays_first=demand.stray_price < 0)
    if not racks:
        settings = replace(settings, rack_aware_assignment_traffic_cost=0)
    bounds = _Bounds.of(demand, balanced_counts(demand), settings)
    kept = _still_good(board, rows, bounds)
    found = _cheapest(board, rows, sets, bounds, settings)
    if kept and _read_cost(board, rows, kept, settings) <= _read_cost(board, rows, found, settings):
        return kept
    return found


def _still_good(board: Board, rows: AlikeTasks, bounds: _Bounds) -> list[int] | None:
    """Return the last assignment's target if nothing speaks against it: then no plan is changed half-way."""
    counts = np.zeros(rows.allowed.shape, np.int64)
    for t, aim in enumerate(board.aims):
        wanted = board.pins[t] if board.pins[t] != NOBODY else aim
        returned = board.homes[t] != board.owners[t]
        if aim == NOBODY or aim != wanted or (returned and aim != board.homes[t]) or not rows.allowed[rows.of[t], aim]:
            return None
        counts[rows.of[t], aim] += 1
    total = counts.sum(axis=0)
    by_row = counts if bounds.by_row else total[None, :]
    fair = (total >= bounds.member_low).all() and (total <= bounds.member_high).all()
    apart = (by_row >= bounds.low).all() and (by_row <= bounds.high).all()
    return list(board.aims) if fair and apart else None


def _read_cost(board: Board, rows: AlikeTasks, placed: list[int], settings: AssignSettings) -> int:
    """Return what a target costs but for the moves it takes."""
    weight, total = settings.rack_aware_assignment_traffic_cost, 0
    for t, m in enumerate(placed):
        total += rack_cost(board.tasks[t].owner_traffic, board.members[m].rack, weight)
        total += (rows.costs[t][m] or 0) if rows.costs else 0
    return total


class _Bounds:
    """The fair ranges, widened to the counts that are known to be possible; by row, or for all rows together."""

    def __init__(self, low: Ints, high: Ints, member_low: Ints, member_high: Ints, *, by_row: bool) -> None:
        self.low, self.high, self.member_low, self.member_high = low, high, member_low, member_high
        self.by_row = by_row

    @classmethod
    def of(cls, demand: Demand, counts: Ints | None, settings: AssignSettings) -> _Bounds:
        """Return the ranges of the demand; ``counts`` widens them to a placement that is known."""
        member_low, member_high = np.maximum(demand.member_low - demand.base, 0), demand.member_high - demand.base
        low, high = demand.low, demand.high
        if counts is not None:
            total = counts.sum(axis=0)
            member_low, member_high = np.minimum(member_low, total), np.maximum(member_high, total)
            low, high = np.minimum(low, counts), np.maximum(high, counts)
            if len(set(demand.slots[demand.slots > 0].tolist())) > 1:
                low, high = np.zeros_like(low), high + int(demand.stateless)
                if demand.stateless:
                    member_low, member_high = _loosened(demand, member_low, member_high, int(counts.sum()))
        if settings.rack_aware_assignment_strategy == "min_cost" or settings.store_balance == 0:
            return cls(member_low[None, :], member_high[None, :], member_low, member_high, by_row=False)
        return cls(low, high, member_low, member_high, by_row=True)


def _loosened(demand: Demand, low: Ints, high: Ints, count: int) -> tuple[Ints, Ints]:
    """Let tasks without state lie anywhere within one a slot: that gives unequal members room to save."""
    mean = (count + int(demand.base.sum())) // max(int(demand.slots.sum()), 1)
    least = np.maximum(mean * demand.slots - demand.base, 0)
    return np.minimum(low, least), np.maximum(high, (mean + 1) * demand.slots - demand.base)


def _cheapest(
    board: Board, rows: AlikeTasks, sets: list[FreeSet], bounds: _Bounds, settings: AssignSettings
) -> list[int]:
    zones = zones_of(board, single=bool(rows.costs))
    classes = _classes(board, rows, sets, zones, bounds, settings)
    network = Network(
        [each for each, _ in classes], zones.of, bounds.low, bounds.high, bounds.member_low, bounds.member_high
    )
    flow = solve(network)
    placed = [NOBODY] * len(board.tasks)
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for c, (each, tasks) in enumerate(classes):
        rest = _place_directly(placed, tasks, {m: flow.direct.get((c, m), 0) for m, _ in each.direct})
        for zone, _, _ in each.edges:
            count = flow.to_zone.get((c, zone), 0)
            waiting[each.row, zone] += rest[:count]
            rest = rest[count:]
        assert not rest, "the flow places every task"
    for (row, zone), tasks in sorted(waiting.items()):
        room = {m: flow.from_zone.get((row, m), 0) for m, of in enumerate(zones.of) if of == zone}
        _spread_in_zone(board, placed, sorted(tasks), room)
    return placed


def _classes(
    board: Board, rows: AlikeTasks, sets: list[FreeSet], zones: Zones, bounds: _Bounds, settings: AssignSettings
) -> list[tuple[TaskClass, list[int]]]:
    members: dict[TaskClass, list[int]] = defaultdict(list)
    scale = 2 * len(board.tasks) + 1
    stay = settings.rack_aware_assignment_non_overlap_cost * scale
    part = settings.rack_aware_assignment_traffic_cost * scale // SHADE
    shade = _Shade(board, zones, settings)
    for t in range(len(board.tasks)):
        shaded = shade.of(t)
        costs = [
            None if cost is None else cost * scale + shaded[zone] * part
            for zone, cost in enumerate(_zone_costs(board, rows, t, zones, settings))
        ]
        free = sets[t] or ()
        extra = 2 if sets[t] is None else stay + 2
        moved = tuple(None if cost is None else cost + extra for cost in costs)
        direct = {m: costs[zones.of[m]] or 0 for m in free if zones.of[m] >= 0}
        for m in _warm_members(board, t):
            of = zones.of[m]
            if m not in direct and of >= 0 and moved[of] is not None:
                direct[m] = (moved[of] or 0) - 1
        edges = tuple((zone, cost, 1) for zone, cost in enumerate(moved) if cost is not None)
        if board.pins[t] != NOBODY and direct:
            edges = ()
        row = rows.of[t] if bounds.by_row else 0
        members[TaskClass(row, edges, tuple(sorted(direct.items())))].append(t)
    return [(replace(each, count=len(tasks)), tasks) for each, tasks in members.items()]


def _warm_members(board: Board, task: int) -> list[int]:
    if board.absent[task] == 0:
        return []
    return [m for m, rank in board.ranks[task].items() if rank == 0 and board.placeable[m]]


def _zone_costs(
    board: Board, rows: AlikeTasks, task: int, zones: Zones, settings: AssignSettings
) -> tuple[int | None, ...]:
    traffic = board.tasks[task].owner_traffic
    weight = settings.rack_aware_assignment_traffic_cost
    by_zone = [rack_cost(traffic, rack, weight) for rack in zones.racks]
    if not rows.costs:
        return tuple(by_zone)
    own: list[int | None] = [None] * len(by_zone)
    for m, zone in enumerate(zones.of):
        if zone >= 0 and rows.allowed[rows.of[task], m]:
            own[zone] = by_zone[zone] + (rows.costs[task][m] or 0)
    return tuple(own)


class _Shade:
    """What the standbys of a task must read across racks if its owner is in a zone: a tie-break for owners."""

    def __init__(self, board: Board, zones: Zones, settings: AssignSettings) -> None:
        self._board, self._zones = board, zones
        self._wanted = 0 if settings.rack_aware_assignment_tags else settings.num_standbys
        self._sizes = [zones.of.count(zone) for zone in range(len(zones.racks))]
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def of(self, task: int) -> tuple[int, ...]:
        """Return by zone of the owner the parts that its standbys read from elsewhere at least."""
        traffic = self._board.tasks[task].standby_traffic
        parts = tuple(traffic.parts_read_across(rack) for rack in self._zones.racks)
        if parts not in self._known:
            self._known[parts] = tuple(self._least(parts, zone) for zone in range(len(parts)))
        return self._known[parts]

    def _least(self, parts: tuple[int, ...], owner: int) -> int:
        left, total = self._wanted, 0
        for zone in sorted(range(len(parts)), key=lambda zone: parts[zone]):
            taken = min(left, self._sizes[zone] - (zone == owner))
            left -= taken
            total += taken * parts[zone]
        return total


def _place_directly(placed: list[int], tasks: list[int], room: dict[int, int]) -> list[int]:
    """Place as many tasks of a class on its single members as the flow says; return the others."""
    rest = sorted(tasks)
    for m, count in sorted(room.items()):
        for t in rest[:count]:
            placed[t] = m
        rest = rest[count:]
    return rest


def _spread_in_zone(board: Board, placed: list[int], tasks: list[int], room: dict[int, int]) -> None:
    """Share tasks out among the members of one zone: to a copy where there is one, else groups apart."""
    for t, m in with_copies_first(board, tasks, {m: count for m, count in room.items() if count}):
        if placed[t] == NOBODY and room[m]:
            placed[t] = m
            room[m] -= 1
    crowd: dict[tuple[str, int], int] = defaultdict(int)
    for t in tasks:
        if placed[t] != NOBODY:
            crowd[board.tasks[t].id.group, placed[t]] += 1
    for t in tasks:
        if placed[t] == NOBODY:
            group = board.tasks[t].id.group
            placed[t] = min((m for m in room if room[m]), key=lambda m: (crowd[group, m], -room[m], m))
            room[placed[t]] -= 1
            crowd[group, placed[t]] += 1


def seat_tasks(
    board: Board, rows: AlikeTasks, sets: list[FreeSet], counts: npt.NDArray[np.int64], *, strays_first: bool
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
    shares = iter([m for m in sorted(change) for _ in range(change[m])])
    for t in movable:
        if t in left and change[placed[t]] < 0:
            change[placed[t]] += 1
            placed[t] = next(shares)
            change[placed[t]] -= 1


def with_copies_first(board: Board, tasks: Iterable[int], shares: dict[int, int]) -> list[tuple[int, int]]:
    """Return (task, member) for every copy of a task at a member with a living, closest to caught up first."""
    if not shares:
        return []
    found = []
    for t in tasks:
        for m, rank in board.ranks[t].items():
            if m in shares and rank < max(board.absent[t], 1):
                free = rank == 0 and board.homes[t] == NOBODY
                found.append((not free, rank, m not in board.warmups[t], t, m))
    found.sort()
    return [(t, m) for *_, t, m in found]
