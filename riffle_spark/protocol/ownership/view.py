"""What the assignor is told about a running query. Knows members, copies and manifests. Does not know when to ask, nor
any rule of placement.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from riffle_spark.assign import model
from riffle_spark.assign.assignor import assign_settings
from riffle_spark.protocol.ownership.known_copies import KnownCopies, lag_without_copy
from riffle_spark.protocol.ownership.members import Members
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import EMPTY, Entry, Manifest

__all__ = ["GROUP", "Situation", "assign_settings", "task", "view_of"]

GROUP = "query"
"""All stores of a query are one co-location group: a key-group of theirs has one owner."""


def task(key_group: int) -> model.TaskId:
    """Return the task of a key-group."""
    return model.TaskId(GROUP, key_group)


@dataclass(frozen=True)
class Situation:
    """Everything that an assignment of a running query depends on, beside its settings.

    ``stores`` are the durable ones, ``key_groups`` those that exist, ``now`` seconds of the driver's clock. ``homes``
    are the members that lost tasks belong to, ``traffic`` what a task reads by rack, ``weights`` its measured work.
    ``partitions`` are the (topic, partition) that key-groups stand for, where dispatch is by partition.
    """

    members: Members
    copies: KnownCopies
    manifest: Manifest
    stores: tuple[str, ...]
    key_groups: Collection[int]
    now: float
    present: model.Assignment
    pins: Mapping[int, model.MemberId] = field(default_factory=dict)
    drained: frozenset[model.MemberId] = frozenset()
    homes: Mapping[model.TaskId, model.MemberId] = field(default_factory=dict)
    traffic: Mapping[int, model.Traffic] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)
    partitions: Sequence[tuple[str, int]] = ()

    def entries(self, key_group: int) -> list[Entry]:
        """Return the entries of a key-group's durable stores."""
        return [self.manifest.entries.get((store, key_group), EMPTY) for store in self.stores]

    def lag(self, member: model.MemberId, key_group: int) -> int:
        """Return how many changed records a member's copies of a key-group lack, over all durable stores."""
        addresses = [(store, key_group) for store in self.stores]
        every = zip(addresses, self.entries(key_group), strict=True)
        return sum(self.copies.lag(member, address, entry).records for address, entry in every)


def view_of(situation: Situation, settings: Settings) -> model.View:
    """Return what ``assign`` is told."""
    members, present = situation.members, situation.present
    live = frozenset(members.live)
    awaited = members.awaited(situation.now, settings.scheduled_rebalance_max_delay)
    lags = _lags(situation)
    return model.View(
        members=tuple(living.member() for _, living in sorted(members.live.items())),
        tasks=_tasks(situation),
        owners={t: owner for t, owner in present.owners.items() if owner in live},
        standbys=_living(present.standbys, live),
        warmups=_living(present.warmups, live),
        lags=lags,
        pins={task(key_group): member for key_group, member in situation.pins.items()},
        homes={t: home for t, home in situation.homes.items() if home in live or home in awaited},
        awaited=tuple(living.member() for living in awaited.values()),
        pointers=_pointers(present, lags, live) if settings.standby_mode == "snapshot_pointer" else {},
        target=present.target,
        drained=situation.drained,
    )


def _pointers(
    present: model.Assignment,
    lags: Mapping[model.TaskId, Mapping[model.MemberId, model.Lag]],
    live: frozenset[model.MemberId],
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    """Return the standbys that hold no copy but know which snapshot to fetch."""
    without = {t: tuple(m for m in held if m not in lags.get(t, {})) for t, held in present.standbys.items()}
    return _living(without, live)


def _tasks(situation: Situation) -> tuple[model.Task, ...]:
    kind: model.Kind = "stateful" if situation.stores else "unlogged"
    stands_for = dict(enumerate(situation.partitions))
    return tuple(
        model.Task(
            task(key_group),
            kind=kind,
            size=sum(lag_without_copy(entry).records for entry in situation.entries(key_group)),
            weight=situation.weights.get(key_group),
            owner_traffic=situation.traffic.get(key_group, model.NO_TRAFFIC),
            topic=stands_for[key_group][0] if key_group in stands_for else None,
            partition=stands_for[key_group][1] if key_group in stands_for else None,
        )
        for key_group in sorted(situation.key_groups)
    )


def _living(
    copies: Mapping[model.TaskId, tuple[model.MemberId, ...]], live: frozenset[model.MemberId]
) -> dict[model.TaskId, tuple[model.MemberId, ...]]:
    kept = {t: tuple(m for m in members if m in live) for t, members in copies.items()}
    return {t: members for t, members in kept.items() if members}


def _lags(situation: Situation) -> dict[model.TaskId, dict[model.MemberId, model.Lag]]:
    """Return the lag of every copy on a live member. A member without any copy of a task is not listed."""
    lags: dict[model.TaskId, dict[model.MemberId, model.Lag]] = {}
    for member in sorted(situation.members.live):
        held = {key_group for store, key_group in situation.copies.of(member) if store in situation.stores}
        for key_group in sorted(held & set(situation.key_groups)):
            lags.setdefault(task(key_group), {})[member] = situation.lag(member, key_group)
    return lags
