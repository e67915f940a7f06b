"""Builders of views for tests of the assignor.

A layout is a text. In "a:0-3 b:4-7" member a owns the tasks 0 to 3, and member b the tasks 4 to 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, MemberId, Task, TaskId, View
from riffle_spark.assign.validity import find_violations

WHOLE = 150_000


def task(number: int, group: str = "g") -> TaskId:
    """Return the id of one task."""
    return TaskId(group, number)


def view(layout: str, *, group: str = "g", total: int | None = None, slots: Mapping[str, int] | None = None) -> View:
    """Return a view in which the owners of a layout have warm copies.

    The view has the tasks 0 to ``total`` - 1. Tasks that the layout does not name have no owner.
    """
    owners: dict[TaskId, MemberId] = {}
    members = []
    for part in layout.split():
        name, _, ranges = part.partition(":")
        members.append(Member(name, slots=(slots or {}).get(name, 1)))
        for number in numbers(ranges):
            owners[task(number, group)] = name
    count = len(owners) if total is None else total
    return View(
        members=tuple(members),
        tasks=tuple(Task(task(number, group), size=WHOLE) for number in range(count)),
        owners=owners,
        lags={owned: {member: 0} for owned, member in owners.items()},
    )


def numbers(ranges: str) -> Iterable[int]:
    """Return the numbers of a list of ranges, such as "0-3,7"."""
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def caught_up(view: View, done: Assignment, *, points: bool = False) -> View:
    """Return the view after all standbys and warm-ups of an assignment have caught up.

    If ``points`` is set, standbys hold only a pointer, and so only the owners and the warm-ups have copies.
    """
    lags = {task_id: {} if points else dict(lag) for task_id, lag in view.lags.items()}
    for task_id, owner in done.owners.items():
        lags.setdefault(task_id, {})[owner] = 0
    for copies in (done.warmups,) if points else (done.standbys, done.warmups):
        for task_id, members in copies.items():
            lags.setdefault(task_id, {}).update(dict.fromkeys(members, 0))
    return replace(
        view,
        owners=done.owners,
        standbys=done.standbys,
        warmups=done.warmups,
        lags=lags,
        target=done.target,
        pointers=done.standbys if points else {},
    )


def settled(view: View, settings: AssignSettings) -> Assignment:
    """Return the last assignment of a view after repeated assignments leave no task to move."""
    for _ in range(100):
        done = assign(view, settings)
        assert not find_violations(view, done, settings)
        view = caught_up(view, done)
        if not done.needs_probe:
            return done
    raise AssertionError("did not settle")
