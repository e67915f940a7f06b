"""What a driver is given. Knows the ports by name only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from riffle_spark.protocol.ownership.arrivals import RacksOf
from riffle_spark.protocol.ports import Background, Clock, Cluster
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["DriverPorts"]


@dataclass(frozen=True, slots=True)
class DriverPorts:
    """What a driver is given: store, cluster, clock, background, random hexadecimal ids; ``reached`` hears of each
    step.
    """

    objects: ObjectStore
    cluster: Cluster
    clock: Clock
    background: Background
    new_id: Callable[[], str]
    reached: Callable[[str], None] = field(default=lambda step: None)  # noqa: ARG005
    upkeep_objects: ObjectStore | None = None
    racks_of: RacksOf = field(default=lambda said: {member: rack for member, _, rack in said})
