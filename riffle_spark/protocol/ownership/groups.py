"""Co-location groups: the stores of a query whose key-groups have one owner. Pure; knows names. Does not know who owns
what.

Each key-group of each group is a task. Stores of one group are one task per key-group; in another group a key-group of
the same number is another task, which may be elsewhere: each store's rows are routed for it alone anyway.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.unknown_names import check_known

__all__ = ["GROUP", "ONE_GROUP", "Groups", "named", "task", "task_named"]

_T = TypeVar("_T")
GROUP = "query"
"""The group of all stores for which none is named."""


def task(key_group: int, group: str = GROUP) -> TaskId:
    """Return the task of a group's key-group."""
    return TaskId(group, key_group)


def named(one: TaskId) -> str:
    """Return a task as records and warnings name it: a number or, in a group of its own, ``group/number``."""
    return str(one.key_group) if one.group == GROUP else f"{one.group}/{one.key_group}"


def task_named(text: str) -> TaskId:
    """Return the task of a name. Raises ``ValueError`` for what is none."""
    group, slash, number = text.rpartition("/")
    if not number.isdecimal() or str(int(number)) != number or bool(slash) != (group not in ("", GROUP)):
        raise ValueError(f"{text!r}, no number of a key-group")
    return TaskId(group or GROUP, int(number))


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a query's stores, by store."""

    of_stores: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_query(cls, stores: Iterable[str], told: Iterable[tuple[str, str]]) -> "Groups":
        """Return the groups of these stores, where (store, group) are ``told`` for some."""
        chosen = dict(told)
        return cls({store: chosen.get(store, GROUP) for store in stores})

    def with_those(self, others: "Groups") -> "Groups":
        """Return these groups and those of other stores."""
        return Groups({**self.of_stores, **others.of_stores})

    @property
    def names(self) -> tuple[str, ...]:
        """The groups that there are, sorted."""
        return tuple(sorted({*self.of_stores.values()})) or (GROUP,)

    def of(self, store: str) -> str:
        """Return the group of a store."""
        return self.of_stores.get(store, GROUP)

    def meant(self, store: str | None) -> str:
        """Return the group of a store that a user names, the only one where none is named. Raises ``ConfigError`` where
        there are several, and for what is no store.
        """
        if self.of_stores and store is not None:  # before the first batch nothing is known, which is said elsewhere
            check_known("store", [store], self.of_stores, source="store")
        if store is None and len(self.names) > 1:
            raise ConfigError(
                f"the query's stores are in several co-location groups: {', '.join(self.names)}",
                remedy=f"name one of the stores {', '.join(self.of_stores)}",
                id="RIFFLE-0236",
            )
        return self.names[0] if store is None else self.of(store)

    def task(self, store: str, key_group: int) -> TaskId:
        """Return the task that a store's key-group belongs to."""
        return TaskId(self.of(store), key_group)

    def tasks(self, key_groups: Iterable[int]) -> list[TaskId]:
        """Return the tasks of all groups, sorted."""
        numbers = sorted(key_groups)
        return [TaskId(group, key_group) for group in self.names for key_group in numbers]

    def stores_of(self, group: str, stores: Iterable[str]) -> tuple[str, ...]:
        """Return those of the stores that are in a group."""
        return tuple(store for store in stores if self.of(store) == group)

    def only(self, by_task: Mapping[TaskId, _T]) -> dict[TaskId, _T]:
        """Return what is of tasks whose group there is."""
        names = self.names
        return {one: what for one, what in by_task.items() if one.group in names}


ONE_GROUP = Groups()
"""All stores in the group of those for which none is named."""
