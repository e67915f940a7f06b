"""Remember the tasks of lost members until the members return or are given up."""

from collections.abc import Collection, Iterable, Mapping

from riffle_spark.assign.model import Assignment, MemberId, TaskId


class PriorOwners:
    """The tasks that lost members owned.

    A task keeps its prior owner while that member is awaited and, once the member is back, until it owns the task
    again. ``awaited`` are the members that the last assignment waited for.
    """

    def __init__(self) -> None:
        self.owners: dict[TaskId, MemberId] = {}
        self.awaited: frozenset[MemberId] = frozenset()
        self._standbys: dict[TaskId, MemberId] = {}

    def among(self, members: Collection[MemberId]) -> dict[TaskId, MemberId]:
        """Return the tasks whose prior owner is in ``members``, with that owner."""
        return {t: owner for t, owner in self.owners.items() if owner in members}

    def followers(self, task: TaskId) -> list[MemberId]:
        """Return the prior owner and the prior standby of a task. They read its deltas once they are back."""
        return [by_task[task] for by_task in (self.owners, self._standbys) if task in by_task]

    def remember(self, lost: Iterable[MemberId], awaited: Collection[MemberId], present: Assignment) -> None:
        """Keep the tasks and standbys of those ``lost`` members that are in ``awaited``.

        ``present`` is the assignment.
        """
        for member in lost:
            if member in awaited:
                owned = [t for t, owner in present.owners.items() if owner == member]
                self.owners.update({t: member for t in owned if self.owners.get(t) not in awaited})
                self._standbys.update({t: member for t, standbys in present.standbys.items() if member in standbys})

    def resume(self, owners: Mapping[TaskId, MemberId]) -> None:
        """Take over the prior owners that an earlier driver recorded."""
        self.owners.update(owners)

    def give_up(self, awaited: Collection[MemberId], live: Collection[MemberId]) -> bool:
        """Forget the tasks of members that are neither awaited nor live.

        Return whether the last assignment waited for one of them.
        """
        self.owners = self.among({*awaited, *live})
        self._standbys = {t: member for t, member in self._standbys.items() if member in awaited}
        return bool(self.awaited - {*awaited, *live})

    def forget_returned(self, present: Assignment) -> None:
        """Forget the tasks that their prior owners own again."""
        self.owners = {t: owner for t, owner in self.owners.items() if present.owners.get(t) != owner}
