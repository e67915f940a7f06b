"""Who owns what in ``hashed`` dispatch. Pure; knows members, cores and the partitions' hashes. Does not know copies.

Owners follow from the membership alone: slots are counted over the members by name, as many for each as it has cores,
and a shard goes to the slot that its partition's hash names. Members are folders that outlive their executors, so the
same members give the same owners after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from riffle_spark.assign.model import Assignment, MemberId, Move, TaskId
from riffle_spark.protocol.layout import Cut, cut_into_slots, hands_of
from riffle_spark.protocol.members import Seat
from riffle_spark.protocol.ports import Layout
from riffle_spark.protocol.shards import Shards
from riffle_spark.protocol.view import task
from riffle_spark.settings import Settings

__all__ = ["hashed_assignment", "hashed_layout", "without_effect"]

_ASSIGNORS = (
    "acceptable_recovery_lag", "assignor", "balance_band", "max_warmup_replicas", "num_standbys",
    "probing_rebalance_interval", "rack_aware_assignment_non_overlap_cost", "rack_aware_assignment_strategy",
    "rack_aware_assignment_tags", "rack_aware_assignment_traffic_cost", "scheduled_rebalance_max_delay", "standby_mode",
)  # fmt: skip


def without_effect(settings: Settings) -> tuple[str, ...]:
    """Return the settings that have another value than their default and no effect where hashes name the owners."""
    if settings.dispatch != "hashed":
        return ()
    default = Settings()
    return tuple(name for name in _ASSIGNORS if getattr(settings, name) != getattr(default, name))


def hashed_layout(
    members: Mapping[MemberId, Seat], shards: Shards, drained: Collection[MemberId] = (), most: int | None = None
) -> Layout:
    """Return the slots that have a shard. Those of ``drained`` members are not counted, while others live."""
    return cut_into_slots(members, _dealt(members, shards, drained, most), shards)


def hashed_assignment(
    members: Mapping[MemberId, Seat], shards: Shards, present: Assignment, drained: Collection[MemberId] = (),
    most: int | None = None,
) -> Assignment:  # fmt: skip
    """Return the owners that the hashes name, and the moves that this takes. There are no other copies."""
    dealt = _dealt(members, shards, drained, most)
    owners = {task(shard): seat.id for seat, mine in dealt for shard in mine}
    return Assignment(dict(sorted(owners.items())), target=owners, moves=tuple(_moves(present.owners, owners, members)))


def _dealt(
    members: Mapping[MemberId, Seat], shards: Shards, drained: Collection[MemberId], most: int | None
) -> list[Cut]:
    counted = [seat for name, seat in sorted(members.items()) if name not in drained] or [*members.values()]
    slots = [seat for seat in counted for _ in range(hands_of(seat, most))]
    return list(zip(slots, shards.hashed(len(slots)), strict=True))


def _moves(
    before: Mapping[TaskId, MemberId], owners: Mapping[TaskId, MemberId], members: Collection[MemberId]
) -> list[Move]:
    moved = [(t, before.get(t), owner) for t, owner in sorted(owners.items()) if before.get(t) != owner]
    return [
        Move(t, "owner", source if source in members else None, owner, "valid", "the hash names its slot")
        for t, source, owner in moved
    ]
