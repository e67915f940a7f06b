"""The rules by which a running query assigns anew without a change of members, as a played world uses them.

The rules are those of ``protocol/ownership``: the simulator imports production code, and never the reverse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from riffle_spark.assign.model import MemberId
from riffle_spark.protocol.ownership.triggers import Patience, Probes, outside_band
from riffle_spark.simulate.world import World
from riffle_spark.simulate.world_rules import WorldRules

__all__ = ["Rules", "rules_of"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When a running query assigns anew without a change of members.

    Without ``acting`` no rule looks at disks, memory and racks, and each standby that falls behind is a reason.
    """

    probes: Probes = field(default_factory=Probes)
    patience: Patience = field(default_factory=Patience)
    outside_band: Callable[[Mapping[int, float], Mapping[int, MemberId], Mapping[MemberId, int], float], bool] = (
        outside_band
    )
    acting: WorldRules | None = None


def rules_of(world: World) -> Rules:
    """Return all rules of a running query, for one play of a world."""
    return Rules(acting=WorldRules(world))
