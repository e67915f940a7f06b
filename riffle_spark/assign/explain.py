"""The result in the caller's words: every move with its reason and goal, how even and how expensive it is. Decides
nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from riffle_spark.assign.board import NOBODY, Board, is_allowed
from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.model import Assignment, AssignSettings, Balance, Goal, MemberId, Move, Role, TaskId, View
from riffle_spark.assign.owner_goals import Goals
from riffle_spark.assign.owner_moves import OwnerPlan
from riffle_spark.assign.racks import rack_cost, rack_warnings
from riffle_spark.assign.standby_moves import StandbyPlan
from riffle_spark.assign.standby_target import Copies

__all__ = ["Placement", "assignment_of", "balance_of", "spread_per_slot", "with_moves"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What the steps decided, by position: tasks with state on one board, those without on the other."""

    board: Board
    owners: OwnerPlan
    copies: Copies
    standbys: StandbyPlan
    stateless: Board
    stateless_owners: Sequence[int]
    goals: Goals | None = None


def assignment_of(view: View, placement: Placement, settings: AssignSettings) -> Assignment:
    """Return the assignment with its moves, figures and warnings."""
    board, plan, standbys = placement.board, placement.owners, placement.standbys
    stateless = _named(placement.stateless, placement.stateless_owners)
    assignment = Assignment(
        owners=dict(sorted((_named(board, plan.owners) | stateless).items())),
        standbys=_named_copies(board, standbys.standbys),
        warmups=_named_copies(board, standbys.warmups),
        target=dict(sorted((_named(board, plan.target) | stateless).items())),
        moves=tuple(sorted(_moves(placement, settings), key=lambda move: (move.task, move.role, move.target))),
        needs_probe=bool(standbys.unsettled),
        probe_reason=_probe_reason(placement),
        cost=_cost_of(placement, settings),
    )
    of_goals = placement.goals.warnings if placement.goals else ()
    told = (*_filter_warnings(view, settings), *_tag_warnings(view, settings), *_standby_warnings(view, settings))
    asked = (*told, *_awareness_warnings(view, placement.copies, settings), *of_goals)
    warnings = (*_memory_warnings(view, assignment), *rack_warnings(view, settings), *asked)
    return replace(assignment, balance=balance_of(view, assignment), warnings=warnings)


def _named(board: Board, owners: Sequence[int]) -> dict[TaskId, MemberId]:
    return {task.id: board.members[m].id for task, m in zip(board.tasks, owners, strict=True)}


def _named_copies(board: Board, standbys: Sequence[Sequence[int]]) -> dict[TaskId, tuple[MemberId, ...]]:
    return {
        task.id: tuple(sorted(board.members[m].id for m in held))
        for task, held in zip(board.tasks, standbys, strict=True)
        if held
    }


def _probe_reason(placement: Placement) -> str:
    unsettled, plan = placement.standbys.unsettled, placement.owners
    if not unsettled:
        return ""
    waiting = sum(a != b for a, b in zip(plan.owners, plan.target, strict=True))
    return f"{waiting} owners and the standbys of {len(unsettled)} tasks are not yet where they should be"


def _cost_of(placement: Placement, settings: AssignSettings) -> int:
    """Return the traffic cost between racks of the target's owners and standbys."""
    board, stateless, total = placement.board, placement.stateless, 0
    for each, target in ((board, placement.owners.target), (stateless, placement.stateless_owners)):
        for task, m in zip(each.tasks, target, strict=True):
            total += rack_cost(task.owner_traffic, each.members[m].rack, settings)
    for task, held in zip(board.tasks, placement.copies.standbys, strict=True):
        total += sum(rack_cost(task.standby_traffic, board.members[m].rack, settings) for m in held)
    return total


def _memory_warnings(view: View, assignment: Assignment) -> list[str]:
    """Say which members hold more than their memory."""
    held: Counter[MemberId] = Counter()
    for task in view.tasks:
        copies = (*assignment.standbys.get(task.id, ()), *assignment.warmups.get(task.id, ()))
        for member in (assignment.owners[task.id], *copies):
            held[member] += task.memory_bytes
    return [
        f"member {member.id} is given {held[member.id]} bytes of state and has memory for {member.memory_bytes}"
        for member in sorted(view.members, key=lambda member: member.id)
        if member.memory_bytes is not None and held[member.id] > member.memory_bytes
    ]


def _filter_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Say where the operator's filters leave nobody, so that they are not followed."""
    if view.members and not any(is_allowed(member, settings) for member in view.members):
        told = [
            f"{name} = {_pairs(pairs)}"
            for name, pairs in (("include", settings.include), ("exclude", settings.exclude))
            if pairs
        ]
        yield f"no live member is left by {' and '.join(told)}: all count as if nothing had been said"


def _tag_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Say which tags no member has that settings name: what they ask for has no effect."""
    here = (*view.members, *view.awaited)
    for name, tags in (
        ("include", [tag for tag, _ in settings.include]),
        ("exclude", [tag for tag, _ in settings.exclude]),
        ("rack_aware_assignment_tags", settings.rack_aware_assignment_tags),
        ("forced_awareness", sorted(settings.forced_awareness) if settings.num_standbys else ()),
    ):
        for tag in dict.fromkeys(tags):
            if here and all(member.attribute(tag) is None for member in here):
                yield f"{name} names the tag {tag}, which no member has: it has no effect"


def _standby_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Say where members are too few for the standbys that are wanted."""
    able = len(view.members) + len(view.awaited)
    if settings.num_standbys >= able > 0 and any(task.kind == "stateful" for task in view.tasks):
        yield f"num_standbys = {settings.num_standbys}, and {able} members have room for {able - 1} beside the owner"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{tag}={value}" for tag, value in pairs)


def _awareness_warnings(view: View, copies: Copies, settings: AssignSettings) -> Iterator[str]:
    """Say how many standbys stay unassigned because a tag's value that should be there has no member."""
    if not settings.forced_awareness or not settings.num_standbys:
        return
    for tag, values in sorted(settings.forced_awareness.items()):
        here = {member.attribute(tag) for member in view.members} - {None}
        away = sorted(set(values) - here)
        missing = sum(settings.num_standbys - len(copies.standbys[t]) for t in copies.stateful)
        if here and away and missing:
            told = f"{tag} = {', '.join(away)}"
            yield f"{missing} standbys stay unassigned: forced_awareness keeps them for {told}, where no member is"


class _Reason(NamedTuple):
    goal: Goal | str
    text: str
    forced: bool = False


def _moves(placement: Placement, settings: AssignSettings) -> Iterator[Move]:
    board, plan, standbys = placement.board, placement.owners, placement.standbys
    reasons = _Reasons(placement, settings)
    for t, owner in enumerate(plan.owners):
        if owner != board.owners[t]:
            yield _move(board, t, owner, "owner", reasons.owner(t))
        for m in standbys.warmups[t]:
            yield _move(board, t, m, "warmup", reasons.warmup(t, m))
        for m in standbys.standbys[t]:
            if m not in board.standbys[t]:
                yield _move(board, t, m, "standby", reasons.standby(t, m))
    board = placement.stateless
    for t, owner in enumerate(placement.stateless_owners):
        if owner != board.owners[t]:
            is_first = board.owners[t] == NOBODY
            first, level = _Reason("valid", "has no owner", True), _Reason("balance", "levels the tasks without state")
            yield _move(board, t, owner, "owner", first if is_first else level)


def _move(board: Board, task: int, member: int, role: Role, reason: _Reason) -> Move:
    before = board.owners[task]
    source = board.members[before].id if before != NOBODY else None
    return Move(board.tasks[task].id, role, source, board.members[member].id, *reason)


class _Reasons:
    """Which goal asked for a place: the first one, in order, that the place until now did not meet."""

    def __init__(self, placement: Placement, settings: AssignSettings) -> None:
        self._board, self._plan, self._settings = placement.board, placement.owners, settings
        self._goals = placement.goals
        self._low, self._high = fair_range(len(self._board.tasks), self._board.placeable_slots)
        self._load = [0] * len(self._board.members)
        for owner in self._board.owners:
            if owner != NOBODY:
                self._load[owner] += 1

    def owner(self, task: int) -> _Reason:
        """Return why the task gets another owner."""
        board, owner = self._board, self._plan.owners[task]
        before = board.owners[task]
        if before == NOBODY:
            return _Reason("valid", "has no living owner; goes to a most caught-up member", True)
        if board.rank(task, before) > board.rank(task, owner):
            return _Reason("caught_up", "its owner lags and this member is closer to caught up", True)
        return self._better(task, before, owner)._replace(forced=task in self._plan.forced)

    def _better(self, task: int, giver: int, taker: int) -> _Reason:
        """Return why the taker should own the task rather than the giver."""
        board = self._board
        ordered = self._ordered(task, giver, taker)
        if ordered is not None:
            return ordered
        if board.incumbents[task] == taker != board.owners[task]:
            return _Reason("return", "belongs to this member, which is back")
        asked = self._goals.asked_for(task, giver) if self._goals else None
        return self._by_own_order(task, giver, taker) if asked is None else _Reason(asked, f"goal {asked} asks for it")

    def _by_own_order(self, task: int, giver: int, taker: int) -> _Reason:
        board = self._board
        if self._load[giver] > self._high[giver] or self._load[taker] < self._low[taker]:
            return _Reason("balance", "levels the tasks per slot")
        traffic = board.tasks[task].owner_traffic
        before, after = (traffic.parts_read_across(board.members[m].rack) for m in (giver, taker))
        if self._settings.rack_aware_assignment_strategy != "none" and after < before:
            return _Reason("rack", "reads less from other racks")
        if self._settings.user_cost is not None:
            return _Reason("user", "the user's own cost is lower")
        return _Reason("spread", "spreads the tasks of its group")

    def _ordered(self, task: int, giver: int, taker: int) -> _Reason | None:
        """Return which order moves the task, if one does."""
        board = self._board
        is_pinned = board.pins[task] == taker
        if is_pinned or not board.placeable[giver]:
            return _Reason("operator", "pinned there by hand" if is_pinned else "its member is drained or excluded")
        if board.is_quarantined(task, giver):
            return _Reason("allowed", "its member should have no copy: its disk is too full, or it never catches up")
        return None

    def warmup(self, task: int, member: int) -> _Reason:
        """Return why ``member`` warms up a copy."""
        if member != self._plan.target[task]:
            return _Reason("standby", "warms up to become a standby")
        goal, text, _ = self._better(task, self._plan.owners[task], member)
        return _Reason(goal, f"warms up to own it: {text}")

    def standby(self, task: int, member: int) -> _Reason:
        """Return why ``member`` becomes a standby."""
        board = self._board
        if member == board.owners[task]:
            return _Reason("standby", "its owner until now keeps a copy")
        holds = board.rank(task, member) < board.absent[task]
        return _Reason("standby", "already holds a copy" if holds else "keeps a spare copy")


def with_moves(view: View, answer: Assignment) -> Assignment:
    """Return an answer of a user's assignor with the moves that it makes and does not name."""
    named = {(move.task, move.role, move.target) for move in answer.moves}
    owners = {task: (owner,) for task, owner in answer.owners.items()}
    before = {task: (owner,) for task, owner in view.owners.items()}
    roles: tuple[tuple[Role, Mapping[TaskId, tuple[MemberId, ...]], Mapping[TaskId, tuple[MemberId, ...]]], ...] = (
        ("owner", owners, before),
        ("standby", answer.standbys, view.standbys),
        ("warmup", answer.warmups, view.warmups),
    )
    unnamed = [
        Move(task, role, view.owners.get(task), member, "user", "the assignor's answer")
        for role, now, then in roles
        for task, members in sorted(now.items())
        for member in members
        if member not in then.get(task, ()) and (task, role, member) not in named
    ]
    return replace(answer, moves=(*answer.moves, *unnamed))


def spread_per_slot(view: View, holders: Iterable[MemberId]) -> float:
    """Return most minus fewest per slot over the members; ``holders`` names one for each thing that is held."""
    counts = Counter(holders)
    loads = [counts[member.id] / max(member.slots, 1) for member in view.members]
    return max(loads) - min(loads) if loads else 0.0


def balance_of(view: View, assignment: Assignment) -> Balance:
    """Return how even owners, copies and the owners of each group are."""
    owners = assignment.owners
    stateful = [owners[task.id] for task in view.tasks if task.kind != "stateless" and task.id in owners]
    copies = [*stateful, *(m for held in assignment.standbys.values() for m in held)]
    groups = Counter((task.group, owner) for task, owner in owners.items())
    worst = 0
    for group in {task.group for task in owners}:
        counts = [groups[group, member.id] for member in view.members]
        worst = max(worst, max(counts) - min(counts))
    return Balance(
        owners=spread_per_slot(view, owners.values()),
        stateful_owners=spread_per_slot(view, stateful),
        stateful_copies=spread_per_slot(view, copies),
        worst_group=worst,
    )
