"""Members report the memory of their Python workers. A member with little free memory gets no tasks and loses some."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.ownership.groups import ONE_GROUP
from riffle_spark.protocol.ownership.weights import memory_by_member
from tests.kit.simulated.elastic_world import Elastic, warnings

pytestmark = pytest.mark.usefixtures("names_in_order")


def in_memory(world: Elastic, executor: str, worker: int, each: int, most: int = 1000) -> None:
    """Give an executor ``most`` MB of memory. Its worker takes ``worker`` MB and ``each`` MB per owned key-group."""

    def measure_memory() -> tuple[int, int]:
        member = world.ownership.membership.of_executor(executor)
        owned = [m for m in world.ownership.placement.present.owners.values() if member is not None and m == member.id]
        used_mb = min(worker + each * len(owned), most)
        return used_mb * 10**6, (most - used_mb) * 10**6

    world.cluster.memories[executor] = measure_memory


def test_key_groups_leave_a_member_short_of_memory_two_at_a_time(tmp_path: Path) -> None:
    """Two key-groups at a time leave the member, caught up, until its memory is below the mark. Nothing moves to it,
    and with memory again it gets its share back.
    """
    world = Elastic(tmp_path, executors=("1", "2", "3"), key_groups=12, num_standbys=1)
    world.feed(4)
    before = world.owned("1")
    assert len(before) == 4
    in_memory(world, "1", 860, 25)
    owned, reports = [4], []
    for _ in range(20):
        world.clock.advance(11)
        reports.append(world.feed())
        owned.append(len(world.owned("1")))
    assert owned[-1] == 2, "0.86 + 2 * 0.025 is below 0.95, and two leave at a time"
    assert world.owned("1") <= before, "above 0.9 a member gets no tasks"
    assert world.holds("1")[1] == set(), "a member that cannot own tasks has no standbys"
    assert sum(report.restores for report in reports) == 0
    (warning,) = warnings(reports, "960 MB, and 40 MB are free")
    assert world.member("1") in warning
    (state,) = (each for each in world.driver.ownership.member_states() if each.id == world.member("1"))
    assert (state.memory_bytes, state.memory_used_share) == (910 * 10**6, 0.91)
    in_memory(world, "1", 100, 25)
    for _ in range(4):
        world.clock.advance(11)
        world.settle()
    assert len(world.owned("1")) == 4
    world.check_state()


def test_a_member_without_slots_gets_its_share_back_with_memory(tmp_path: Path) -> None:
    """A member without slots is measured by upkeep, and gets its share back when it has memory again."""
    world = Elastic(tmp_path, executors=("1", "2", "3"), key_groups=12)
    world.feed(4)
    in_memory(world, "1", 990, 0)
    for _ in range(20):
        world.clock.advance(11)
        world.feed()
    assert world.owned("1") == set()
    in_memory(world, "1", 500, 0)
    for _ in range(4):
        world.clock.advance(11)
        world.settle()
    assert len(world.owned("1")) == 4
    world.check_state()


def test_a_member_gets_only_key_groups_that_fit_in_its_memory(tmp_path: Path) -> None:
    """The memory of a worker is divided among its key-groups by rows. A small member gets only those that fit."""
    world = Elastic(tmp_path, executors=("2", "3"), key_groups=9)
    for name, most in (("1", 230), ("2", 5000), ("3", 5000)):
        in_memory(world, name, 50, 100, most)
    world.feed(4)
    world.cluster.add("1")
    world.settle()
    assert sorted(len(world.owned(name)) for name in ("2", "3")) == [4, 4]
    assert len(world.owned("1")) == 1
    in_memory(world, "1", 50, 100, 5000)
    world.feed()
    world.driver.operations.request_rebalance()
    world.settle()
    assert len(world.owned("1")) == 3
    world.check_state()


def test_a_new_driver_learns_full_members_from_censuses(tmp_path: Path) -> None:
    """A new driver knows full disks and memory from censuses. Its first assignment gives these members nothing new."""
    world = Elastic(tmp_path, executors=("1", "2", "3"), key_groups=12)
    world.feed(4)
    before = [world.owned(name) for name in ("1", "2")]
    world.cluster.disks["1"] = lambda: (0.85, 10**12)
    in_memory(world, "2", 920, 0)
    world.cluster.lose("3", disk=True, planned=True)
    world.cluster.add("4")
    world.start()
    world.feed()
    assert [world.owned(name) for name in ("1", "2")] == before
    assert len(world.owned("4")) == 4
    world.check_state()


def test_the_memory_of_a_worker_counts_once_for_all_its_stores() -> None:
    """The memory of a worker counts once for all its stores. The free memory is the minimum over the workers of a
    member.
    """

    def receipt(member: str, store: str, slot: int, memory: tuple[int, int]) -> Receipt:
        return Receipt(store, slot, "", 0, member, "1", memory=memory)

    receipts = [
        receipt("m1", "a", 0, (5, 90)), receipt("m1", "b", 0, (7, 80)), receipt("m1", "a", 1, (2, 85)),
        receipt("m2", "a", 2, (4, 9)), receipt("m3", "a", 3, (0, 0)),
    ]  # fmt: skip
    assert memory_by_member(receipts, ONE_GROUP) == {"m1": (9, 80), "m2": (4, 9)}
