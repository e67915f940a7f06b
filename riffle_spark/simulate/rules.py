"""The triggers of a running query, as a simulation uses them. They are the code of ``protocol/ownership``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from riffle_spark.assign.model import MemberId
from riffle_spark.protocol.ownership.triggers import Patience, Probes, is_outside_band
from riffle_spark.simulate.world import World
from riffle_spark.simulate.world_rules import WorldRules

__all__ = ["RebalanceRules", "rules_for_world"]


@dataclass(frozen=True, slots=True)
class RebalanceRules:
    """The triggers that cause an assignment without a change of members.

    Without ``of_members`` disks, memory and racks are ignored, and each standby that falls behind is a trigger.
    """

    probes: Probes = field(default_factory=Probes)
    patience: Patience = field(default_factory=Patience)
    is_outside_band: Callable[[Mapping[int, float], Mapping[int, MemberId], Mapping[MemberId, int], float], bool] = (
        is_outside_band
    )
    of_members: WorldRules | None = None


def rules_for_world(world: World) -> RebalanceRules:
    """Return all triggers of a running query, with their settings from the world."""
    return RebalanceRules(of_members=WorldRules(world))
