"""What the assignor is told of a running query and of the settings."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import AssignSettings, Strategy
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.view import assign_settings
from riffle_spark.settings import LINES, Settings
from tests.kit.assign_views import view


def test_every_setting_of_the_assignors_is_passed_on() -> None:
    """The assignor sees each setting of assignment as it was set, not the default."""
    said = Settings(
        key_groups=4, assignor="sticky", acceptable_recovery_lag=7, num_standbys=1,
        max_warmup_replicas=3, balance_band=0.5, rack_aware_assignment_strategy="min_cost",
        rack_aware_assignment_traffic_cost=11, rack_aware_assignment_non_overlap_cost=12,
        rack_aware_assignment_tags=("zone",),
    )  # fmt: skip
    seen = assign_settings(said, frozenset({"b", "a"}))
    shared = {field.name for field in fields(AssignSettings)} & set(said.given())
    assert len(shared) == 9
    assert {name: getattr(seen, name) for name in shared} == {name: getattr(said, name) for name in shared}
    assert seen.exclude == (("id", "a"), ("id", "b"))


def test_the_assignors_defaults_are_those_of_the_settings() -> None:
    """Who says nothing gets the same from the assignor and from a query; what they share is of assignment."""
    shared = {each.name: each.default for each in fields(AssignSettings) if each.name in LINES}
    assert shared == {name: LINES[name].default for name in shared}
    assert all(LINES[name].of_assignment for name in shared)
    assert assign_settings(Settings(), frozenset()) == AssignSettings()


def test_the_strategies_of_the_settings_are_the_assignors() -> None:
    """Each strategy that the assignor knows can be set, and no other."""
    for strategy in get_args(Strategy):
        assert Settings(rack_aware_assignment_strategy=strategy).rack_aware_assignment_strategy == strategy
    with pytest.raises(ConfigError, match="one of " + ", ".join(get_args(Strategy))):
        Settings(rack_aware_assignment_strategy="other")


def test_the_assignors_that_a_setting_tells_of_are_there() -> None:
    """Each name that the range of `assignor` gives decides."""
    told = re.findall(r"`(\w+)`", LINES["assignor"].allowed.words)
    assert len(told) == 3
    for name in told:
        assert assign(view("a:0-3 b:"), AssignSettings(assignor=name)).warnings == ()
