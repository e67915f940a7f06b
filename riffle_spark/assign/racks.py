"""What a place costs in traffic between racks, and whether racks count. Knows KIP-925. Does not solve anything."""

from dataclasses import dataclass

from riffle_spark.assign.board import Board
from riffle_spark.assign.model import AssignSettings, Traffic, View

__all__ = ["Zones", "member_zones", "rack_cost", "rack_warnings", "rack_zones", "racks_count"]


@dataclass(frozen=True, slots=True)
class Zones:
    """Members of one zone cost the same for any task: racks, or single members under a user's own costs.

    ``of`` is the zone of each member (-1: it should take nothing), ``members`` and ``racks`` are those of each zone.
    """

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    racks: tuple[str | None, ...]


def rack_zones(board: Board) -> Zones:
    """Return one zone a rack."""
    known = {member.rack or "": member.rack for member in board.members}
    held: dict[str, list[int]] = {}
    for m, member in enumerate(board.members):
        if board.placeable[m]:
            held.setdefault(member.rack or "", []).append(m)
    racks = sorted(held)
    zones = {m: zone for zone, rack in enumerate(racks) for m in held[rack]}
    of = tuple(zones.get(m, -1) for m in range(len(board.members)))
    return Zones(of, tuple(tuple(held[rack]) for rack in racks), tuple(known[rack] for rack in racks))


def member_zones(board: Board) -> Zones:
    """Return one zone a member."""
    able = [m for m, may in enumerate(board.placeable) if may]
    zones = {m: zone for zone, m in enumerate(able)}
    of = tuple(zones.get(m, -1) for m in range(len(board.members)))
    return Zones(of, tuple((m,) for m in able), tuple(board.members[m].rack for m in able))


def rack_cost(traffic: Traffic, rack: str | None, settings: AssignSettings) -> int:
    """Return what reading ``traffic`` from ``rack`` costs."""
    return settings.rack_aware_assignment_traffic_cost * traffic.parts_read_across(rack) // traffic.unit


def racks_count(view: View, settings: AssignSettings) -> bool:
    """Tell whether racks decide anything: a strategy is chosen, every member has a rack and costs differ somewhere."""
    if settings.rack_aware_assignment_strategy == "none" or any(member.rack is None for member in view.members):
        return False
    racks = sorted({member.rack for member in view.members if member.rack is not None})
    return any(
        len({traffic.parts_read_across(rack) for rack in racks}) > 1
        for task in view.tasks
        for traffic in (task.owner_traffic, task.standby_traffic)
    )


def rack_warnings(view: View, settings: AssignSettings) -> list[str]:
    """Say why a chosen strategy has no effect, and where tags and racks contradict each other."""
    warnings = []
    if settings.rack_aware_assignment_strategy != "none" and not racks_count(view, settings):
        without = sorted(member.id for member in view.members if member.rack is None)
        reason = f"no rack is known for {', '.join(without)}" if without else "every place costs the same"
        warnings.append(f"racks are not considered: {reason}")
    tags = settings.rack_aware_assignment_tags
    if tags and any(member.rack is not None for member in view.members):
        differing = sorted(m.id for m in view.members if m.rack is not None and m.tags.get("rack") != m.rack)
        if "rack" not in tags or differing:
            of = f" of {', '.join(differing)}" if differing else ""
            warnings.append(f"the tags {', '.join(tags)} do not say the same as the rack{of}: the tags win")
    return warnings
