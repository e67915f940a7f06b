"""Statuses of invented queries of any size, for tests and benchmarks of the status page and the status commands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from riffle_spark.observe.status import BatchSummary, MoveSummary, Status, WarningSummary
from riffle_spark.protocol.facts import DriverFacts, GroupFacts, MemberFacts, PartitionLag, StoreFacts

__all__ = ["invented_status"]

GROUP_NAMES: Final = ("", "orders", "payments", "sessions")
RACKS: Final = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
REASONS: Final = (
    ("drained", "empty a drained executor"),
    ("lost", "replace a lost executor"),
    ("joined", "use a new executor"),
    ("balance", "balance the load"),
)
SETTINGS: Final = {"num_standbys": "2", "max_warmup_replicas": "8", "acceptable_recovery_lag": "10000"}
NOW_MS: Final = 1_772_373_909_000


def invented_status(
    *, members: int = 100, groups: int = 4, key_groups: int = 1024, now_ms: int = NOW_MS, seed: int = 1
) -> Status:
    """Return the status of a query with that many members, co-location groups and key-groups per group.

    The same arguments give the same status. Members are in three racks. One slow batch in the middle raises the lag.
    """
    chance = random.Random(seed)
    placed = tuple(
        _group(GROUP_NAMES[number % 4] + str(number // 4 or ""), members, key_groups, chance)
        for number in range(groups)
    )
    batches = _batches(now_ms, chance)
    facts = DriverFacts(
        time_ms=now_ms,
        query_id="6f1f3a52-2b1c-4f56-9f0e-8f3f5b1d0c11",
        query_name="orders_enriched",
        run_id="b64dd1a0-9f6e-4b7e-8d0e-2f0d1c9e7a55",
        epoch=3,
        version=batches[-1].version,
        commit_ms=batches[-1].time_ms,
        watermark_ms=now_ms - 95_000,
        source=tuple(
            PartitionLag(topic, partition, chance.randrange(2000), chance.uniform(0.5, 14))
            for topic in ("orders", "payments")
            for partition in range(12)
        ),
        members=_members(members, placed, chance),
        stores=tuple(
            StoreFacts(
                store, chance.randrange(10**6, 10**8), chance.randrange(1 << 28, 1 << 36), chance.randrange(2, 14)
            )
            for group in placed
            for store in group.stores
        ),
        groups=placed,
        next_probe_seconds=240.0,
        counters={"batches": 18_460, "rows": 4_012_345_678, "late_rows": 1_203, "retries": 4, "fenced": 0},
    )
    moves = [_move(batches, facts.members, [group.name for group in placed], key_groups, chance) for _ in range(100)]
    warnings = (
        WarningSummary(
            now_ms - 30 * 3_600_000, "RIFFLE-0812", "Executor 17 was quarantined.\n  What to do: Replace its disk."
        ),
        WarningSummary(now_ms - 400_000, "RIFFLE-0904", "Upkeep failed: the store answered 503."),
    )
    return Status(
        facts,
        "running",
        "0.1.0",
        60.0,
        batches,
        tuple(sorted(moves, key=lambda move: move.time_ms)),
        warnings,
        SETTINGS,
    )


def _group(name: str, members: int, key_groups: int, chance: random.Random) -> GroupFacts:
    """Return a group whose key-groups have an owner and up to two standbys, each in another rack."""
    owners = [number * members // key_groups for number in range(key_groups)]
    chance.shuffle(owners)
    owners = [-1 if chance.random() < 0.002 else owner for owner in owners]
    copies = [_copies(owner, members, chance) for owner in owners]
    warmups = tuple((chance.randrange(members),) if chance.random() < 0.03 else () for _ in owners)
    return GroupFacts(name, (f"{name or 'visits'}_store",), tuple(owners), tuple(copies), warmups)


def _copies(owner: int, members: int, chance: random.Random) -> tuple[int, ...]:
    """Return one member of each rack except the owner's."""
    racks = [rack for rack in range(len(RACKS)) if rack != owner % len(RACKS)]
    choices = [range(rack, members, len(RACKS)) for rack in racks[:2]]
    return tuple(chance.choice(choice) for choice in choices if choice)


def _members(number: int, groups: Sequence[GroupFacts], chance: random.Random) -> tuple[MemberFacts, ...]:
    owned, standbys, warmups = [0] * number, [0] * number, [0] * number
    for group in groups:
        for owner in group.owners:
            owned[owner] += owner >= 0
        for counts, copies in ((standbys, group.standbys), (warmups, group.warmups)):
            for copy in (copy for of_key_group in copies for copy in of_key_group):
                counts[copy] += 1
    return tuple(
        MemberFacts(
            id=f"m{member:03}",
            executor=str(member),
            host=f"10.0.{member % 3}.{member}",
            rack=RACKS[member % len(RACKS)],
            state={17: "quarantined", 5: "drained", 40: "drained", 63: "awaited"}.get(member, "active"),  # type: ignore[arg-type]
            slots=4,
            owned=owned[member],
            standbys=standbys[member],
            warmups=warmups[member],
            lag_records=chance.randrange(9000),
            lag_trend=chance.randrange(-300, 900),
            warmup_bytes=warmups[member] * chance.randrange(1 << 20, 1 << 28),
            warmup_seconds=warmups[member] * chance.uniform(2, 90) if warmups[member] else None,
            disk_used=chance.uniform(0.2, 0.95) if member % 11 else None,
            memory_used=chance.uniform(0.3, 0.88),
        )
        for member in range(number)
    )


def _batches(now_ms: int, chance: random.Random) -> tuple[BatchSummary, ...]:
    batches = []
    time_ms = now_ms - 60 * 7000
    lag = 42_000.0
    for number in range(60):
        time_ms += chance.randrange(5500, 7000)
        lag = max(0.0, lag + chance.gauss(-300, 3000) + (40_000 if number == 33 else -6000 if number > 33 else 0))
        seconds = {
            "enter": chance.uniform(0.05, 0.12),
            "assign": chance.uniform(0.08, 0.2) + (0.9 if number == 33 else 0),
            "run": chance.uniform(2.2, 3.6) + (4 if number in (33, 34) else 0),
            "deliver": chance.uniform(0.3, 0.6),
            "commit": chance.uniform(0.15, 0.4),
            "upkeep": chance.uniform(0.02, 0.3),
        }
        seconds["total"] = sum(seconds.values())
        batches.append(BatchSummary(18_400 + number, time_ms, chance.randrange(180_000, 260_000), seconds, int(lag)))
    return tuple(batches)


def _move(
    batches: Sequence[BatchSummary],
    members: Sequence[MemberFacts],
    groups: Sequence[str],
    key_groups: int,
    chance: random.Random,
) -> MoveSummary:
    """Return a random move in one of a few batches."""
    batch = batches[chance.choice((5, 5, 20, 33, 33, 33, 34, 35, 36, 50, 58))]
    reason, goal = chance.choice(REASONS)
    role = chance.choice(("owner", "owner", "standby", "warmup"))
    return MoveSummary(
        time_ms=batch.time_ms,
        version=batch.version,
        key_group=chance.randrange(key_groups),
        group=chance.choice(groups),
        role=role,
        from_member="" if role == "warmup" else chance.choice(members).id,
        to_member=chance.choice(members).id,
        reason=reason,
        goal=goal,
    )
