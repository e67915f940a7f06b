"""Standbys with a snapshot pointer have no copy. They fetch the snapshot when they become owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.protocol.ownership.view import assign_settings, view_of
from tests.kit.simulated.elastic_world import Elastic

pytestmark = pytest.mark.usefixtures("names_in_order")
THREE = ("1", "2", "3")


def pointing(tmp_path: Path, **settings: Any) -> Elastic:
    """Return a query with pointer standbys and recent snapshots."""
    world = Elastic(
        tmp_path, executors=THREE, num_standbys=1, standby_mode="snapshot_pointer",
        **{"snapshot_chain_links": 3, **settings},
    )  # fmt: skip
    world.feed(8)
    return world


def test_a_pointer_standby_keeps_no_copy_and_fetches_nothing(tmp_path: Path) -> None:
    """Only owners have copies, and upkeep fetches nothing."""
    world = pointing(tmp_path)
    assert {len(members) for members in world.ownership.placement.present.standbys.values()} == {1}
    assert all(world.copies_of(executor) == world.owned(executor) for executor in THREE)
    report = world.feed()
    assert (report.upkeep_fetched_bytes, report.upkeep_restores, report.upkeep_folds) == (0, 0, 0)


def test_a_pointer_refers_to_the_newest_snapshot(tmp_path: Path) -> None:
    """The readiness has the newest snapshot and version of each store."""
    world = pointing(tmp_path)
    pointed_versions: dict[int, list[int]] = {}
    for _ in range(9):
        world.feed()
        entries = world.log().manifest.entries
        for copy in (copy for copy in world.ownership.copies.readiness if copy.role == "standby"):
            ((store, snapshot, version),) = copy.pointers
            assert store == "totals"
            newest = entries["totals", copy.key_group].snapshot
            assert newest is not None
            assert version <= newest.head.version
            assert snapshot.startswith(f"{version}-") or str(version) in snapshot
            pointed_versions.setdefault(copy.key_group, []).append(version)
    assert set(pointed_versions) == set(range(6))
    assert all(versions == sorted(versions) and len(set(versions)) >= 2 for versions in pointed_versions.values()), (
        pointed_versions
    )


def test_a_promoted_pointer_standby_fetches_and_reports_snapshots(tmp_path: Path) -> None:
    """A pointer standby that becomes an owner fetches the snapshots in the batch, and the report counts the bytes."""
    world = pointing(tmp_path)
    lost, kept = (
        world.owned("1"),
        {t.key_group: members for t, members in world.ownership.placement.present.standbys.items()},
    )
    world.cluster.lose("1", disk=True)
    entries = world.log().manifest.entries
    snapshots = [entries["totals", group].snapshot for group in lost]
    report = world.feed()
    assert report.restores == len(lost)
    assert report.fetched_snapshot_bytes == sum(snapshot.length for snapshot in snapshots if snapshot)
    assert report.misplaced_runs == 0
    assert all(world.owners()[group] in kept[group] for group in lost)
    world.settle()
    world.check_state()


def test_a_pointer_ranks_after_a_real_copy(tmp_path: Path) -> None:
    """A member with an old copy becomes the owner before a pointer standby."""
    world = pointing(tmp_path)
    ownership, group = world.ownership, min(world.owned("1"))
    (pointer,) = next(members for t, members in ownership.placement.present.standbys.items() if t.key_group == group)
    holder = next(m for m in ownership.membership.live if m not in (pointer, world.member("1")))
    manifest = world.driver._log.manifest  # private: what the driver holds
    old = manifest.entry("totals", group).chain
    head = old[0].head if len(old) > 1 else manifest.entry("totals", group).base
    ownership.copies.reported.record_copies(holder, [("totals", group, *head)])
    lost_member = world.member("1")
    ownership.membership.live.pop(lost_member)
    situation = ownership.placement.situation(manifest, ("totals",), world.clock.seconds())
    after = assign(view_of(situation, world.settings), assign_settings(world.settings, frozenset()))
    owners = {t.key_group: owner for t, owner in after.owners.items()}
    assert owners[group] == holder
