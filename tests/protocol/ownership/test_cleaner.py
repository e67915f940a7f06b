"""I9: the cleaner never removes a copy that was reported but not yet included in an assignment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.assign.model import Assignment
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.protocol.ownership.groups import ONE_GROUP, task
from riffle_spark.protocol.ownership.idle_copies import IdleCopies
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.protocol.ports import Executor
from tests.kit.simulated.elastic_world import Elastic

MEMBERS = ("m1", "m2", "m3")
DELAY = 10
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("census"), st.sampled_from(MEMBERS), st.sets(st.integers(0, 2))),
        st.tuples(st.just("report"), st.sampled_from(MEMBERS), st.integers(0, 2)),
        st.tuples(st.just("assign"), st.sampled_from(MEMBERS), st.booleans()),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS), st.none()),
        st.tuples(st.just("due"), st.integers(0, 20), st.none()),
    ),
    max_size=40,
)


class Interleaved:
    """Reports, assignments and clean-ups in any order, with the reported copies that no assignment has answered."""

    def __init__(self) -> None:
        self.idle = IdleCopies()
        self.copies = ReportedCopies()
        self.members = Membership()
        self.now = 0.0
        self.unanswered: set[tuple[str, int]] = set()
        self.needed: set[tuple[str, int]] = set()

    def census(self, member: str, groups: set[int]) -> None:
        """Add a member that joins or returns."""
        if member in self.members.live:
            return
        report = Census(member, member, copies=tuple(("s", group, 1, "1-a") for group in sorted(groups)))
        self.members.add([report], [Executor(member, "host", 1)], {})
        self.copies.record_census(report)
        self.unanswered |= {(member, group) for group in groups}

    def report(self, member: str, group: int) -> None:
        """Record a copy that upkeep or a slot reports."""
        if member in self.members.live and group not in {at for _, at in self.copies.of_member(member)}:
            self.copies.record_copies(member, [("s", group, 1, "1-a")])
            self.unanswered.add((member, group))

    def assign(self, member: str, keeps: bool) -> None:
        """Record an assignment with one owner of all tasks and, if ``keeps``, another member with all standbys."""
        others = [name for name in MEMBERS if name != member]
        kept = {task(group): (others[0],) for group in range(3)} if keeps else {}
        present = Assignment({task(group): member for group in range(3)}, kept)
        self.idle.record_assignment(present, self.copies, self.members, self.now, pointers=False, groups=ONE_GROUP)
        self.unanswered.clear()
        self.needed = {(name, group) for group in range(3) for name in (member, *kept.get(task(group), ()))}

    def leave(self, member: str, _: None) -> None:
        """Remove a lost member."""
        self.members.remove(
            [living for name, living in self.members.live.items() if name == member], self.now, frozenset()
        )
        self.copies.remove_member(member)
        self.unanswered = {(name, group) for name, group in self.unanswered if name != member}

    def due(self, seconds: int, _: None) -> set[tuple[str, int]]:
        """Let time pass and clean up. Return the removed copies."""
        self.now += seconds
        drops = self.idle.take_due(self.copies, self.members.live, self.now, DELAY)
        return {(member, drop.key_group) for member, due_drops in drops.items() for drop in due_drops}


@given(ACTS)
def test_no_copy_is_removed_before_its_report_is_answered_i9(acts: list[tuple[str, object, object]]) -> None:
    """No removed copy was unanswered or has a place in the current assignment, and each copy is removed once."""
    world = Interleaved()
    for action, one, other in acts:
        removed_copies = getattr(world, action)(one, other) or set()
        assert not removed_copies & world.unanswered
        assert not removed_copies & world.needed
        assert all(("s", group) not in world.copies.of_member(member) for member, group in removed_copies)


@given(ACTS)
def test_idle_copies_are_removed_after_the_delay(acts: list[tuple[str, object, object]]) -> None:
    """After an assignment and the delay, only copies with a place in the assignment are left."""
    world = Interleaved()
    for action, one, other in acts:
        getattr(world, action)(one, other)
    world.assign("m1", keeps=False)
    world.due(DELAY, None)
    left = {(member, group) for member in world.members.live for _, group in world.copies.of_member(member)}
    assert left <= {("m1", group) for group in range(3)}


@pytest.mark.usefixtures("names_in_order")
def test_copies_of_a_returned_member_stay_until_the_next_assignment(tmp_path: Path) -> None:
    """A member returns when the clean-up time of its idle copies is over. The assignment makes it the owner again
    before its copies are removed, and nothing is restored.
    """
    world = Elastic(tmp_path, executors=("1", "2", "3"), state_cleanup_delay=60, num_standbys=0)
    world.feed(4)
    lost, member = world.owned("1"), world.member("1")
    world.driver.operations.drain("1")
    world.settle()
    assert world.copies_of("1") == lost, "idle copies stay until the delay is over"
    world.cluster.lose("1")
    world.feed()
    world.clock.advance(61)
    world.driver.operations.undrain(member)
    world.cluster.add("1b")
    reports = [world.feed()]
    owned, _, warming = world.holds("1b")
    assert (owned | warming) & lost
    reports += world.settle()
    assert world.owned("1b") == lost
    assert sum(report.restores + report.upkeep_restores for report in reports) == 0
    world.check_state()


@pytest.mark.usefixtures("names_in_order")
def test_a_copy_in_use_again_is_not_dropped(tmp_path: Path) -> None:
    """A drop names the head of the copy, so a copy that is in use again stays."""
    world = Elastic(tmp_path, num_standbys=1, state_cleanup_delay=0)
    world.feed(4)
    world.cluster.stalled = {"1", "2"}
    world.driver.operations.reconfigure(world.driver.settings, {"num_standbys": 0})
    world.feed()
    dropped = world.copies_of("1") - world.owned("1")
    assert dropped, "drops are ordered, but not done"
    for group in sorted(dropped):
        world.driver.operations.pin(group, "1")
    world.feed()
    world.cluster.stalled = set()
    world.settle()
    assert dropped <= world.owned("1")
    world.check_state()


def test_all_copies_can_be_removed_between_batches(tmp_path: Path) -> None:
    """After ``clean_up`` every folder is empty, and the next batch restores what it needs."""
    world = Elastic(tmp_path, num_standbys=1)
    world.feed(4)
    world.driver.clean_up()
    assert all(world.copies_of(executor) == set() for executor in ("1", "2"))
    assert all(not list(world.folder_of(executor).glob("sealed/*")) for executor in ("1", "2"))
    report = world.feed()
    assert (report.restores, report.misplaced_runs) == (6, 0)
    world.feed(3)
    assert all(len(world.copies_of(executor)) == 6 for executor in ("1", "2"))
    world.check_state()
