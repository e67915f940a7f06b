"""Compute the cost of reading across racks, and move standbys to members with a lower cost (KIP-925).

KIP-925 swaps pairs of standbys while that helps. Without tags the choice is a flow from tasks to racks, and the result
is exact. With tags, equal values must stay apart, so pairs are swapped.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from riffle_spark.assign.board import Board
from riffle_spark.assign.counts import Bounds
from riffle_spark.assign.flow import Network, TaskClass, solve
from riffle_spark.assign.model import AssignSettings, Traffic, View
from riffle_spark.assign.standby_target import Copies, level_standbys, may_move

ROUNDS = 4
TIE = 64
"""How many times a goal outweighs the next: traffic and moves, different racks, existing copies."""


@dataclass(frozen=True, slots=True)
class Zones:
    """Sets of members that cost the same for any task: racks, or single members with a user's costs.

    ``zone_of`` is the zone of each member (-1: none). ``members`` and ``racks`` are lists per zone.
    """

    zone_of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    racks: tuple[str | None, ...]


def rack_zones(board: Board) -> Zones:
    """Return the placeable members grouped into one zone per rack. Members without a rack share a zone.

    Members that are not placeable have the zone -1.
    """
    rack_of = {member.rack or "": member.rack for member in board.members}
    members_of: dict[str, list[int]] = {}
    for m, member in enumerate(board.members):
        if board.placeable[m]:
            members_of.setdefault(member.rack or "", []).append(m)
    racks = sorted(members_of)
    zones = {m: zone for zone, rack in enumerate(racks) for m in members_of[rack]}
    of = tuple(zones.get(m, -1) for m in range(len(board.members)))
    return Zones(of, tuple(tuple(members_of[rack]) for rack in racks), tuple(rack_of[rack] for rack in racks))


def member_zones(board: Board) -> Zones:
    """Return one zone per member, for users' costs that differ by member."""
    able = [m for m, may in enumerate(board.placeable) if may]
    zones = {m: zone for zone, m in enumerate(able)}
    of = tuple(zones.get(m, -1) for m in range(len(board.members)))
    return Zones(of, tuple((m,) for m in able), tuple(board.members[m].rack for m in able))


def rack_cost(traffic: Traffic, rack: str | None, settings: AssignSettings) -> int:
    """Return the cost for a member in ``rack`` to read ``traffic``."""
    return settings.rack_aware_assignment_traffic_cost * traffic.parts_read_across(rack) // traffic.unit


def have_racks_effect(view: View, settings: AssignSettings) -> bool:
    """Return whether racks influence the assignment: there is a rack strategy, every member has a rack, and the racks
    lead to different costs.
    """
    if settings.rack_aware_assignment_strategy == "none" or any(member.rack is None for member in view.members):
        return False
    racks = sorted({member.rack for member in view.members if member.rack is not None})
    return any(
        len({traffic.parts_read_across(rack) for rack in racks}) > 1
        for task in view.tasks
        for traffic in (task.owner_traffic, task.standby_traffic)
    )


def rack_warnings(view: View, settings: AssignSettings) -> list[str]:
    """Return warnings if a rack strategy has no effect, or if tags and racks differ."""
    warnings = []
    if settings.rack_aware_assignment_strategy != "none" and not have_racks_effect(view, settings):
        without = sorted(member.id for member in view.members if member.rack is None)
        reason = f"the rack of {', '.join(without)} is unknown" if without else "all places cost the same"
        remedy = "Set the rack of every executor" if without else "Do nothing if the input is in no rack"
        warnings.append(
            f"[RIFFLE-0785] Racks have no effect, because {reason}. "
            f"What to do: {remedy}, or set rack_aware_assignment_strategy to none."
        )
    tags = settings.rack_aware_assignment_tags
    if tags and any(member.rack is not None for member in view.members):
        differing = sorted(m.id for m in view.members if m.rack is not None and m.attribute("rack") != m.rack)
        if "rack" not in tags or differing:
            members = f" of {', '.join(differing)}" if differing else ""
            warnings.append(
                f"[RIFFLE-0786] The tags {', '.join(tags)} differ from the racks{members}. "
                "Copies are spread by the tags. What to do: Add rack to rack_aware_assignment_tags, or remove the tags."
            )
    return warnings


def reduce_rack_traffic(copies: Copies, settings: AssignSettings) -> None:
    """Move standbys to members that read less across racks. No standby moves while a lost member is awaited."""
    if not any(copies.standbys) or not all(copies.board.live):
        return
    if settings.rack_aware_assignment_tags or settings.forced_awareness:
        _swap_pairs(copies, settings)
        return
    for _ in range(ROUNDS):
        if not _move_by_flow(copies, settings) or not level_standbys(copies, range(len(copies.load))):
            return


def _move_by_flow(copies: Copies, settings: AssignSettings) -> bool:
    """Move standbys to racks where they read less, by a min-cost flow. Return whether that reduced the reads."""
    zones = rack_zones(copies.board)
    costs = _StandbyCosts(copies, zones, settings)
    alike: dict[TaskClass, list[int]] = defaultdict(list)
    for t in copies.stateful:
        if copies.standbys[t]:
            alike[TaskClass(0, costs.edges(t), units=len(copies.standbys[t]))].append(t)
    classes = [(replace(task_class, count=len(tasks)), tasks) for task_class, tasks in alike.items()]
    flow = solve(Network([task_class for task_class, _ in classes], zones.zone_of, _standby_bounds(copies)))
    reads = sum(costs.read_cost(classes[c][1][0], zone) * units for (c, zone), units in flow.to_zone.items())
    if reads >= sum(costs.read_cost(t, zones.zone_of[m]) for t in copies.stateful for m in copies.standbys[t]):
        return False
    for c, (task_class, tasks) in enumerate(classes):
        totals = {zone: flow.to_zone.get((c, zone), 0) for zone, _, _ in task_class.edges}
        for t, by_zone in _share_by_task(task_class, tasks, totals):
            _place_by_zone(copies, t, zones, by_zone)
    for members in zones.members:
        level_standbys(copies, members)
    return True


def _standby_bounds(copies: Copies) -> Bounds:
    """Return the fewest and the most standbys that each member may have: its load bounds less its owned tasks.

    A member that is already below its lower bound need not gain any. A member above its upper bound may keep all.
    """
    load = np.array(copies.load, np.int64)
    owned = np.bincount(np.array(copies.owners, np.int64), minlength=len(load)).astype(np.int64)
    low = np.maximum(np.minimum(np.array(copies.low), load) - owned, 0)
    high = np.maximum(np.array(copies.high), load) - owned
    return Bounds(low[None, :], high[None, :], low, high, by_row=False)


class _StandbyCosts:
    """The cost of one more standby of a task in a zone: reads across racks first, then a move, then whether a copy
    exists.
    """

    def __init__(self, copies: Copies, zones: Zones, settings: AssignSettings) -> None:
        self._copies = copies
        self._zones = zones
        self._stay = settings.rack_aware_assignment_non_overlap_cost * TIE * TIE + 1
        self._weight = settings.rack_aware_assignment_traffic_cost * TIE * TIE
        self._apart = TIE * (self._weight + self._stay)
        self._edges_by_key: dict[object, tuple[tuple[int, int, int], ...]] = {}

    def edges(self, task: int) -> tuple[tuple[int, int, int], ...]:
        """Return the flow's edges of a task as (zone, cost, units): one edge per zone and standby that it may get.

        Alike tasks get the same object.
        """
        board = self._copies.board
        units = len(self._copies.standbys[task])
        traffic = board.tasks[task].standby_traffic
        owner_zone = self._zones.zone_of[self._copies.owners[task]]
        parts = tuple(traffic.parts_read_across(rack) for rack in self._zones.racks)
        reusable = self._count_reusable_copies(task)
        quarantined = board.quarantined[task] if board.quarantined else None
        key = (parts, traffic.unit, traffic.later, owner_zone, units, reusable, quarantined)
        if key not in self._edges_by_key:
            edges = []
            for zone, parts_read in enumerate(parts):
                holds_owner = zone == owner_zone
                for unit in range(min(self._count_places(task, zone), units)):
                    stay = self._stay if unit >= reusable[zone] else 0
                    crowd = (unit + holds_owner) * (self._apart if traffic.later else TIE)
                    edges.append((zone, parts_read * self._weight // traffic.unit + crowd + stay, 1))
            self._edges_by_key[key] = tuple(edges)
        return self._edges_by_key[key]

    def _count_places(self, task: int, zone: int) -> int:
        """Return how many standbys of a task a zone may have. The owner takes a place, too."""
        board = self._copies.board
        owner = self._copies.owners[task]
        if not board.quarantined:
            return len(self._zones.members[zone]) - (self._zones.zone_of[owner] == zone)
        return sum(m != owner and not board.is_quarantined(task, m) for m in self._zones.members[zone])

    def read_cost(self, task: int, zone: int) -> int:
        """Return the cost of the reads of one standby in a zone, in the flow's unit of cost."""
        traffic = self._copies.board.tasks[task].standby_traffic
        return traffic.parts_read_across(self._zones.racks[zone]) * self._weight // traffic.unit

    def _count_reusable_copies(self, task: int) -> tuple[int, ...]:
        """Return for each zone how many of its members, without the owner, have a copy of the task that could become a
        standby.
        """
        board = self._copies.board
        near = set(self._copies.standbys[task])
        if board.rank_without_copy[task] > 0:
            near |= {m for m, rank in board.copy_ranks[task].items() if rank == 0}
        near.discard(self._copies.owners[task])
        reusable = [0] * len(self._zones.racks)
        for m in near:
            if self._zones.zone_of[m] >= 0:
                reusable[self._zones.zone_of[m]] += 1
        return tuple(reusable)


def _share_by_task(
    task_class: TaskClass, tasks: Sequence[int], by_zone: dict[int, int]
) -> list[tuple[int, dict[int, int]]]:
    """Divide the units of a class of alike tasks in each zone among its tasks. Return (task, units by zone)."""
    room: dict[int, int] = defaultdict(int)
    for zone, _, units in task_class.edges:
        room[zone] += units
    remaining = dict(by_zone)
    shares = []
    for t in sorted(tasks):
        share: dict[int, int] = defaultdict(int)
        for _ in range(task_class.units):
            zone = max((z for z in remaining if share[z] < room[z]), key=lambda z: (remaining[z] - share[z], -z))
            share[zone] += 1
        for zone, units in share.items():
            remaining[zone] -= units
        shares.append((t, dict(share)))
    return shares


def _place_by_zone(copies: Copies, task: int, zones: Zones, by_zone: dict[int, int]) -> None:
    """Place a task's standbys so that each zone has its number in ``by_zone``. Present standbys stay if possible."""
    board = copies.board
    remaining = dict(by_zone)
    for m in sorted(copies.standbys[task], key=lambda m: (m not in board.standbys[task], board.rank(task, m), m)):
        zone = zones.zone_of[m]
        if remaining.get(zone, 0) > 0:
            remaining[zone] -= 1
        else:
            copies.remove(task, m)
    for zone in sorted(remaining):
        for _ in range(remaining[zone]):
            holders = copies.holders(task)
            able = [m for m in zones.members[zone] if m not in holders and not board.is_quarantined(task, m)]
            copies.add(task, min(able, key=lambda m: (board.rank(task, m), copies.copies_per_slot(m), m)))


def _swap_pairs(copies: Copies, settings: AssignSettings) -> None:
    """Swap standbys of two members while that reduces reads across racks and shares no more tags."""
    for t in copies.stateful:
        for m in sorted(copies.standbys[t]):
            if _read_cost(copies, t, m, settings):
                _swap_standby(copies, t, m, settings)


def _read_cost(copies: Copies, task: int, member: int, settings: AssignSettings) -> int:
    """Return the cost of the reads of a standby of the task on the member."""
    return rack_cost(copies.board.tasks[task].standby_traffic, copies.board.members[member].rack, settings)


def _swap_standby(copies: Copies, task: int, member: int, settings: AssignSettings) -> None:
    """Swap the task's standby on a member with the first standby of another task and member for which the reads get
    cheaper, if any.
    """
    cost = _read_cost(copies, task, member, settings)
    for u in copies.stateful:
        for partner in sorted(copies.standbys[u]):
            saved_cost = cost + _read_cost(copies, u, partner, settings)
            saved_cost -= _read_cost(copies, task, partner, settings) + _read_cost(copies, u, member, settings)
            if saved_cost > 0 and may_move(copies, task, member, partner) and may_move(copies, u, partner, member):
                copies.remove(task, member)
                copies.remove(u, partner)
                copies.add(task, partner)
                copies.add(u, member)
                return
