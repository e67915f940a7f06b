"""The one entry: a view in, an assignment out. Knows the order of the steps, and users' own assignors. Does not know
how any step works.

The high availability assignor follows KIP-441, with a target that respects owners.
"""

import functools
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import PurePath

from riffle_spark.assign.baselines import hash_assignor, sticky_assignor
from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of
from riffle_spark.assign.explain import Placement, assignment_of
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, MemberId, Move, TaskId, View
from riffle_spark.assign.owner_moves import OwnerPlan, plan_owners
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import racks_count
from riffle_spark.assign.standby_moves import plan_standbys
from riffle_spark.assign.standby_racks import save_traffic
from riffle_spark.assign.standby_target import standby_target
from riffle_spark.assign.validity import violations
from riffle_spark.errors import ConfigError
from riffle_spark.unknown_names import nearest

__all__ = ["assign", "high_availability", "load_assignor", "raised", "refusals", "with_target"]

_OURS = ("high_availability", "sticky", "hash")


def assign(view: View, settings: AssignSettings) -> Assignment:
    """Return who owns, keeps and warms what: pure, the same answer for the same view and settings on any machine.

    Raises ``ConfigError`` if there is a task and no member.

    >>> from riffle_spark.assign.model import Member, Task, TaskId
    >>> view = View((Member("a"), Member("b")), (Task(TaskId("counts", 0)), Task(TaskId("counts", 1))))
    >>> dict(assign(view, AssignSettings()).owners)
    {TaskId(group='counts', key_group=0): 'a', TaskId(group='counts', key_group=1): 'b'}
    """
    if view.tasks and not view.members:
        raise ConfigError("there is no live member to place tasks on", remedy="start an executor, then assign again")
    chosen = settings.assignor
    if chosen == "high_availability":
        return high_availability(view, settings)
    if chosen in ("sticky", "hash"):
        return (sticky_assignor if chosen == "sticky" else hash_assignor)(view, settings)
    return _users_assignment(view, settings, load_assignor(chosen) if isinstance(chosen, str) else chosen)


def _users_assignment(view: View, settings: AssignSettings, assignor: Assignor) -> Assignment:
    """Take a user's answer if it is valid; else keep what is and say what was wrong."""
    try:
        answer = assignor(view, settings)
    except Exception as error:  # noqa: BLE001 - the user's code: the query goes on with what is, and the warning says why
        return _last_or_default(view, settings, [raised(error, assignor)])
    wrong = refusals(view, answer, settings)
    return _last_or_default(view, settings, wrong) if wrong else with_target(_in_ids_of(view, answer))


def _last_or_default(view: View, settings: AssignSettings, said: Sequence[str]) -> Assignment:
    """Keep the last assignment and place only what has no owner; where there is no last one, do as the default does."""
    is_first = not any(task.id in view.owners for task in view.tasks)
    kept = high_availability(view, settings if is_first else replace(settings, rebalance_enable="none"))
    instead = "there is no last assignment, so high_availability decides" if is_first else "the last assignment stays"
    return replace(kept, warnings=(*(f"{each}; {instead}" for each in said), *kept.warnings))


def high_availability(view: View, settings: AssignSettings) -> Assignment:
    """Return the assignment of KIP-441 and KIP-925 for this view."""
    asked, settings = settings, _allowed_moves(view, settings)
    racks = racks_count(view, settings)
    board = board_of(view, WITH_STATE, settings)
    target = _unless_kept(board, owner_target(board, settings, racks=racks), settings)
    plan = plan_owners(board, target, settings)
    if settings is not asked:
        plan = _all_at_once(board, target, asked) or plan
    copies = standby_target(board, plan.target, settings, racks=racks)
    if racks and settings.rebalance_enable in ("all", "standbys"):
        save_traffic(copies, settings)
    standbys = plan_standbys(board, plan, copies, settings)
    base = [0] * len(board.members)
    for owner in plan.target:
        base[owner] += 1
    stateless = replace(board_of(view, WITHOUT_STATE, settings), base=tuple(base))
    owners = _place_stateless(stateless, settings, racks=racks)
    return assignment_of(view, Placement(board, plan, copies, standbys, stateless, owners), settings)


def _allowed_moves(view: View, settings: AssignSettings) -> AssignSettings:
    """Only place what has no owner while there is any such task, unless the settings allow more always."""
    live = {member.id for member in view.members} | {member.id for member in view.awaited}
    owned = sum(view.owners.get(task.id) in live for task in view.tasks)
    if settings.allow_rebalance == "all_owned" and 0 < owned < len(view.tasks):
        return replace(settings, moves_at_once=0, max_warmup_replicas=0)
    return settings


def _all_at_once(board: Board, target: Sequence[int], settings: AssignSettings) -> OwnerPlan | None:
    """Return the plan by which standbys in sync take over and level in one rebalance, if that is all there is to do."""
    plan = plan_owners(board, target, replace(settings, max_warmup_replicas=0))
    moved = [t for t, m in enumerate(plan.owners) if board.owners[t] not in (NOBODY, m)]
    in_sync = all(plan.owners[t] in board.standbys[t] and board.rank(t, plan.owners[t]) == 0 for t in moved)
    return plan if in_sync and plan.owners == list(target) == plan.target else None


def _unless_kept(board: Board, target: list[int], settings: AssignSettings) -> list[int]:
    """Return the target, or where each task is now if owners are not to be rebalanced and it has one."""
    if settings.rebalance_enable in ("all", "owners"):
        return target
    return [
        home if home >= 0 and board.placeable[home] and board.pins[t] < 0 else target[t]
        for t, home in enumerate(board.homes)
    ]


def _place_stateless(board: Board, settings: AssignSettings, *, racks: bool) -> list[int]:
    """Place the tasks without state around the others' target; nothing needs to warm up."""
    if not board.tasks:
        return []
    free = replace(settings, rack_aware_assignment_traffic_cost=1, rack_aware_assignment_non_overlap_cost=0)
    target = _unless_kept(board, owner_target(board, free, racks=racks), settings)
    stand_in = board.may_own.index(True)
    return [m if board.live[m] else max(board.owners[t], stand_in) for t, m in enumerate(target)]


@functools.cache
def load_assignor(path: str) -> Assignor:
    """Return what the dotted path ``package.module.name`` (or ``package.module:name``) names; a class is made once a
    process.

    Raises ``ConfigError`` if it names nothing that can be called, or what fails when it is imported or made.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as missing:
        near = f"did you mean {nearest(path, _OURS)!r}? Else " if not module else ""
        raise ConfigError(
            f"no assignor is found at {path!r}: {type(missing).__name__}: {missing}",
            remedy=f"{near}use {', '.join(_OURS)}, or a dotted path to your own",
            where="assignor",
        ) from missing
    if isinstance(found, type):
        found = _instance(found, path)
    if not callable(found):
        raise ConfigError(f"{path!r} cannot be called", remedy="name a function (view, settings)", where="assignor")
    return found


def _instance(kind: type, path: str) -> object:
    try:
        return kind()
    except Exception as error:
        raise ConfigError(
            f"the assignor {path!r} cannot be made: {_error_text(error, path)}",
            remedy="make it one that takes no arguments and does not fail, or name a function (view, settings)",
            where="assignor",
        ) from error


def raised(error: Exception, assignor: Assignor) -> str:
    """Say what a user's assignor raised, and where in its own code."""
    return f"the assignor raised {_error_text(error, getattr(assignor, '__qualname__', type(assignor).__qualname__))}"


def _error_text(error: Exception, name: str) -> str:
    """Return type, text and place: of the frames after ours the last in the file of the first."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f"{PurePath(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}" if own else name
    return f"{type(error).__name__}: {error} ({place})"


def refusals(view: View, answer: object, settings: AssignSettings) -> tuple[str, ...]:
    """Name every violation in what a user's assignor returned; empty means it stands."""
    if not isinstance(answer, Assignment):
        wrong: tuple[str, ...] = (f"it returned {type(answer).__name__}, not an Assignment",)
    else:
        try:
            wrong = (*_misshapen(answer), *violations(view, answer, settings))
        except Exception as error:  # noqa: BLE001 - whatever a field of another type does where it is read
            wrong = (f"it cannot be read: {type(error).__name__}: {error}",)
    return tuple(f"the assignor's answer is refused: {each}" for each in wrong)


def _misshapen(answer: Assignment) -> Iterator[str]:
    """Name fields that only reports read, so that no violation would show what they are."""
    if not all(isinstance(move, Move) for move in answer.moves):
        yield "its moves are not all a Move"
    if not all(isinstance(text, str) for text in answer.warnings):
        yield "its warnings are not all texts"


def _in_ids_of(view: View, answer: Assignment) -> Assignment:
    """Return a valid answer in the view's own ids, members in tuples: a user's may be equal to them and of other types,
    as numbers of NumPy's are, which no record or order can tell.
    """
    ids = {task.id: task.id for task in view.tasks}
    return replace(
        answer,
        owners={ids[task]: member for task, member in answer.owners.items()},
        standbys={ids[task]: tuple(members) for task, members in answer.standbys.items() if members},
        warmups={ids[task]: tuple(members) for task, members in answer.warmups.items() if members},
        target={ids.get(task, task): member for task, member in answer.target.items()},
        moves=tuple(replace(move, task=ids.get(move.task, move.task)) for move in answer.moves),
    )


def with_target(answer: Assignment) -> Assignment:
    """Fill in the target an answer left out: the owners themselves."""
    target: Mapping[TaskId, MemberId] = answer.target or dict(answer.owners)
    return replace(answer, target=target)
