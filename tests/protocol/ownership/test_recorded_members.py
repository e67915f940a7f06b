"""Records list the live members: full records always, others after a change, also records without a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.offline.recovery import adopt
from riffle_spark.state.log.record import Record
from tests.kit.simulated.world import World, one_row

pytestmark = pytest.mark.usefixtures("short_cycles")


def all_records(world: World) -> list[Record]:
    """Return all records."""
    log = world.log()
    assert log.tail is not None
    return [log.read(sequence) for sequence in range(log.first, log.tail.sequence + 1)]


def test_full_records_list_the_live_members(tmp_path: Path) -> None:
    """Full records list the live members with executor, host and slots, and no lost members."""
    world = World(tmp_path, retained_versions=100)
    for version in range(5):
        world.batch(version, one_row(1))
    world.cluster.lose("2")
    for version in range(5, 9):
        world.batch(version, one_row(1))
    full = [record for record in all_records(world) if record.full == record.sequence]
    hosts = [sorted((member.executor, member.host, member.slots) for member in record.members) for record in full]
    assert hosts == [[], [("1", "host-1", 1), ("2", "host-2", 1)], [("1", "host-1", 1)]]
    assert {member.id for member in full[1].members} >= set(full[1].owners.values())


def test_a_record_lists_members_that_differ_from_its_full_record(tmp_path: Path) -> None:
    """A record lists the members if they differ from those of its full record: after the first batch and a loss."""
    world = World(tmp_path, retained_versions=100)
    for version in range(5):
        world.batch(version, one_row(1))
    world.cluster.lose("2")
    world.batch(5, one_row(1))
    records = all_records(world)
    shown = [(record.sequence == record.full, sorted(each.executor for each in record.members)) for record in records]
    assert shown == [
        (True, []), (False, ["1", "2"]), (False, ["1", "2"]), (False, ["1", "2"]),
        (True, ["1", "2"]), (False, []), (False, ["1"]),
    ]  # fmt: skip


def test_claims_and_adoptions_keep_the_listed_members(tmp_path: Path) -> None:
    """A full claim and an adoption list the members of the record before."""
    world = World(tmp_path, retained_versions=100)
    for version in range(5):
        world.batch(version, one_row(1))
    listed_members = next(record.members for record in all_records(world) if record.members)
    for _ in range(3):
        world.start()
        world.batch(4, one_row(1))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "other"}')
    adopt(world.home.root, str(checkpoint), execute=True)
    full = [record for record in all_records(world) if record.full == record.sequence]
    assert [(record.kind, record.members) for record in full[2:]] == [
        ("claim", listed_members),
        ("adopt", listed_members),
    ]
