"""Standbys where reading costs less, with the load kept. Knows traffic between racks. Does not know owners' goals.

KIP-925 swaps pairs while that helps. Without tags the same choice is a flow on racks, so it is exact: each task sends
its standbys to racks, the cheaper the better, and racks share them out among their members. With tags, whose values
must stay apart, pairs are swapped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from riffle_spark.assign.flow import Network, TaskClass, solve
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.racks import Zones, rack_cost, zones_of
from riffle_spark.assign.standby import Copies, level

__all__ = ["cheaper"]


def cheaper(copies: Copies, settings: AssignSettings) -> None:
    """Move standbys to where they read less across racks."""
    if not any(copies.standbys):
        return
    if settings.rack_aware_assignment_tags or settings.forced_awareness:
        _swap_pairs(copies, settings)
    else:
        _flow(copies, settings)


def _flow(copies: Copies, settings: AssignSettings) -> None:
    zones = zones_of(copies.board, single=False)
    classes: dict[TaskClass, list[int]] = defaultdict(list)
    for t in copies.stateful:
        if copies.standbys[t]:
            edges = _edges(copies, t, zones, settings)
            classes[TaskClass(0, edges, units=len(copies.standbys[t]))].append(t)
    owned = np.bincount(np.array(copies.owners, np.int64), minlength=len(zones.of)).astype(np.int64)
    load = np.array(copies.load, np.int64)
    low = np.maximum(np.minimum(np.array(copies.low), load) - owned, 0)
    high = np.maximum(np.array(copies.high), load) - owned
    counted = [replace(each, count=len(tasks)) for each, tasks in classes.items()]
    flow = solve(Network(counted, zones.of, low[None, :], high[None, :], low, high))
    for c, (each, tasks) in enumerate(classes.items()):
        totals = {zone: flow.to_zone.get((c, zone), 0) for zone, _, _ in each.edges}
        for t, wanted in _shares(each, tasks, totals):
            _settle(copies, t, wanted, zones)
    for zone in range(len(zones.racks)):
        level(copies, [m for m, of in enumerate(zones.of) if of == zone])


def _edges(copies: Copies, task: int, zones: Zones, settings: AssignSettings) -> tuple[tuple[int, int, int], ...]:
    """Return one edge a unit and zone: dearer where a copy is near already, and where none has been."""
    board = copies.board
    scale = 2 * sum(map(len, copies.standbys)) + 1
    stay = settings.rack_aware_assignment_non_overlap_cost * scale * scale + 1
    owner = copies.owners[task]
    traffic, weight = board.tasks[task].standby_traffic, settings.rack_aware_assignment_traffic_cost
    near = {m for m, rank in board.ranks[task].items() if rank == 0 and board.absent[task] > 0}
    near |= {*copies.standbys[task]}
    edges = []
    for zone, rack in enumerate(zones.racks):
        members = [m for m, of in enumerate(zones.of) if of == zone and m != owner]
        kept = sum(m in near for m in members)
        crowd = int(zones.of[owner] == zone)
        cost = rack_cost(traffic, rack, weight) * scale * scale
        for unit in range(min(len(members), len(copies.standbys[task]))):
            edges.append((zone, cost + (unit + crowd) * scale + (stay if unit >= kept else 0), 1))
    return tuple(edges)


def _shares(each: TaskClass, tasks: list[int], totals: dict[int, int]) -> list[tuple[int, dict[int, int]]]:
    """Share the zones of a class out among its tasks: the zone with most left first, none beyond its room."""
    room: dict[int, int] = defaultdict(int)
    for zone, _, units in each.edges:
        room[zone] += units
    shares = []
    for t in sorted(tasks):
        wanted: dict[int, int] = defaultdict(int)
        for _ in range(each.units):
            zone = max((z for z in totals if wanted[z] < room[z]), key=lambda z: (totals[z] - wanted[z], -z))
            wanted[zone] += 1
        for zone, units in wanted.items():
            totals[zone] -= units
        shares.append((t, dict(wanted)))
    return shares


def _settle(copies: Copies, task: int, wanted: dict[int, int], zones: Zones) -> None:
    """Give the task as many standbys in each zone as wanted, keeping those that are there."""
    board = copies.board
    left = dict(wanted)
    for m in sorted(copies.standbys[task], key=lambda m: (m not in board.standbys[task], board.rank(task, m), m)):
        zone = zones.of[m]
        if left.get(zone, 0) > 0:
            left[zone] -= 1
        else:
            copies.remove(task, m)
    for zone in sorted(left):
        for _ in range(left[zone]):
            holders = copies.copies(task)
            able = [m for m, of in enumerate(zones.of) if of == zone and m not in holders]
            copies.add(task, min(able, key=lambda m: copies.choice(task, m)))


def _swap_pairs(copies: Copies, settings: AssignSettings) -> None:
    """Swap standbys of two members while that reads less and parts no copies less well."""
    board, weight = copies.board, settings.rack_aware_assignment_traffic_cost

    def cost(task: int, member: int) -> int:
        return rack_cost(board.tasks[task].standby_traffic, board.members[member].rack, weight)

    for t in copies.stateful:
        for m in sorted(copies.standbys[t]):
            if cost(t, m):
                _swap_one(copies, t, m, cost)


def _swap_one(copies: Copies, task: int, member: int, cost: Callable[[int, int], int]) -> None:
    for u in copies.stateful:
        for other in sorted(copies.standbys[u]):
            saved = cost(task, member) + cost(u, other) - cost(task, other) - cost(u, member)
            if saved > 0 and _fits(copies, task, member, other) and _fits(copies, u, other, member):
                copies.remove(task, member)
                copies.remove(u, other)
                copies.add(task, other)
                copies.add(u, member)
                return


def _fits(copies: Copies, task: int, source: int, target: int) -> bool:
    holders = copies.copies(task)
    others = [m for m in holders if m != source]
    if target in holders or not copies.spread.may_join(target, others):
        return False
    return copies.spread.tag_conflicts(target, others) <= copies.spread.tag_conflicts(source, others)
