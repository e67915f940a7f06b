"""Check the rules that every assignment follows."""

from collections.abc import Collection, Iterator

from riffle_spark.assign.board import is_allowed
from riffle_spark.assign.model import Assignment, AssignSettings, Move, TaskId, View

_LISTS = (tuple, list)


def find_violations(view: View, assignment: Assignment, settings: AssignSettings | None = None) -> tuple[str, ...]:
    """Return the violated rules that every placement must obey, as texts; empty if the assignment is valid.

    With ``settings`` the number of warm-ups is checked, too.
    """
    problems = [*_owner_problems(view, assignment), *_copy_problems(view, assignment)]
    count = sum(map(len, assignment.warmups.values()))
    if settings is not None and count > settings.max_warmup_replicas:
        problems.append(f"{count} warm-ups are more than max_warmup_replicas = {settings.max_warmup_replicas}")
    return tuple(problems)


def _owner_problems(view: View, assignment: Assignment) -> Iterator[str]:
    """Yield texts for tasks without an owner, unknown tasks, and owners that are not live."""
    live = {member.id for member in view.members}
    tasks = {task.id for task in view.tasks}
    for task in sorted(tasks):
        if task not in assignment.owners:
            yield f"task {task} has no owner"
    for task, owner in sorted(assignment.owners.items()):
        if task not in tasks:
            yield f"task {task} is unknown"
        if owner not in live:
            yield f"owner {owner} of task {task} is not a live member"


def _copy_problems(view: View, assignment: Assignment) -> Iterator[str]:
    """Yield texts for standbys and warm-ups of unknown or stateless tasks, on members that are not live, and for
    members with two copies of a task.
    """
    live = {member.id for member in view.members}
    kinds = {task.id: task.kind for task in view.tasks}
    for role, copies in (("standby", assignment.standbys), ("warm-up", assignment.warmups)):
        for task, members in sorted(copies.items()):
            if members and task not in kinds:
                yield f"{role} of unknown task {task}"
            elif members and kinds[task] != "stateful":
                yield f"task {task} is {kinds[task]} and can have no {role}"
            yield from (
                f"{role} {member} of task {task} is not a live member" for member in members if member not in live
            )
    for task in sorted({*assignment.standbys, *assignment.warmups}):
        yield from _duplicate_problems(task, assignment)


def _duplicate_problems(task: TaskId, assignment: Assignment) -> Iterator[str]:
    """Yield a text for each member with two copies of the task."""
    owner = assignment.owners.get(task)
    members = [*assignment.standbys.get(task, ()), *assignment.warmups.get(task, ())]
    members += [] if owner is None else [owner]
    for member in sorted({member for member in members if members.count(member) > 1}):
        yield f"member {member} holds two copies of task {task}"


def tasks_with_broken_requests(view: View, assignment: Assignment, settings: AssignSettings) -> frozenset[TaskId]:
    """Return the tasks that stay for good away from their pin, or on a drained or excluded member.

    A task obeys a request if its target does and a copy warms up there. A pin has precedence over ``exclude``. If the
    filters allow no member, all members are allowed.
    """
    live = {member.id for member in view.members}
    allowed = {member.id for member in view.members if is_allowed(member, settings)} or live
    if not view.pins and allowed == live:
        return frozenset()
    broken = set()
    acceptable = settings.acceptable_recovery_lag
    small = {task.id for task in view.tasks if task.kind != "stateful" or task.size <= acceptable}
    for task, owner in assignment.owners.items():
        pin = view.pins.get(task)
        goal = assignment.target.get(task, owner)
        copies = (*assignment.standbys.get(task, ()), *assignment.warmups.get(task, ()))
        allowed_owners = {pin} if pin in live else allowed | {member.id for member in view.awaited}
        lag = 0 if task in small else view.lags.get(task, {}).get(goal)
        is_ready = goal in live and lag is not None and lag <= acceptable
        waits_in_vain = is_ready and owner not in allowed_owners
        misplaced_copy = any(member not in allowed and member not in allowed_owners for member in copies)
        if goal not in allowed_owners or waits_in_vain or misplaced_copy:
            broken.add(task)
    return frozenset(broken)


def find_refusals(view: View, answer: object, settings: AssignSettings) -> tuple[str, ...]:
    """Return texts that say why the result of a user's assignor cannot be used; empty if it can."""
    if not isinstance(answer, Assignment):
        problems: tuple[str, ...] = (f"it is of type {type(answer).__name__}, not Assignment",)
    else:
        try:
            problems = (*_type_problems(answer), *find_violations(view, answer, settings))
        except Exception as error:  # noqa: BLE001 - a field of a wrong type may raise anything
            problems = (f"it cannot be read: {type(error).__name__}: {error}",)
    # Cause: The user's own assignor returned this. The last assignment stays, and only tasks without an owner are
    # placed.
    return tuple(
        f"[RIFFLE-0774] The answer of the assignor is not valid: {problem}. What to do: Correct the assignor."
        for problem in problems
    )


def _type_problems(answer: Assignment) -> Iterator[str]:
    """Yield a text for each field of a wrong type that only reports and records read, so that no other check
    finds it.
    """
    if not isinstance(answer.moves, _LISTS) or not all(isinstance(move, Move) for move in answer.moves):
        yield "its moves are not all a Move"
    elif not all(_is_well_typed(move) for move in answer.moves):
        yield "a move's task is not a TaskId, or its role, members, goal and reason are not all text"
    if not isinstance(answer.warnings, _LISTS) or not all(isinstance(text, str) for text in answer.warnings):
        yield "its warnings are not all text"
    if not all(isinstance(task, TaskId) and isinstance(member, str) for task, member in answer.target.items()):
        yield "its target does not name members by TaskId"
    for task, members in (*answer.standbys.items(), *answer.warmups.items()):
        if isinstance(members, str) or not isinstance(members, Collection):
            yield f"standbys and warm-ups of task {task} are of type {type(members).__name__}, not members"


def _is_well_typed(move: Move) -> bool:
    """Return whether the fields of a move have their declared types."""
    texts = (move.role, move.source or "", move.target, move.goal, move.reason)
    return isinstance(move.task, TaskId) and all(isinstance(text, str) for text in texts)
