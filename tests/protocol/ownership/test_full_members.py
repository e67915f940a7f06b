"""Members whose disk or memory is full lose copies and get none."""

from __future__ import annotations

from collections.abc import Mapping

from riffle_spark.assign.model import Assignment
from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.membership import LiveMember, Membership
from riffle_spark.protocol.ownership.quarantine import Quarantine
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ownership.view import Situation, room_of
from riffle_spark.protocol.ports import Executor
from riffle_spark.settings import Settings
from riffle_spark.simulate.world_rules import WorldSituation
from riffle_spark.state.log.manifest import Manifest

GB = 10**9


def on_disks(used: Mapping[str, float], owners: str) -> Situation:
    """Return key-groups of 100 MB each, owned by members with disks of 1 GB, of which ``used`` is used. Each key-group
    takes 100 MB of memory too.
    """
    members, sizes = Membership(), dict.fromkeys(range(len(owners)), GB // 10)
    for name, share in used.items():
        members.live[name] = LiveMember(name, Executor(name, name, 1))
        members.record_usage(name, (share, GB))
    present = Assignment({task(n): owner for n, owner in enumerate(owners)})
    return WorldSituation(
        members, ReportedCopies(), Manifest(), (), range(len(owners)), 0.0, present, sizes=sizes,
        memory=dict.fromkeys(map(task, sizes), GB / 10),
    )  # fmt: skip


def quarantined_as(
    quarantine: Quarantine, used: Mapping[str, float], owners: str = "abc"
) -> dict[int, tuple[str, ...]]:
    """Update the marks and return the members that should have no copy of each key-group."""
    situation = on_disks(used, owners)
    quarantine.update_marks(situation, Settings())
    return {t.key_group: members for t, members in quarantine.members_without_copies(situation).items()}


def test_a_full_disk_counts_as_free_only_well_below_its_mark() -> None:
    """A disk that was above a mark must be some way below it before it counts as free."""
    quarantine = Quarantine()
    quarantined = [
        quarantined_as(quarantine, {"a": used, "b": 0.1, "c": 0.1}) for used in (0.795, 0.805, 0.795, 0.789, 0.795)
    ]
    full = {1: ("a",), 2: ("a",)}
    assert quarantined == [{}, full, full, {}, {}]


def test_full_memory_counts_as_free_only_well_below_its_mark() -> None:
    """Memory that was above a mark must be some way below it before it counts as free."""
    quarantine = Quarantine()
    limit = Settings().local_memory_limit
    changed = []
    for share in (limit - 0.005, limit + 0.005, limit - 0.005, limit - 0.015, limit - 0.005):
        situation = on_disks({"a": 0.1}, "a")
        situation.members.memories["a"] = (round(share * GB), round((1 - share) * GB))
        changed.append(quarantine.update_marks(situation, Settings()))
    assert changed == [False, True, False, True, False]


def test_copies_may_move_to_any_disk_if_all_exceed_the_low_mark() -> None:
    """If all disks are above the low mark, copies may go to any of them, except to a member that is being emptied."""
    assert quarantined_as(Quarantine(), {"a": 0.85, "b": 0.85, "c": 0.85}) == {}
    assert quarantined_as(Quarantine(), {"a": 0.92, "b": 0.85, "c": 0.85}) == {0: ("a",)}


def test_disk_space_of_a_member_is_its_free_space_plus_its_copies() -> None:
    """The space of a member is what is free below the mark, and what its copies use. A copy may take twice its state. A
    member above the mark has no figure.
    """
    room, needs = room_of(on_disks({"a": 0.7, "b": 0.1, "c": 0.9}, "aaab"), Settings())
    assert room == {"a": 700_000_000, "b": 900_000_000}
    assert needs == dict.fromkeys(map(task, range(4)), 200_000_000)
    assert room_of(on_disks({"a": 0.0, "b": 0.0}, "aaab"), Settings()) == ({}, {}), "all key-groups fit on each member"


def test_memory_of_a_member_is_its_free_memory_plus_its_key_groups() -> None:
    """The memory of a member is what is free below the mark, and what its key-groups use. If each member could take
    twice its share, memory is no limit.
    """
    situation = on_disks({"a": 0.0, "b": 0.0}, "aab")
    situation.members.memories.update(a=(400_000_000, 100_000_000), b=(100_000_000, 9 * GB))
    room, needs = room_of(situation, Settings())
    assert needs == dict.fromkeys(map(task, range(3)), 100_000_000)
    assert room == {"a": 250_000_000, "b": 8_090_000_000 + 100_000_000}
    situation.members.memories["a"] = (400_000_000, GB)
    assert room_of(situation, Settings()) == ({}, {})
