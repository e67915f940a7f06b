"""What the assignor is told of a running query and of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import get_args

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Strategy
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.quarantine import Quarantine
from riffle_spark.protocol.ownership.view import Situation, assign_settings, room_of
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import LINES, Settings
from riffle_spark.simulate.world_rules import WorldSituation
from riffle_spark.state.log.manifest import Manifest
from tests.kit.assign_views import view

SAID: dict[str, object] = {
    "assignor": "sticky", "acceptable_recovery_lag": 7, "num_standbys": 1,
    "standby_mode": "snapshot_pointer", "max_warmup_replicas": 3,
    "balance_band": 0.5, "rack_aware_assignment_strategy": "min_cost", "rack_aware_assignment_traffic_cost": 11,
    "rack_aware_assignment_non_overlap_cost": 12, "rack_aware_assignment_tags": ("zone",),
    "include": (("disk", "ssd"),), "exclude": (("rack", "c"),), "rebalance_enable": "owners",
}  # fmt: skip
INNER = {"allow_rebalance", "moves_at_once", "instance_balance", "store_balance", "user_cost", "goals", "hard_goals"}
"""What only an assignor of the user's own changes."""


def test_every_setting_of_the_assignors_is_passed_on() -> None:
    """The assignor sees each setting of assignment as it was set, not the default; who is drained is excluded, too."""
    said = Settings(key_groups=4, forced_awareness={"zone": ["a", "b"]}, **SAID)  # type: ignore[arg-type]
    seen = assign_settings(said, frozenset({"b", "a"}))
    assert {*SAID, "forced_awareness", *INNER} == {each.name for each in fields(AssignSettings)}
    assert {name: getattr(seen, name) for name in SAID} | {"exclude": SAID["exclude"]} == SAID
    assert seen.forced_awareness == {"zone": ("a", "b")}
    assert seen.exclude == (("rack", "c"), ("id", "a"), ("id", "b"))


def test_the_assignors_defaults_are_those_of_the_settings() -> None:
    """Who says nothing gets the same from the assignor and from a query; what they share is of assignment."""
    assert all(LINES[each.name].of_assignment for each in fields(AssignSettings) if each.name not in INNER)
    assert assign_settings(Settings(), frozenset()) == AssignSettings()


def test_the_names_of_the_designs_mean_our_strategies() -> None:
    """KIP-925 calls its second algorithm `balanced_min_cost`, Kafka its first one `min_traffic`."""
    for said, meant in (("balanced_min_cost", "balance_subtopology"), ("min_traffic", "min_cost"), ("NONE", "none")):
        assert Settings(rack_aware_assignment_strategy=said).rack_aware_assignment_strategy == meant


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


GB = 10**9


def on_disks(used: Mapping[str, float], owners: str) -> Situation:
    """Return key-groups of 100 MB, each owned by the member of a letter, on members with disks of 1 GB, so far in use;
    each key-group takes 100 MB of memory, too.
    """
    members, sizes = Membership(), dict.fromkeys(range(len(owners)), GB // 10)
    for name, share in used.items():
        members.live[name] = LiveMember(name, Executor(name, name, 1))
        members.record_usage(name, (share, GB))
    present = Assignment({task(n): owner for n, owner in enumerate(owners)})
    return WorldSituation(
        members, KnownCopies(), Manifest(), (), range(len(owners)), 0.0, present, sizes=sizes,
        memory=dict.fromkeys(map(task, sizes), GB / 10),
    )  # fmt: skip


def quarantined_as(
    quarantine: Quarantine, used: Mapping[str, float], owners: str = "abc"
) -> dict[int, tuple[str, ...]]:
    """Look at disks; return who should have no copy of which key-group."""
    situation = on_disks(used, owners)
    quarantine.update_marks(situation, Settings())
    return {t.key_group: members for t, members in quarantine.of(situation).items()}


def test_a_disk_is_below_its_mark_again_only_some_way_below_it() -> None:
    """What wavers about a mark sets off nothing each time."""
    quarantine = Quarantine()
    seen = [quarantined_as(quarantine, {"a": used, "b": 0.1, "c": 0.1}) for used in (0.795, 0.805, 0.795, 0.789, 0.795)]
    full = {1: ("a",), 2: ("a",)}
    assert seen == [{}, full, full, {}, {}]


def test_where_all_disks_are_beyond_the_low_mark_copies_go_anywhere() -> None:
    """Else nothing could be placed any more; a member that is to be emptied is still avoided."""
    assert quarantined_as(Quarantine(), {"a": 0.85, "b": 0.85, "c": 0.85}) == {}
    assert quarantined_as(Quarantine(), {"a": 0.92, "b": 0.85, "c": 0.85}) == {0: ("a",)}


def test_room_is_what_is_free_below_the_mark_and_what_is_there_already() -> None:
    """A copy may take twice its state; a member over the mark tells no room, its marks say what leaves it."""
    room, needs = room_of(on_disks({"a": 0.7, "b": 0.1, "c": 0.9}, "aaab"), Settings())
    assert room == {"a": 700_000_000, "b": 900_000_000}
    assert needs == dict.fromkeys(map(task, range(4)), 200_000_000)
    assert room_of(on_disks({"a": 0.0, "b": 0.0}, "aaab"), Settings()) == ({}, {}), "all fit on each"


def test_room_in_memory_is_what_is_left_below_its_mark_and_what_its_own_key_groups_take() -> None:
    """Where each could take twice its share, memory bounds nothing."""
    situation = on_disks({"a": 0.0, "b": 0.0}, "aab")
    situation.members.memories.update(a=(400_000_000, 100_000_000), b=(100_000_000, 9 * GB))
    room, needs = room_of(situation, Settings())
    assert needs == dict.fromkeys(map(task, range(3)), 100_000_000)
    assert room == {"a": 250_000_000, "b": 8_090_000_000 + 100_000_000}
    situation.members.memories["a"] = (400_000_000, GB)
    assert room_of(situation, Settings()) == ({}, {})
