"""What a valid assignment is. Knows what every placement must keep. Does not know how one is found."""

from collections.abc import Collection, Iterator

from riffle_spark.assign.board import is_allowed
from riffle_spark.assign.model import Assignment, AssignSettings, Move, TaskId, View

__all__ = ["orders_broken", "refusals", "violations"]

_LISTS = (tuple, list)


def violations(view: View, assignment: Assignment, settings: AssignSettings | None = None) -> tuple[str, ...]:
    """Name everything about ``assignment`` that no placement may have; empty means valid.

    With ``settings`` the number of warm-ups is checked, too. Used by tests, for users' assignors and before
    each placement.
    """
    found = [*_owners(view, assignment), *_copies(view, assignment)]
    if settings is not None:
        found += _warmups(assignment, settings)
    return tuple(found)


def _owners(view: View, assignment: Assignment) -> Iterator[str]:
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


def _copies(view: View, assignment: Assignment) -> Iterator[str]:
    live = {member.id for member in view.members}
    kinds = {task.id: task.kind for task in view.tasks}
    for role, placed in (("standby", assignment.standbys), ("warm-up", assignment.warmups)):
        for task, members in sorted(placed.items()):
            if members and task not in kinds:
                yield f"{role} of unknown task {task}"
            elif members and kinds[task] != "stateful":
                yield f"task {task} is {kinds[task]} and can have no {role}"
            yield from (
                f"{role} {member} of task {task} is not a live member" for member in members if member not in live
            )
    for task in sorted({*assignment.standbys, *assignment.warmups}):
        yield from _twice(task, assignment)


def _twice(task: TaskId, assignment: Assignment) -> Iterator[str]:
    owner = assignment.owners.get(task)
    members = [*assignment.standbys.get(task, ()), *assignment.warmups.get(task, ())]
    members += [] if owner is None else [owner]
    for member in sorted({member for member in members if members.count(member) > 1}):
        yield f"member {member} holds two copies of task {task}"


def _warmups(assignment: Assignment, settings: AssignSettings) -> Iterator[str]:
    count = sum(map(len, assignment.warmups.values()))
    if count > settings.max_warmup_replicas:
        yield f"{count} warm-ups are more than max_warmup_replicas = {settings.max_warmup_replicas}"


def orders_broken(view: View, assignment: Assignment, settings: AssignSettings) -> frozenset[TaskId]:
    """Return the tasks that an assignment leaves away from their pin, or whose owner or copies it leaves on drained or
    excluded members, for good: a target that obeys is enough until it is caught up, for copies may have to warm up
    first.

    A pin goes before what is excluded; where nobody is allowed, everybody is.
    """
    live = {member.id for member in view.members}
    allowed = {member.id for member in view.members if is_allowed(member, settings)} or live
    if not view.pins and allowed == live:
        return frozenset()
    broken, acceptable = set(), settings.acceptable_recovery_lag
    small = {task.id for task in view.tasks if task.kind != "stateful" or task.size <= acceptable}
    for task, owner in assignment.owners.items():
        pin, goal = view.pins.get(task), assignment.target.get(task, owner)
        copies = (*assignment.standbys.get(task, ()), *assignment.warmups.get(task, ()))
        wanted = {pin} if pin in live else allowed | {member.id for member in view.awaited}
        lag = 0 if task in small else view.lags.get(task, {}).get(goal)
        waits = goal in live and owner not in wanted and lag is not None and lag <= acceptable
        if goal not in wanted or waits or any(member not in allowed and member not in wanted for member in copies):
            broken.add(task)
    return frozenset(broken)


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
    """Name fields that only reports and records read, or that can be read once only: no violation shows these."""
    if not isinstance(answer.moves, _LISTS) or not all(isinstance(move, Move) for move in answer.moves):
        yield "its moves are not all a Move"
    elif not all(_can_be_told(move) for move in answer.moves):
        yield "a move's task is no TaskId, or its role, members, goal and reason are not all texts"
    if not isinstance(answer.warnings, _LISTS) or not all(isinstance(text, str) for text in answer.warnings):
        yield "its warnings are not all texts"
    if not all(isinstance(task, TaskId) and isinstance(member, str) for task, member in answer.target.items()):
        yield "its target does not name members by TaskId"
    for task, members in (*answer.standbys.items(), *answer.warmups.items()):
        if isinstance(members, str) or not isinstance(members, Collection):
            yield f"standbys and warm-ups of task {task} are {type(members).__name__}, not members"


def _can_be_told(move: Move) -> bool:
    texts = (move.role, move.source or "", move.target, move.goal, move.reason)
    return isinstance(move.task, TaskId) and all(isinstance(text, str) for text in texts)
