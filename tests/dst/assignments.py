"""Check every assignment and every slot layout of all drivers in a schedule: invariants I6, I7 and I8."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, Task, TaskId, View
from riffle_spark.assign.validity import find_violations
from riffle_spark.protocol.ownership import placement, slots
from riffle_spark.protocol.ownership.groups import parse_task, task
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import Executor, SlotLayout
from riffle_spark.state.log.record import Record
from tests.kit.assign_views import caught_up

__all__ = ["check_record", "watch_assignments"]

Holds = Callable[[Callable[[], object]], None]
"""A function that runs a check and records its failure."""


def watch_assignments(patch: pytest.MonkeyPatch, holds: Holds) -> None:
    """Check each assignment, and each slot layout that a driver requests."""
    by_hash = slots.hashed_assignment
    laid_out_for = Ownership.layout_for

    def assigned(view: View, settings: AssignSettings) -> Assignment:
        assignment = assign(view, settings)
        holds(partial(_check_assigned, view, settings, assignment))
        return assignment

    def hashed(members: Mapping[str, Any], shards: Any, present: Assignment, *rest: Any) -> Assignment:
        assignment = by_hash(members, shards, present, *rest)
        turned = by_hash(dict(reversed([*members.items()])), shards, present, *rest)
        holds(partial(_check_same, assignment, turned))
        holds(partial(_check_stays, by_hash(members, shards, assignment, *rest), assignment))
        return assignment

    def layout_of(self: Ownership, executors: Sequence[Executor], *rest: Any, **options: Any) -> SlotLayout:
        layout = laid_out_for(self, executors, *rest, **options)
        holds(partial(_check_places, self, {executor.id for executor in executors}, layout))
        return layout

    patch.setattr(placement, "assign", assigned)
    patch.setattr(slots, "hashed_assignment", hashed)
    patch.setattr(Ownership, "layout_for", layout_of)


def check_record(record: Record) -> None:
    """I6 for a record: each task has one owner, and its standbys are on other members."""
    owners = {parse_task(name): owner for name, owner in record.owners.items()}
    total = record.total if record.dispatch == "key_group" else len(record.shards)
    expected = {task(number, group) for group in {owner.group for owner in owners} for number in range(total)}
    assert owners.keys() == expected, f"I6: record {record.sequence} has owners of {sorted(owners)} only"
    for name, members in record.standbys.items():
        copies = Counter([*members, record.owners[name]])
        assert max(copies.values()) == 1, f"I6: record {record.sequence} has {copies} for task {name}"


def _check_places(owned: Ownership, live: set[str], layout: SlotLayout) -> None:
    """I6: each task has one owner, at most one copy per member, and one slot.

    All copies are on live executors, and the slot is on the owner's executor.
    """
    key_groups = owned.placement.settings.key_groups
    present = owned.placement.present
    numbers = range(key_groups if owned.placement.shards is None else len(owned.placement.shards))
    expected = {task(number, group) for group in owned.placement.groups.names for number in numbers}
    assert present.owners.keys() == expected, f"I6: {sorted(present.owners)} have owners, not {sorted(expected)}"
    on = {name: living.executor.id for name, living in owned.membership.live.items()}
    assert len({*on.values()}) == len(on), f"I6: two members on one executor: {on}"
    for task_id, owner in present.owners.items():
        copies = [owner, *present.standbys.get(task_id, ()), *present.warmups.get(task_id, ())]
        assert len({*copies}) == len(copies), f"I6: {task_id} has two copies on a member: {copies}"
        dead = [member for member in copies if on.get(member) not in live]
        assert not dead, f"I6: {task_id} has copies on {dead}, which are not live"
    for group, group_layout in zip(owned.placement.groups.names, layout.all_groups, strict=True):
        served = sorted((number, slot.executor) for slot in group_layout.slots for number in slot.key_groups)
        places = [(number, on[present.owners[task(number, group)]]) for number in numbers]
        assert served == places, f"I6: slots serve {served} of {group}, its owners are on {places}"


def _check_assigned(view: View, settings: AssignSettings, assignment: Assignment) -> None:
    wrong = find_violations(view, assignment, settings)
    assert wrong == (), f"I6: {wrong}"
    _check_same(assignment, assign(_elsewhere(view), _named_elsewhere(settings)))
    _check_rests(view, settings, assignment)


def _check_same(assignment: Assignment, repeated: Assignment) -> None:
    assert repr(repeated) == repr(assignment), f"I7: the same view gives {assignment}, and then {repeated}"


def _check_rests(view: View, settings: AssignSettings, assignment: Assignment) -> None:
    """I8: repeated assignment converges, and then stays the same, if all copies catch up and no member is awaited."""
    for _ in range(4 + 2 * len(view.tasks) * (1 + settings.num_standbys)):
        view = _caught_up(view, settings, assignment)
        previous = assignment
        assignment = assign(view, settings)
        wrong = find_violations(view, assignment, settings)
        assert wrong == (), f"I6: {wrong}"
        if assignment.needs_probe:
            continue
        repeated = assign(_caught_up(view, settings, assignment), settings)
        if not (settings.points and repeated.moves):  # a new pointer may move others
            _check_stays(repeated, assignment)
            return
    raise AssertionError(
        f"I8: the assignment does not converge: {previous.probe_reason}, then {assignment.probe_reason}"
    )


def _check_stays(repeated: Assignment, assignment: Assignment) -> None:
    places = [(placement.owners, placement.standbys, placement.warmups) for placement in (repeated, assignment)]
    assert places[0] == places[1], f"I8: a balanced assignment moves: {repeated.moves}"
    assert not repeated.moves, f"I8: a balanced assignment moves: {repeated.moves}"


def _caught_up(view: View, settings: AssignSettings, assignment: Assignment) -> View:
    return replace(caught_up(view, assignment, points=settings.points), prior_owners={}, awaited=())


class _Name(str):
    """A name whose hash differs, as in a process with another hash seed, so sets and mappings have another order."""

    __slots__ = ()

    def __hash__(self) -> int:
        return zlib.crc32(self.encode())


def _elsewhere(view: View) -> View:
    """Return the view as another process may have it: in other orders and with other hashes."""
    reordered = {field.name: _turned(getattr(view, field.name)) for field in fields(View)}
    return replace(view, **reordered)


def _named_elsewhere(settings: AssignSettings) -> AssignSettings:
    return replace(settings, exclude=tuple((tag, _Name(value)) for tag, value in settings.exclude))


def _turned(value: Any) -> Any:
    if isinstance(value, TaskId):
        return TaskId(_Name(value.group), value.key_group)
    if isinstance(value, Mapping):
        return {_turned(name): _turned(item) for name, item in reversed([*value.items()])}
    if isinstance(value, (frozenset, tuple)):
        has_order = isinstance(value, tuple) and not any(isinstance(item, (Member, Task)) for item in value)
        return type(value)(map(_turned, value if has_order else reversed([*value])))
    if isinstance(value, (Member, Task)):
        return replace(value, id=_turned(value.id))
    return _Name(value) if isinstance(value, str) else value
