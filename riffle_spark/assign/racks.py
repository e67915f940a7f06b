"""What a place costs in traffic between racks, and whether racks count. Knows KIP-925. Does not solve anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import Board
from riffle_spark.assign.model import AssignSettings, Member, Task, Traffic

__all__ = ["Zones", "rack_cost", "rack_warnings", "racks_count", "zones_of"]


@dataclass(frozen=True, slots=True)
class Zones:
    """Members of one zone cost the same for any task: racks, or single members under a user's own costs."""

    of: tuple[int, ...]
    racks: tuple[str | None, ...]


def zones_of(board: Board, *, single: bool) -> Zones:
    """Return the zone of each member; one that should take nothing has none (-1)."""
    names = [member.id if single else (member.rack or "") for member in board.members]
    known = sorted({name for name, may in zip(names, board.placeable, strict=True) if may})
    racks = {name: member.rack for name, member in zip(names, board.members, strict=True)}
    of = tuple(known.index(name) if may else -1 for name, may in zip(names, board.placeable, strict=True))
    return Zones(of, tuple(racks[name] for name in known))


def rack_cost(traffic: Traffic, rack: str | None, weight: int) -> int:
    """Return what reading ``traffic`` from ``rack`` costs."""
    return weight * traffic.parts_read_across(rack) // traffic.unit


def racks_count(members: Sequence[Member], tasks: Sequence[Task], settings: AssignSettings) -> bool:
    """Tell whether racks decide anything: a strategy is chosen, every member has a rack and costs differ somewhere."""
    if settings.rack_aware_assignment_strategy == "none" or any(member.rack is None for member in members):
        return False
    racks = sorted({member.rack for member in members if member.rack is not None})
    return any(
        len({traffic.parts_read_across(rack) for rack in racks}) > 1
        for task in tasks
        for traffic in (task.owner_traffic, task.standby_traffic)
    )


def rack_warnings(members: Sequence[Member], tasks: Sequence[Task], settings: AssignSettings) -> list[str]:
    """Say why a chosen strategy has no effect, and where tags and racks contradict each other."""
    warnings = []
    if settings.rack_aware_assignment_strategy != "none" and not racks_count(members, tasks, settings):
        without = sorted(member.id for member in members if member.rack is None)
        reason = f"no rack is known for {', '.join(without)}" if without else "every place costs the same"
        warnings.append(f"racks are not considered: {reason}")
    tags = settings.rack_aware_assignment_tags
    if tags and any(member.rack is not None for member in members):
        differing = sorted(m.id for m in members if m.rack is not None and m.tags.get("rack") != m.rack)
        if "rack" not in tags or differing:
            of = f" of {', '.join(differing)}" if differing else ""
            warnings.append(f"the tags {', '.join(tags)} do not say the same as the rack{of}: the tags win")
    return warnings
