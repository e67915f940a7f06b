"""How well the copies of one task are apart. Knows tags (KIP-708), racks and forced awareness. Does not know load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from riffle_spark.assign.board import Board
from riffle_spark.assign.eligible import attribute
from riffle_spark.assign.model import AssignSettings

__all__ = ["Spread", "spread_of"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Per member: the values of the configured tags, the rack, and its zone (equal in all of these)."""

    tags: tuple[tuple[str | None, ...], ...]
    racks: tuple[str | None, ...]
    forced: tuple[tuple[str | None, ...], ...]
    most_per_value: tuple[int, ...]
    zones: tuple[tuple[int, ...], ...]

    def tag_conflicts(self, member: int, others: Iterable[int]) -> int:
        """Return how many tag values ``member`` shares with the other copies."""
        mine = self.tags[member]
        if not mine:
            return 0
        return sum(a == b for other in others for a, b in zip(mine, self.tags[other], strict=True) if a is not None)

    def rack_conflicts(self, member: int, others: Iterable[int]) -> int:
        """Return how many of the other copies are in the member's rack."""
        rack = self.racks[member]
        return 0 if rack is None else sum(self.racks[other] == rack for other in others)

    def may_join(self, member: int, others: Sequence[int]) -> bool:
        """Tell whether forced awareness lets ``member`` hold a copy beside the others."""
        for place, most in enumerate(self.most_per_value):
            value = self.forced[member][place]
            if value is not None and sum(self.forced[other][place] == value for other in others) >= most:
                return False
        return True


def spread_of(board: Board, settings: AssignSettings) -> Spread:
    """Return the spread of this board's members under the configured tags and forced values."""
    copies = settings.num_standbys + 1
    keys = settings.rack_aware_assignment_tags
    forced = sorted(settings.forced_awareness)
    tags = tuple(tuple(member.tags.get(key) for key in keys) for member in board.members)
    racks = tuple(member.rack for member in board.members)
    values = tuple(tuple(attribute(member, key) for key in forced) for member in board.members)
    zones: dict[object, list[int]] = {}
    for m, key in enumerate(zip(tags, racks, values, strict=True)):
        if board.placeable[m]:
            zones.setdefault(key, []).append(m)
    most = tuple(-(-copies // max(1, len(settings.forced_awareness[key]))) for key in forced)
    return Spread(tags, racks, values, most, tuple(tuple(zone) for zone in zones.values()))
