"""The one entry: a view in, an assignment out. Knows the order of the steps, and users' own assignors. Does not know
how any step works.

The high availability assignor follows KIP-441, with a target that respects owners.
"""

import functools
import operator
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import PurePath
from typing import cast

from riffle_spark.assign.baselines import hash_assignor, sticky_assignor
from riffle_spark.assign.board import NOBODY, WITH_STATE, WITHOUT_STATE, Board, board_of, is_allowed
from riffle_spark.assign.explain import Placement, assignment_of, with_moves
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, Member, MemberId, Task, TaskId, View
from riffle_spark.assign.owner_goals import Goals, name_of
from riffle_spark.assign.owner_moves import OwnerPlan, plan_owners
from riffle_spark.assign.owner_target import owner_target
from riffle_spark.assign.racks import racks_count, save_traffic
from riffle_spark.assign.standby_moves import plan_standbys
from riffle_spark.assign.standby_target import standby_target
from riffle_spark.assign.validity import orders_broken, refusals
from riffle_spark.errors import ConfigError
from riffle_spark.settings import LINES, Settings
from riffle_spark.unknown_names import nearest

__all__ = [
    "assign",
    "assign_settings",
    "high_availability",
    "load_assignor",
    "obeyed",
    "raised",
    "refusals",
    "with_own",
    "with_target",
]

_OURS = ("high_availability", "sticky", "hash")
_NAMED = 5
_DEAREST = 1_000_000_000
"""What a user's cost counts at most: sums of more would lose the difference that a move makes."""


def assign(view: View, settings: AssignSettings) -> Assignment:
    """Return who owns, keeps and warms what: pure, the same answer for the same view and settings on any machine.

    Raises ``ConfigError`` if there is a task and no member.

    >>> from riffle_spark.assign.model import Member, Task, TaskId
    >>> view = View((Member("a"), Member("b")), (Task(TaskId("counts", 0)), Task(TaskId("counts", 1))))
    >>> dict(assign(view, AssignSettings()).owners)
    {TaskId(group='counts', key_group=0): 'a', TaskId(group='counts', key_group=1): 'b'}
    """
    if view.tasks and not view.members:
        raise ConfigError(
            "there is no live member to place tasks on", remedy="start an executor, then assign again", id="RIFFLE-0107"
        )
    settings, said = _with_costs(view, settings)
    answer = _answer(view, settings)
    return replace(answer, warnings=(*said, *answer.warnings)) if said else answer


def _answer(view: View, settings: AssignSettings) -> Assignment:
    chosen = settings.assignor
    if chosen == "high_availability":
        return high_availability(view, settings)
    if chosen in ("sticky", "hash"):
        return obeyed(view, (sticky_assignor if chosen == "sticky" else hash_assignor)(view, settings), settings)
    return _users_assignment(view, settings, _loaded_once(chosen) if isinstance(chosen, str) else chosen)


def _users_assignment(view: View, settings: AssignSettings, assignor: Assignor) -> Assignment:
    """Take a user's answer if it is valid, pins and drains mended; else keep what is and say what was wrong."""
    try:
        answer = assignor(view.read_only(), settings)
    except Exception as error:  # noqa: BLE001 - the user's code: the query goes on with what is, and the warning says why
        return _last_or_default(view, settings, [raised(error, assignor)])
    wrong = refusals(view, answer, settings)
    if wrong:
        return _last_or_default(view, settings, wrong)
    return obeyed(view, with_moves(view, with_target(_in_ids_of(view, answer))), settings)


def obeyed(view: View, answer: Assignment, settings: AssignSettings) -> Assignment:
    """Return a valid answer in which pins and drains hold, as they do for any assignor: of tasks that it leaves away
    from their pin or on a drained or excluded member for good, the default assignor decides, and a warning says so.
    """
    broken = orders_broken(view, answer, settings)
    if not broken:
        return answer
    mended = high_availability(
        replace(view, tasks=tuple(task for task in view.tasks if task.id in broken)),
        replace(settings, max_warmup_replicas=_warmups_left(answer, broken, settings)),
    )
    named = _listed(sorted(broken))
    told = f"the assignor's answer leaves tasks away from their pin or on a drained member, and is mended for {named}"
    return replace(
        answer,
        owners={**answer.owners, **mended.owners},
        standbys=_instead(answer.standbys, mended.standbys, broken),
        warmups=_instead(answer.warmups, mended.warmups, broken),
        target={**answer.target, **mended.target},
        moves=(*(move for move in answer.moves if move.task not in broken), *mended.moves),
        needs_probe=mended.needs_probe or (answer.needs_probe and _waits(answer, broken)),
        probe_reason=mended.probe_reason or answer.probe_reason,
        warnings=(*answer.warnings, told),
    )


def _waits(answer: Assignment, broken: Collection[TaskId]) -> bool:
    """Tell whether anything but the broken tasks is on its way: what an answer wants for these never comes."""
    left = [task for task in answer.owners if task not in broken]
    return any(answer.warmups.get(task) or answer.target.get(task) != answer.owners[task] for task in left)


def _listed(tasks: Sequence[object]) -> str:
    """Name the first of some tasks, and how many they are."""
    more = len(tasks) - _NAMED
    return ", ".join(map(str, tasks[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def _warmups_left(answer: Assignment, broken: Collection[TaskId], settings: AssignSettings) -> int:
    kept = sum(len(members) for task, members in answer.warmups.items() if task not in broken)
    return max(settings.max_warmup_replicas - kept, 0)


def _instead(
    copies: Mapping[TaskId, tuple[MemberId, ...]], mended: Mapping[TaskId, tuple[MemberId, ...]],
    broken: Collection[TaskId],
) -> dict[TaskId, tuple[MemberId, ...]]:  # fmt: skip
    return {**{task: members for task, members in copies.items() if task not in broken}, **mended}


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
    goals = Goals(board, settings, racks=racks)
    wanted = goals.improved(owner_target(board, settings, racks=racks))
    stays = goals.missed or asked.moves_at_once == 0  # then nothing warms up in vain
    target = _unless_kept(board, wanted, replace(settings, rebalance_enable="none") if stays else settings)
    plan = plan_owners(board, target, settings)
    if settings is not asked:
        plan = _all_at_once(board, target, asked) or plan
    copies = standby_target(board, plan, settings, racks=racks)
    if racks and settings.rebalance_enable in ("all", "standbys"):
        save_traffic(copies, settings)
    standbys = plan_standbys(board, plan, copies, settings)
    base = [0] * len(board.members)
    for owner in plan.target:
        base[owner] += 1
    stateless = replace(board_of(view, WITHOUT_STATE, settings), base=tuple(base))
    owners = _place_stateless(stateless, settings, racks=racks)
    return assignment_of(view, Placement(board, plan, copies, standbys, stateless, owners, goals), settings)


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
        incumbent if incumbent >= 0 and board.placeable[incumbent] and board.pins[t] < 0 else target[t]
        for t, incumbent in enumerate(board.incumbents)
    ]


def _place_stateless(board: Board, settings: AssignSettings, *, racks: bool) -> list[int]:
    """Place the tasks without state around the others' target; nothing needs to warm up."""
    if not board.tasks:
        return []
    free = replace(settings, rack_aware_assignment_traffic_cost=1, rack_aware_assignment_non_overlap_cost=0)
    target = _unless_kept(board, owner_target(board, free, racks=racks), settings)
    stand_in = board.may_own.index(True)
    return [m if board.live[m] else max(board.owners[t], stand_in) for t, m in enumerate(target)]


def assign_settings(settings: Settings, drained: Iterable[MemberId] = ()) -> AssignSettings:
    """Return the settings of a query that concern assignment; a drained member may keep nothing in the end."""
    loaded = with_own(settings)
    chosen: dict[str, object] = {
        each.name: getattr(loaded, each.name) for each in fields(AssignSettings) if each.name in LINES
    }
    chosen["forced_awareness"] = dict(loaded.forced_awareness)
    chosen["exclude"] = (*loaded.exclude, *(("id", member) for member in sorted(drained)))
    return AssignSettings(**chosen)  # type: ignore[arg-type] # each is what the setting of its name is


def with_own(settings: Settings) -> Settings:
    """Return the settings with the user's assignor that they name by its path; of a class an instance is made, once for
    each call: a query calls this once. Raises ``ConfigError`` if the path names nothing that can be called.
    """
    if settings.assignor in _OURS:
        return settings
    assignor = load_assignor(settings.assignor)
    return settings if assignor == settings.assignor else settings.but(assignor=assignor)


def load_assignor(assignor: object) -> Assignor:
    """Return a user's assignor, or what its dotted path names (``package.module.name`` or ``package.module:name``); of
    a class an instance.

    Raises ``ConfigError`` if it cannot be called, or if importing or making it fails.
    """
    loaded = _imported(assignor) if isinstance(assignor, str) else assignor
    if isinstance(loaded, type):
        loaded = _instance(loaded, str(assignor))
    if not callable(loaded):
        raise ConfigError(
            f"{assignor!r} cannot be called", remedy="name a function", where="assignor", id="RIFFLE-0108"
        )
    return cast("Assignor", loaded)


def _imported(path: str) -> object:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as missing:
        why = f"{type(missing).__name__}: {missing}" if module else "that is no dotted path"
        meant = "" if module else nearest(path, _OURS)
        near = f"did you mean {meant!r}? Else " if meant else ""
        raise ConfigError(
            f"no assignor is found at {path!r}: {why}",
            remedy=f"{near}use {', '.join(_OURS)}, a function, or the dotted path of your own",
            where="assignor",
            id="RIFFLE-0109",
        ) from missing
    return found


@functools.cache
def _loaded_once(path: str) -> Assignor:
    """Return the assignor of a path for calls that no query makes: once a process."""
    return load_assignor(path)


def _instance(kind: type, path: str) -> object:
    try:
        return kind()
    except Exception as error:
        raise ConfigError(
            f"the assignor {path!r} cannot be made: {_error_text(error, path)}",
            remedy="make it one that takes no arguments and does not fail, or name a function",
            where="assignor",
            id="RIFFLE-0110",
        ) from error


def _with_costs(view: View, settings: AssignSettings) -> tuple[AssignSettings, list[str]]:
    """Ask the user's cost of each task on each member once, and go by what it said; one that fails does not count.

    Tasks that it lets go nowhere are named: for these it is not followed.
    """
    rule = settings.user_cost
    if rule is None:
        return settings, []
    members = (*view.members, *view.awaited)
    try:
        costs = {(t.id, m.id): _whole(rule(t, m)) for t in view.tasks for m in members}
    except Exception as error:  # noqa: BLE001 - the user's code: the query goes on without it, and the warning says why
        said = f"user_cost raised {_error_text(error, name_of(rule))}; owners are assigned without it"
        return replace(settings, user_cost=None), [said]
    able = [m.id for m in members if is_allowed(m, settings)] or [m.id for m in members]
    lost = [str(t.id) for t in view.tasks if all(costs[t.id, m] is None for m in able)]
    told = [f"user_cost lets tasks go nowhere, and is not followed for these: {_listed(lost)}"] if lost else []

    def known(task: Task, member: Member) -> int | None:
        at = (task.id, member.id)
        return costs[at] if at in costs else _whole(rule(task, member))

    return replace(settings, user_cost=known), told


def _whole(cost: object) -> int | None:
    if cost is None:
        return None
    return min(max(operator.index(cost), -_DEAREST), _DEAREST)  # type: ignore[arg-type] # else it raises, as it should


def raised(error: Exception, assignor: Assignor) -> str:
    """Say what a user's assignor raised, and where in its own code."""
    return f"the assignor raised {_error_text(error, name_of(assignor))}"


def _error_text(error: Exception, name: str) -> str:
    """Return type, text and place: of the frames after ours the last in the file of the first."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f"{PurePath(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}" if own else name
    return f"{type(error).__name__}: {error} ({place})"


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
