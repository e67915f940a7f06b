"""The assignor's view of a running query and its settings."""

from __future__ import annotations

from dataclasses import fields

from riffle_spark.assign.model import AssignSettings
from riffle_spark.protocol.ownership.view import assign_settings
from riffle_spark.settings import SETTING_LINES, Settings

SAID: dict[str, object] = {
    "assignor": "sticky", "acceptable_recovery_lag": 7, "num_standbys": 1,
    "standby_mode": "snapshot_pointer", "max_warmup_replicas": 3,
    "balance_band": 0.5, "rack_aware_assignment_strategy": "min_cost", "rack_aware_assignment_traffic_cost": 11,
    "rack_aware_assignment_non_overlap_cost": 12, "rack_aware_assignment_tags": ("zone",),
    "include": (("disk", "ssd"),), "exclude": (("rack", "c"),), "rebalance_enable": "owners",
}  # fmt: skip
INNER = {"allow_rebalance", "moves_at_once", "instance_balance", "store_balance", "user_cost", "goals", "hard_goals"}
"""Settings that only custom assignors change."""


def test_the_assignor_gets_every_assignment_setting() -> None:
    """The assignor gets each assignment setting as it is set. Drained members are excluded too."""
    settings = Settings(key_groups=4, forced_awareness={"zone": ["a", "b"]}, **SAID)  # type: ignore[arg-type]
    passed_settings = assign_settings(settings, frozenset({"b", "a"}))
    assert {*SAID, "forced_awareness", *INNER} == {each.name for each in fields(AssignSettings)}
    assert {name: getattr(passed_settings, name) for name in SAID} | {"exclude": SAID["exclude"]} == SAID
    assert passed_settings.forced_awareness == {"zone": ("a", "b")}
    assert passed_settings.exclude == (("rack", "c"), ("id", "a"), ("id", "b"))


def test_assignor_defaults_equal_those_of_the_settings() -> None:
    """The defaults of the assignor equal those of the settings."""
    assert all(SETTING_LINES[each.name].of_assignment for each in fields(AssignSettings) if each.name not in INNER)
    assert assign_settings(Settings(), frozenset()) == AssignSettings()
