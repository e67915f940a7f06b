"""Describe an assignment in the caller's ids: moves with reasons and goals, balance, cost and warnings."""

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


@dataclass(frozen=True, slots=True)
class Placement:
    """The results of all steps, by position: a board for tasks with state, and a board for tasks without."""

    board: Board
    owners: OwnerPlan
    copies: Copies
    standbys: StandbyPlan
    stateless: Board
    stateless_owners: Sequence[int]
    goals: Goals | None = None


def assignment_of(view: View, placement: Placement, settings: AssignSettings) -> Assignment:
    """Return a placement as an ``Assignment`` with member and task ids, its moves, figures and warnings."""
    board = placement.board
    plan = placement.owners
    standbys = placement.standbys
    stateless = _name_owners(placement.stateless, placement.stateless_owners)
    assignment = Assignment(
        owners=dict(sorted((_name_owners(board, plan.owners) | stateless).items())),
        standbys=_name_copies(board, standbys.standbys),
        warmups=_name_copies(board, standbys.warmups),
        target=dict(sorted((_name_owners(board, plan.target) | stateless).items())),
        moves=tuple(sorted(_list_moves(placement, settings), key=lambda move: (move.task, move.role, move.target))),
        needs_probe=bool(standbys.unsettled),
        probe_reason=_probe_reason(placement),
        cost=_compute_rack_cost(placement, settings),
    )
    warnings = (
        *_memory_warnings(view, assignment),
        *rack_warnings(view, settings),
        *_filter_warnings(view, settings),
        *_tag_warnings(view, settings),
        *_standby_warnings(view, settings),
        *_awareness_warnings(view, placement.copies, settings),
        *(placement.goals.warnings if placement.goals else ()),
    )
    return replace(assignment, balance=balance_of(view, assignment), warnings=warnings)


def _name_owners(board: Board, owners: Sequence[int]) -> dict[TaskId, MemberId]:
    """Return the owner of each task by ids. ``owners`` has the members' positions."""
    return {task.id: board.members[m].id for task, m in zip(board.tasks, owners, strict=True)}


def _name_copies(board: Board, copies: Sequence[Sequence[int]]) -> dict[TaskId, tuple[MemberId, ...]]:
    """Return the members with a copy of each task by ids, sorted. Tasks without copies are left out."""
    return {
        task.id: tuple(sorted(board.members[m].id for m in members))
        for task, members in zip(board.tasks, copies, strict=True)
        if members
    }


def _probe_reason(placement: Placement) -> str:
    """Return which tasks have yet to move, in words; empty if all are settled."""
    unsettled = placement.standbys.unsettled
    plan = placement.owners
    if not unsettled:
        return ""
    waiting_count = sum(a != b for a, b in zip(plan.owners, plan.target, strict=True))
    return f"{waiting_count} owners and the standbys of {len(unsettled)} tasks are not yet where they should be"


def _compute_rack_cost(placement: Placement, settings: AssignSettings) -> int:
    """Return the cost of the reads across racks in the target, of owners and standbys."""
    board = placement.board
    total = 0
    for tasks, target in (
        (board.tasks, placement.owners.target),
        (placement.stateless.tasks, placement.stateless_owners),
    ):
        for task, m in zip(tasks, target, strict=True):
            total += rack_cost(task.owner_traffic, board.members[m].rack, settings)
    for task, members in zip(board.tasks, placement.copies.standbys, strict=True):
        total += sum(rack_cost(task.standby_traffic, board.members[m].rack, settings) for m in members)
    return total


def _memory_warnings(view: View, assignment: Assignment) -> list[str]:
    """Return a warning for each member whose assigned state exceeds its room."""
    sizes: Counter[MemberId] = Counter()
    for task in view.tasks:
        copies = (*assignment.standbys.get(task.id, ()), *assignment.warmups.get(task.id, ()))
        for member in (assignment.owners[task.id], *copies):
            sizes[member] += task.memory_bytes
    # Cause: The members have too little disk or memory for all owners and standbys.
    return [
        f"[RIFFLE-0776] Member {member.id} gets {size} bytes of state, but has room for {member.memory_bytes}. "
        "What to do: Add executors, or give them more disk and memory."
        for member in sorted(view.members, key=lambda member: member.id)
        if member.memory_bytes is not None and (size := sizes[member.id]) > member.memory_bytes
    ]


def _filter_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Yield a warning if the operator's filters allow no member. They are then ignored."""
    if view.members and not any(is_allowed(member, settings) for member in view.members):
        filters = [
            f"{name} = {', '.join(f'{tag}={value}' for tag, value in pairs)}"
            for name, pairs in (("include", settings.include), ("exclude", settings.exclude))
            if pairs
        ]
        # Cause: All executors match exclude, or none of them matches include.
        yield (
            f"[RIFFLE-0777] {' and '.join(filters)} allows no live member, so all members count. "
            f"What to do: Change the filters, or start an executor that they allow."
        )


def _tag_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Yield a warning for each tag in the settings that no member has."""
    members = (*view.members, *view.awaited)
    for name, tags in (
        ("include", [tag for tag, _ in settings.include]),
        ("exclude", [tag for tag, _ in settings.exclude]),
        ("rack_aware_assignment_tags", settings.rack_aware_assignment_tags),
        ("forced_awareness", sorted(settings.forced_awareness) if settings.num_standbys else ()),
    ):
        for tag in dict.fromkeys(tags):
            if members and all(member.attribute(tag) is None for member in members):
                # Cause: The tag is misspelled, or no executor reports it.
                yield (
                    f"[RIFFLE-0778] {name} has no effect for the tag {tag}, because no member has it. "
                    f"What to do: Correct the name of the tag, or set RIFFLE_TAG_<NAME> for the executors."
                )


def _standby_warnings(view: View, settings: AssignSettings) -> Iterator[str]:
    """Yield a warning if ``num_standbys`` needs more members than there are."""
    count = len(view.members) + len(view.awaited)
    if settings.num_standbys >= count > 0 and any(task.kind == "stateful" for task in view.tasks):
        # Cause: Each standby of a key-group needs a member of its own, besides the owner.
        standbys = count - 1
        yield (
            f"[RIFFLE-0779] num_standbys = {settings.num_standbys}, but {count} members have room for only "
            f"{standbys} besides the owner. What to do: Add executors, or lower num_standbys."
        )


def _awareness_warnings(view: View, copies: Copies, settings: AssignSettings) -> Iterator[str]:
    """Yield a warning for standbys that stay unassigned because a value in ``forced_awareness`` has no member."""
    if not settings.num_standbys:
        return
    for tag, values in sorted(settings.forced_awareness.items()):
        present = {member.attribute(tag) for member in view.members} - {None}
        absent = sorted(set(values) - present)
        missing = sum(settings.num_standbys - len(copies.standbys[t]) for t in copies.stateful)
        if present and absent and missing:
            yield (
                f"[RIFFLE-0780] {missing} standbys stay unassigned, because forced_awareness reserves them for "
                f"{tag} = {', '.join(absent)}, which has no member. "
                f"What to do: Start executors with this value, or remove it from "
                "forced_awareness."
            )


class _Reason(NamedTuple):
    """Why a task or copy moves: the goal, the text, and whether the move is exempt from ``moves_at_once``."""

    goal: Goal | str
    text: str
    forced: bool = False


def _list_moves(placement: Placement, settings: AssignSettings) -> Iterator[Move]:
    """Yield each change of an owner, each warm-up and each new standby of a placement, with its reason."""
    board = placement.board
    plan = placement.owners
    standbys = placement.standbys
    reasons = _Reasons(placement, settings)
    for t, owner in enumerate(plan.owners):
        if owner != board.owners[t]:
            yield _make_move(board, t, owner, "owner", reasons.explain_owner(t))
        for m in standbys.warmups[t]:
            yield _make_move(board, t, m, "warmup", reasons.explain_warmup(t, m))
        for m in standbys.standbys[t]:
            if m not in board.standbys[t]:
                yield _make_move(board, t, m, "standby", reasons.explain_standby(t, m))
    board = placement.stateless
    for t, owner in enumerate(placement.stateless_owners):
        if owner != board.owners[t]:
            if board.owners[t] == NOBODY:
                yield _make_move(board, t, owner, "owner", _Reason("valid", "has no owner", True))
            else:
                yield _make_move(board, t, owner, "owner", _Reason("balance", "levels the tasks without state"))


def _make_move(board: Board, task: int, member: int, role: Role, reason: _Reason) -> Move:
    """Return the move of a task or its copy to a member, by positions. Its source is the present owner, if any."""
    owner = board.owners[task]
    source = board.members[owner].id if owner != NOBODY else None
    return Move(board.tasks[task].id, role, source, board.members[member].id, *reason)


class _Reasons:
    """Finds the reason for a move: the first goal, in order of precedence, that the present member does not meet."""

    def __init__(self, placement: Placement, settings: AssignSettings) -> None:
        self._board = placement.board
        self._plan = placement.owners
        self._settings = settings
        self._goals = placement.goals
        self._low, self._high = fair_range(len(self._board.tasks), self._board.placeable_slots)
        self._load = Counter(self._board.owners)

    def explain_owner(self, task: int) -> _Reason:
        """Return why the task gets another owner now."""
        board = self._board
        owner = self._plan.owners[task]
        previous = board.owners[task]
        if previous == NOBODY:
            return _Reason("valid", "has no live owner; goes to a most caught-up member", True)
        if board.rank(task, previous) > board.rank(task, owner):
            return _Reason("caught_up", "its owner lags and this member is closer to caught up", True)
        return self._compare_members(task, previous, owner)._replace(forced=task in self._plan.forced)

    def _compare_members(self, task: int, giver: int, taker: int) -> _Reason:
        """Return why member ``taker`` should own the task instead of member ``giver``."""
        board = self._board
        if board.pins[task] == taker:
            return _Reason("operator", "an operator pinned it there")
        if not board.placeable[giver]:
            return _Reason("operator", "its member is drained or excluded")
        if board.is_quarantined(task, giver):
            return _Reason("allowed", "its member should have no copy: its disk is too full, or it never catches up")
        if board.incumbents[task] == taker != board.owners[task]:
            return _Reason("return", "belongs to this member, which is back")
        goal = self._goals.unmet_goal(task, giver) if self._goals else None
        return (
            self._compare_by_default_goals(task, giver, taker)
            if goal is None
            else _Reason(goal, f"improves the goal {goal}")
        )

    def _compare_by_default_goals(self, task: int, giver: int, taker: int) -> _Reason:
        """Return why ``taker`` is better than ``giver`` by the built-in goals in their default order: balance, racks,
        user cost, spread.
        """
        board = self._board
        if self._load[giver] > self._high[giver] or self._load[taker] < self._low[taker]:
            return _Reason("balance", "levels the tasks per slot")
        traffic = board.tasks[task].owner_traffic
        read_by_giver, read_by_taker = (traffic.parts_read_across(board.members[m].rack) for m in (giver, taker))
        if self._settings.rack_aware_assignment_strategy != "none" and read_by_taker < read_by_giver:
            return _Reason("rack", "reads less from other racks")
        if self._settings.user_cost is not None:
            return _Reason("user", "the user's own cost is lower")
        return _Reason("spread", "spreads the tasks of its group")

    def explain_warmup(self, task: int, member: int) -> _Reason:
        """Return why the member warms up a copy of the task."""
        if member != self._plan.target[task]:
            return _Reason("standby", "warms up to become a standby")
        goal, text, _ = self._compare_members(task, self._plan.owners[task], member)
        return _Reason(goal, f"warms up to own it: {text}")

    def explain_standby(self, task: int, member: int) -> _Reason:
        """Return why the member becomes a standby of the task."""
        board = self._board
        if member == board.owners[task]:
            return _Reason("standby", "its previous owner keeps a copy")
        has_copy = board.rank(task, member) < board.rank_without_copy[task]
        return _Reason("standby", "already has a copy" if has_copy else "keeps a spare copy")


def add_unlisted_moves(view: View, answer: Assignment) -> Assignment:
    """Return the assignment of a user's assignor, with the moves added that its owners and copies imply but its
    ``moves`` omit.
    """
    listed_moves = {(move.task, move.role, move.target) for move in answer.moves}
    owners = {task: (owner,) for task, owner in answer.owners.items()}
    previous_owners = {task: (owner,) for task, owner in view.owners.items()}
    roles: tuple[tuple[Role, Mapping[TaskId, tuple[MemberId, ...]], Mapping[TaskId, tuple[MemberId, ...]]], ...] = (
        ("owner", owners, previous_owners),
        ("standby", answer.standbys, view.standbys),
        ("warmup", answer.warmups, view.warmups),
    )
    unlisted_moves = [
        Move(task, role, view.owners.get(task), member, "user", "the assignor's answer")
        for role, copies, previous_copies in roles
        for task, members in sorted(copies.items())
        for member in members
        if member not in previous_copies.get(task, ()) and (task, role, member) not in listed_moves
    ]
    return replace(answer, moves=(*answer.moves, *unlisted_moves))


def spread_per_slot(view: View, holders: Iterable[MemberId]) -> float:
    """Return the difference between the fullest and the emptiest member, in tasks per slot.

    ``holders`` has one member per task or copy.
    """
    counts = Counter(holders)
    loads = [counts[member.id] / max(member.slots, 1) for member in view.members]
    return max(loads) - min(loads) if loads else 0.0


def balance_of(view: View, assignment: Assignment) -> Balance:
    """Return how evenly owners, copies and the owners of each group are distributed over the members."""
    owners = assignment.owners
    stateful = [owners[task.id] for task in view.tasks if task.kind != "stateless" and task.id in owners]
    copies = [*stateful, *(m for members in assignment.standbys.values() for m in members)]
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
