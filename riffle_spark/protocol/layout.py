"""From executors to slots: who owns what, and which slot serves it. Knows the assignor and cores. Does not know
batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, Strategy, Task, TaskId, View
from riffle_spark.keygroups import slot_numbers
from riffle_spark.protocol.ports import Executor, Layout, SlotPlace
from riffle_spark.settings import Settings

__all__ = ["GROUP", "assigned", "laid_out"]

GROUP = "query"
"""All stores of a query are one co-location group: a key-group of theirs has one owner."""


def assigned(executors: Sequence[Executor], owners: Mapping[int, str], settings: Settings) -> Assignment:
    """Return the assignment of all key-groups to live executors, sticky to ``owners`` as far as these live."""
    live = {executor.id for executor in executors}
    view = View(
        members=tuple(Member(e.id, slots=e.cores) for e in executors),
        tasks=tuple(Task(TaskId(GROUP, key_group), kind="unlogged") for key_group in range(settings.key_groups)),
        owners={TaskId(GROUP, key_group): owner for key_group, owner in owners.items() if owner in live},
    )
    return assign(view, _assign_settings(settings))


def _assign_settings(settings: Settings) -> AssignSettings:
    return AssignSettings(
        acceptable_recovery_lag=settings.acceptable_recovery_lag,
        num_standbys=settings.num_standbys,
        max_warmup_replicas=settings.max_warmup_replicas,
        balance_band=settings.balance_band,
        rack_aware_assignment_strategy=cast("Strategy", settings.rack_aware_assignment_strategy),
        rack_aware_assignment_traffic_cost=settings.rack_aware_assignment_traffic_cost,
        rack_aware_assignment_non_overlap_cost=settings.rack_aware_assignment_non_overlap_cost,
        rack_aware_assignment_tags=settings.rack_aware_assignment_tags,
        assignor=settings.assignor,
    )


def laid_out(executors: Sequence[Executor], owners: Mapping[int, str]) -> Layout:
    """Return slots for the owners' key-groups: no more on an executor than it has cores, or key-groups."""
    owned: dict[str, list[int]] = {}
    for key_group, owner in sorted(owners.items()):
        owned.setdefault(owner, []).append(key_group)
    cut = [(executor, part) for executor in executors for part in _dealt(owned.get(executor.id, []), executor.cores)]
    numbers = slot_numbers(len(cut))
    slots = (SlotPlace(n, e.id, e.host, part) for n, (e, part) in zip(numbers, cut, strict=True))
    return Layout(tuple(slots))


def _dealt(key_groups: list[int], hands: int) -> list[tuple[int, ...]]:
    return [tuple(key_groups[hand::hands]) for hand in range(min(hands, len(key_groups)))]
