"""Co-location groups: sets of stores of a query. Key-groups of stores in a set have the same owner.

Each key-group of each group is a task. All stores of a group share that task. Key-groups of the same number in two
groups are two tasks. They may have different owners, because the rows of each store are routed separately.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.unknown_names import check_known

_T = TypeVar("_T")
GROUP = "query"
"""The group of all stores without a named group."""


def task(key_group: int, group: str = GROUP) -> TaskId:
    """Return the task of a key-group in a co-location group."""
    return TaskId(group, key_group)


def task_name(t: TaskId) -> str:
    """Return the name of task ``t`` in records and warnings: its number or, in a named group, ``group/number``."""
    return str(t.key_group) if t.group == GROUP else f"{t.group}/{t.key_group}"


def parse_task(text: str) -> TaskId:
    """Return the task with the name ``text``. Raises ``ValueError`` if no task can have it."""
    group, slash, number = text.rpartition("/")
    if not number.isdecimal() or str(int(number)) != number or bool(slash) != (group not in ("", GROUP)):
        raise ValueError(f"{text!r}, which is not a key-group")
    return TaskId(group or GROUP, int(number))


@dataclass(frozen=True, slots=True)
class Groups:
    """The co-location group of each store of a query."""

    of_stores: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_query(cls, stores: Iterable[str], store_groups: Iterable[tuple[str, str]]) -> "Groups":
        """Return the groups of these stores.

        ``store_groups`` has (store, group) pairs; other stores are in ``GROUP``.
        """
        group_of = dict(store_groups)
        return cls({store: group_of.get(store, GROUP) for store in stores})

    def merged_with(self, groups: "Groups") -> "Groups":
        """Return these groups and the groups of the stores in ``groups``."""
        return Groups({**self.of_stores, **groups.of_stores})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, sorted."""
        return tuple(sorted({*self.of_stores.values()})) or (GROUP,)

    def of(self, store: str) -> str:
        """Return the group of a store, ``GROUP`` if the store is unknown."""
        return self.of_stores.get(store, GROUP)

    def chosen_group(self, store: str | None) -> str:
        """Return the group of a store that a user names, or the only group if ``store`` is ``None``.

        Raises ``ConfigError`` for an unknown store, and for ``None`` if there are several groups.
        """
        if self.of_stores and store is not None:  # Before the first batch no store is known.
            check_known("store", [store], self.of_stores, source="store")
        if store is None and len(self.names) > 1:
            # Cause: A call such as pin() or where() needs a group, and got no store.
            raise ConfigError(
                f"The query has several co-location groups: {', '.join(self.names)}.",
                remedy=f"Name one of the stores {', '.join(self.of_stores)}.",
                id="RIFFLE-0236",
            )
        return self.names[0] if store is None else self.of(store)

    def task(self, store: str, key_group: int) -> TaskId:
        """Return the task that a store's key-group belongs to."""
        return TaskId(self.of(store), key_group)

    def tasks(self, key_groups: Iterable[int]) -> list[TaskId]:
        """Return the tasks of these key-groups in all groups, sorted."""
        numbers = sorted(key_groups)
        return [TaskId(group, key_group) for group in self.names for key_group in numbers]

    def stores_of(self, group: str, stores: Iterable[str]) -> tuple[str, ...]:
        """Return the elements of ``stores`` that are in a group."""
        return tuple(store for store in stores if self.of(store) == group)

    def restrict(self, by_task: Mapping[TaskId, _T]) -> dict[TaskId, _T]:
        """Return those items of a mapping by task whose task belongs to a group of the query."""
        names = self.names
        return {t: value for t, value in by_task.items() if t.group in names}


ONE_GROUP = Groups()
"""All stores in the default group."""
