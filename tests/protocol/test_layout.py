"""What the assignor is told of the settings."""

from __future__ import annotations

from dataclasses import fields

from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.assign.sticky import sticky
from riffle_spark.protocol.layout import assigned
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import Settings

SEEN: list[AssignSettings] = []


def watching(view: View, settings: AssignSettings) -> Assignment:
    """Assign as the sticky assignor does, and keep the settings."""
    SEEN.append(settings)
    return sticky(view, settings)


def test_every_setting_of_the_assignors_is_passed_on() -> None:
    """An assignor of one's own sees each setting of assignment as it was set, not the default."""
    said = Settings(
        key_groups=4, assignor=f"{__name__}.watching", acceptable_recovery_lag=7, num_standbys=1,
        max_warmup_replicas=3, balance_band=0.5, rack_aware_assignment_strategy="min_cost",
        rack_aware_assignment_traffic_cost=11, rack_aware_assignment_non_overlap_cost=12,
        rack_aware_assignment_tags=("zone",),
    )  # fmt: skip
    SEEN.clear()
    assigned([Executor("1", "host", 2)], {}, said)
    shared = {field.name for field in fields(AssignSettings)} & set(said.given())
    assert len(shared) == 9
    assert {name: getattr(SEEN[0], name) for name in shared} == {name: getattr(said, name) for name in shared}
