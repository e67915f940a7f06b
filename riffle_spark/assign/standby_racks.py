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
from riffle_spark.assign.standby_target import Copies, level

__all__ = ["cheaper"]

ROUNDS = 4
TIE = 64
"""How many times a goal outweighs the next: traffic and moves, then racks apart, then copies that are near."""


def cheaper(copies: Copies, settings: AssignSettings) -> None:
    """Move standbys to where they read less across racks."""
    if not any(copies.standbys):
        return
    if settings.rack_aware_assignment_tags or settings.forced_awareness:
        _swap_pairs(copies, settings)
        return
    for _ in range(ROUNDS):
        if not _flow(copies, settings) or not level(copies, range(len(copies.load))):
            return


def _flow(copies: Copies, settings: AssignSettings) -> bool:
    """Send the standbys to racks where they read less; return whether there was anything to gain."""
    zones = zones_of(copies.board, single=False)
    prices = _Prices(copies, zones, settings)
    classes: dict[TaskClass, list[int]] = defaultdict(list)
    for t in copies.stateful:
        if copies.standbys[t]:
            classes[TaskClass(0, prices.edges(t), units=len(copies.standbys[t]))].append(t)
    owned = np.bincount(np.array(copies.owners, np.int64), minlength=len(zones.of)).astype(np.int64)
    load = np.array(copies.load, np.int64)
    low = np.maximum(np.minimum(np.array(copies.low), load) - owned, 0)
    high = np.maximum(np.array(copies.high), load) - owned
    counted = [replace(each, count=len(tasks)) for each, tasks in classes.items()]
    flow = solve(Network(counted, zones.of, low[None, :], high[None, :], low, high))
    members = [[m for m, of in enumerate(zones.of) if of == zone] for zone in range(len(zones.racks))]
    first = [tasks[0] for tasks in classes.values()]
    reads = sum(prices.read(first[c], zone) * units for (c, zone), units in flow.to_zone.items())
    if reads >= sum(prices.read(t, zones.of[m]) for t in copies.stateful for m in copies.standbys[t]):
        return False
    for c, (each, tasks) in enumerate(classes.items()):
        totals = {zone: flow.to_zone.get((c, zone), 0) for zone, _, _ in each.edges}
        for t, wanted in _shares(each, tasks, totals):
            _settle(copies, t, wanted, zones, members)
    for zone in members:
        level(copies, zone)
    return True


class _Prices:
    """What one standby more costs in a zone: traffic first, then a move, then a copy that is near already."""

    def __init__(self, copies: Copies, zones: Zones, settings: AssignSettings) -> None:
        self._copies, self._zones = copies, zones
        self._sizes = [zones.of.count(zone) for zone in range(len(zones.racks))]
        self._stay = settings.rack_aware_assignment_non_overlap_cost * TIE * TIE + 1
        self._weight = settings.rack_aware_assignment_traffic_cost * TIE * TIE
        self._known: dict[object, tuple[tuple[int, int, int], ...]] = {}

    def edges(self, task: int) -> tuple[tuple[int, int, int], ...]:
        """Return one edge a unit and zone, the same object for tasks that are alike."""
        board, units = self._copies.board, len(self._copies.standbys[task])
        traffic, home = board.tasks[task].standby_traffic, self._zones.of[self._copies.owners[task]]
        parts = tuple(traffic.parts_read_across(rack) for rack in self._zones.racks)
        kept = self._kept(task)
        key = (parts, traffic.unit, home, units, kept)
        if key not in self._known:
            self._known[key] = tuple(
                (zone, each * self._weight // traffic.unit + self._extra(unit, zone == home, kept[zone]), 1)
                for zone, each in enumerate(parts)
                for unit in range(min(self._sizes[zone] - (zone == home), units))
            )
        return self._known[key]

    def read(self, task: int, zone: int) -> int:
        """Return what a standby in a zone reads across racks, in units of the flow's cost."""
        traffic = self._copies.board.tasks[task].standby_traffic
        return traffic.parts_read_across(self._zones.racks[zone]) * self._weight // traffic.unit

    def _extra(self, unit: int, with_owner: bool, kept: int) -> int:
        return (unit + with_owner) * TIE + (self._stay if unit >= kept else 0)

    def _kept(self, task: int) -> tuple[int, ...]:
        """Return how many members of each zone hold a copy that could stay, the owner's aside."""
        board = self._copies.board
        near = set(self._copies.standbys[task])
        if board.absent[task] > 0:
            near |= {m for m, rank in board.ranks[task].items() if rank == 0}
        near.discard(self._copies.owners[task])
        kept = [0] * len(self._sizes)
        for m in near:
            if self._zones.of[m] >= 0:
                kept[self._zones.of[m]] += 1
        return tuple(kept)


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


def _settle(copies: Copies, task: int, wanted: dict[int, int], zones: Zones, members: list[list[int]]) -> None:
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
            able = [m for m in members[zone] if m not in holders]
            copies.add(task, min(able, key=lambda m: (board.rank(task, m), copies.ratio(m), m)))


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
