"""If drains, losses and joins happen between two assignments, assignments converge, for every kind of task (I8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.explain import spread_per_slot
from riffle_spark.assign.model import Assignment, AssignSettings, Kind, Member, Task, TaskId, View
from riffle_spark.assign.validity import find_violations
from tests.kit.assign_views import WHOLE, caught_up, task

SETTINGS = AssignSettings(num_standbys=1)
KINDS: Mapping[str, Kind] = {"durable": "stateful", "cache": "unlogged", "none": "stateless"}


@dataclass
class Cluster:
    """Members that join and leave, and the last assignment, which is complete."""

    view: View
    settings: AssignSettings

    def drain(self, member: str) -> None:
        """Drain a member by an operator's request."""
        drained = self.view.drained | {member}
        self.view = replace(self.view, drained=drained)
        self.settings = replace(self.settings, exclude=tuple(("id", each) for each in sorted(drained)))

    def lose(self, member: str, *, awaited: bool) -> None:
        """Lose a member and its disk."""
        view = self.view
        lost_member = next(each for each in view.members if each.id == member)
        owned = {each: member for each, owner in view.owners.items() if owner == member}
        self.view = replace(
            view,
            members=tuple(each for each in view.members if each.id != member),
            owners={each: owner for each, owner in view.owners.items() if owner != member},
            standbys=_without(view.standbys, member),
            warmups=_without(view.warmups, member),
            lags={
                each: {m: lag for m, lag in lag_by_member.items() if m != member}
                for each, lag_by_member in view.lags.items()
            },
            awaited=(*view.awaited, lost_member) if awaited else view.awaited,
            prior_owners={**view.prior_owners, **{each: view.prior_owners.get(each, member) for each in owned}}
            if awaited
            else view.prior_owners,
            drained=view.drained - {member},
        )
        exclude = tuple(pair for pair in self.settings.exclude if member not in pair)
        self.settings = replace(self.settings, exclude=exclude)

    def join(self, member: str) -> None:
        """Add an empty member."""
        self.view = replace(self.view, members=(*self.view.members, Member(member)))

    def give_up(self) -> None:
        """End the wait for lost members."""
        self.view = replace(self.view, awaited=(), prior_owners={})

    def settle(self) -> Assignment:
        """Assign until no probe is due. All copies catch up before the next assignment."""
        for _ in range(4 + 4 * len(self.view.tasks)):
            done = assign(self.view, self.settings)
            assert find_violations(self.view, done, self.settings) == ()
            self._check_standbys(done)
            self.view = caught_up(self.view, done)
            if not done.needs_probe:
                next_assignment = assign(self.view, self.settings)
                same = (next_assignment.owners, next_assignment.standbys, next_assignment.moves) == (
                    done.owners,
                    done.standbys,
                    (),
                )
                assert same or self.view.awaited, next_assignment.moves
                return done
        raise AssertionError(f"does not converge: {done.probe_reason}")

    def _check_standbys(self, done: Assignment) -> None:
        able = [each for each in self.view.members if each.id not in self.view.drained] or self.view.members
        expected = min(self.settings.num_standbys, len(able) - 1)
        durable = [each.id for each in self.view.tasks if each.kind == "stateful"]
        assert {len(done.standbys.get(each, ())) for each in durable} <= {expected}


def _without(copies: Mapping[TaskId, tuple[str, ...]], member: str) -> dict[TaskId, tuple[str, ...]]:
    return {each: tuple(m for m in holders if m != member) for each, holders in copies.items()}


def cluster(members: str, counts: Mapping[str, int], settings: AssignSettings = SETTINGS) -> Cluster:
    """Return a balanced cluster with the given number of tasks of each group."""
    tasks = tuple(
        Task(task(number, group), kind=KINDS[group], size=WHOLE if group == "durable" else 0)
        for group, count in counts.items()
        for number in range(count)
    )
    new_cluster = Cluster(View(tuple(map(Member, members)), tasks), settings)
    new_cluster.settle()
    return new_cluster


@pytest.mark.parametrize("awaited", [False, True], ids=["planned", "awaited"])
@pytest.mark.parametrize("group", ["durable", "cache"])
def test_a_simultaneous_drain_and_loss_both_complete(group: str, awaited: bool) -> None:
    """A drained member loses all tasks, whether or not state is durable and the lost member is waited for."""
    world = cluster("abcd", {group: 12})
    world.lose("a", awaited=awaited)
    world.drain("d")
    done = world.settle()
    assert sorted({*done.owners.values()}) == ["b", "c"]


def test_limited_moves_of_caches_continue_until_complete() -> None:
    """With `moves_at_once = 1`, a new member still gets its full share of the cache tasks."""
    world = cluster("ab", {"cache": 12}, AssignSettings(moves_at_once=1))
    world.join("c")
    done = world.settle()
    assert spread_per_slot(world.view, done.owners.values()) == 0


@given(
    data=st.data(),
    durable=st.integers(0, 10),
    caches=st.integers(0, 10),
    stateless=st.integers(0, 4),
    warmups=st.integers(1, 3),
    standbys=st.integers(0, 2),
    most=st.sampled_from([None, None, 1, 3]),
)
def test_simultaneous_drains_losses_and_joins_converge(
    data: st.DataObject, durable: int, caches: int, stateless: int, warmups: int, standbys: int, most: int | None
) -> None:
    """A drained member keeps no task or copy, each task has its standbys, and owners end balanced."""
    settings = AssignSettings(max_warmup_replicas=warmups, num_standbys=standbys, moves_at_once=most)
    world = cluster("abcd", {"durable": durable, "cache": caches, "none": stateless}, settings)
    for look in range(2):
        for number in range(data.draw(st.integers(1, 3), "events")):
            live = [each.id for each in world.view.members]
            kinds = ["join", *(["drain", "lose", "await"] if len(live) > 1 else [])]
            kind, member = data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(live))
            note(f"look {look}: {kind} {member}")
            if kind == "join":
                world.join(f"new{look}{number}")
            elif kind == "drain":
                world.drain(member)
            else:
                world.lose(member, awaited=kind == "await")
        _check_left(world, world.settle())
    world.give_up()
    done = world.settle()
    _check_left(world, done)
    able = tuple(each for each in world.view.members if each.id not in world.view.drained) or world.view.members
    assert spread_per_slot(replace(world.view, members=able), done.owners.values()) <= 1


def _check_left(world: Cluster, done: Assignment) -> None:
    live, drained = {each.id for each in world.view.members}, world.view.drained
    if live - drained:
        copies = {member for holders in (*done.standbys.values(), *done.warmups.values()) for member in holders}
        assert not drained & ({*done.owners.values()} | copies)
