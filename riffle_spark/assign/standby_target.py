"""Choose where standbys should be if every copy were warm.

1. Standbys stay where they are. A standby that lags gives way to a caught-up copy that is not a standby.
2. The copy that is closest to caught up fills a gap.
3. Copies move from members above their fair share of copies to members below it.

Different tag values have precedence over balance, balance over different racks. If members have the configured tags,
only the tags decide which copies are apart (KIP-925, KIP-708). The savings of the rack strategy are last (`racks`).

Standbys are on live members only. A lost member is awaited as an owner, not as a standby: its standbys are replaced at
once (KIP-441). No other standby moves until it is back or given up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from riffle_spark.assign.board import Board, count_copies_that_fit
from riffle_spark.assign.demand import fair_range
from riffle_spark.assign.model import AssignSettings
from riffle_spark.assign.owner_moves import OwnerPlan

TAKEN = 1 << 60


class Copies:
    """The owners and standbys being placed: the holders of each task, and the load of each member."""

    def __init__(self, board: Board, target: Sequence[int], settings: AssignSettings, *, racks: bool) -> None:
        """Start with the owners in ``target``, one member position per task, and no standbys.

        ``racks`` is whether the cost of racks counts.
        """
        self.board = board
        self.owners = target
        self.spread: Spread = spread_of(board, settings)
        self.stateful = [t for t, task in enumerate(board.tasks) if task.kind == "stateful"]
        self.standby_count = min(settings.num_standbys, max(0, board.may_own_count - 1))
        self.slots = [member.slots if may else 0 for member, may in zip(board.members, board.may_own, strict=True)]
        self.standbys: list[list[int]] = [[] for _ in board.tasks]
        self.standby_tasks: list[dict[int, None]] = [{} for _ in board.members]
        self.load = [0] * len(board.members)
        for owner in target:
            self.load[owner] += 1
        self._step = [1000 // max(slots, 1) for slots in self.slots]
        self._fill = np.array([self.load[m] * self._step[m] for m in range(len(self.load))], np.int64)
        self._zones = [np.array(zone, np.int64) for zone in self.spread.zones]
        self.low, self.high = self._fair_range(racks=racks)

    def _fair_range(self, *, racks: bool) -> tuple[list[int], list[int]]:
        """Return the fewest and the most copies that each member should have.

        If ``racks`` count, the range is one copy per slot wide, so that copies can move to save reads.
        """
        total = len(self.owners) + self.standby_count * len(self.stateful)
        limits = [len(self.owners) if slots else 0 for slots in self.slots]
        crowded = any(load > len(self.stateful) for load in self.load) or total > sum(limits) or self.standby_count == 0
        uneven = len({slots for slots in self.slots if slots}) > 1
        fits = count_copies_that_fit(self.board, total)
        low, high = fair_range(total, self.slots, fits or (limits if uneven and not crowded else None))
        if racks and uneven:
            mean = total // sum(self.slots)
            low = [min(count, mean * slots) for count, slots in zip(low, self.slots, strict=True)]
            high = [max(count, (mean + 1) * slots) for count, slots in zip(high, self.slots, strict=True)]
        return low, high

    def copies_per_slot(self, member: int) -> float:
        """Return the number of copies per slot of a member."""
        return self.load[member] / max(self.slots[member], 1)

    def holders(self, task: int) -> list[int]:
        """Return the members with a copy of the task, the owner first."""
        return [self.owners[task], *self.standbys[task]]

    def add(self, task: int, member: int) -> None:
        """Place a standby of the task on the member."""
        self.standbys[task].append(member)
        self.standby_tasks[member][task] = None
        self._change_load(member, 1)

    def remove(self, task: int, member: int) -> None:
        """Remove the standby of the task from the member."""
        self.standbys[task].remove(member)
        del self.standby_tasks[member][task]
        self._change_load(member, -1)

    def _change_load(self, member: int, units: int) -> None:
        """Add ``units`` copies (negative: remove) to a member's load."""
        self.load[member] += units
        self._fill[member] += units * self._step[member]

    def least_loaded_by_zone(self, task: int) -> list[int]:
        """Return each zone's least loaded member that has no copy of the task and is not quarantined for it.

        Zones without such a member are left out.
        """
        holders = self.holders(task)
        holders += list(self.board.quarantined[task]) if self.board.quarantined else []
        saved_fill = self._fill[holders]
        self._fill[holders] = TAKEN
        lightest = [int(zone[self._fill[zone].argmin()]) for zone in self._zones]
        lightest = [m for m in lightest if self._fill[m] < TAKEN]
        self._fill[holders] = saved_fill
        return lightest

    def preference(self, task: int, member: int) -> tuple[int, bool, int, int, float, int]:
        """Return the sort key of a member that could take a standby of the task.

        The best member has the smallest key.
        """
        holders = self.holders(task)
        return (
            self.spread.tag_conflicts(member, holders),
            self.load[member] >= self.high[member],
            self.board.rank(task, member),
            self.spread.rack_conflicts(member, holders),
            (self.load[member] + 1) / max(self.slots[member], 1),
            member,
        )


def standby_target(board: Board, plan: OwnerPlan, settings: AssignSettings, *, racks: bool) -> Copies:
    """Return where the standbys of every stateful task should be, given the plan of the owners.

    A task whose target is awaited counts as its present owner's.
    """
    owners = [goal if board.live[goal] else owner for goal, owner in zip(plan.target, plan.owners, strict=True)]
    copies = Copies(board, owners, settings, racks=racks)
    if copies.standby_count == 0:
        return copies
    for t in copies.stateful:
        _keep_standbys(copies, t)
    for t in copies.stateful:
        _add_missing_standbys(copies, t)
    if settings.rebalance_enable not in ("all", "standbys") or not all(board.live):
        return copies
    if settings.rack_aware_assignment_tags:
        _separate_tags(copies)
    _keep_running_warmups(copies)
    level_standbys(copies, range(len(board.members)))
    return copies


def _keep_standbys(copies: Copies, task: int) -> None:
    """Keep present standbys of a task that may stay, the closest to caught up first.

    One that lags is replaced by a caught-up copy, if there is one.
    """
    board = copies.board
    present = sorted(board.standbys[task], key=lambda m: (board.rank(task, m), m))
    for member in present:
        if len(copies.standbys[task]) < copies.standby_count and _may_be_added(copies, task, member):
            copies.add(task, member if board.rank(task, member) == 0 else _prefer_caught_up(copies, task, member))


def _may_be_added(copies: Copies, task: int, member: int) -> bool:
    """Return whether a member may become a standby of a task in addition to the members that hold a copy."""
    board = copies.board
    holders = copies.holders(task)
    able = board.may_own[member] and member not in holders and not board.is_quarantined(task, member)
    return able and copies.spread.may_join(member, holders)


def _prefer_caught_up(copies: Copies, task: int, lagging: int) -> int:
    """Return a member with a caught-up copy that may replace the standby on member ``lagging`` without sharing more
    tags with the other copies. Return ``lagging`` if there is none.
    """
    holders = copies.holders(task)
    conflicts = copies.spread.tag_conflicts
    ready = [m for m, rank in copies.board.copy_ranks[task].items() if rank == 0 and _may_be_added(copies, task, m)]
    ready = [m for m in ready if conflicts(m, holders) <= conflicts(lagging, holders)]
    return min(ready, key=lambda m: (copies.copies_per_slot(m), m), default=lagging)


def _add_missing_standbys(copies: Copies, task: int) -> None:
    """Add standbys of a task until it has ``num_standbys``, or until no member may take another one."""
    board = copies.board
    while len(copies.standbys[task]) < copies.standby_count:
        holders = copies.holders(task)
        near = [m for m, rank in board.copy_ranks[task].items() if rank < board.rank_without_copy[task]]
        near = [m for m in near if board.may_own[m] and not board.is_quarantined(task, m)]
        candidates = {
            m
            for m in (*near, *copies.least_loaded_by_zone(task))
            if m not in holders and copies.spread.may_join(m, holders)
        }
        if not candidates:
            return
        copies.add(task, min(candidates, key=lambda m: copies.preference(task, m)))


def _separate_tags(copies: Copies) -> None:
    """Move standbys that share a tag value with another copy of their task to members that share fewer."""
    for t in copies.stateful:
        for member in sorted(copies.standbys[t]):
            other_holders = [m for m in copies.holders(t) if m != member]
            conflicts = copies.spread.tag_conflicts(member, other_holders)
            if conflicts == 0:
                continue
            better = [
                m for m in copies.least_loaded_by_zone(t) if copies.spread.tag_conflicts(m, other_holders) < conflicts
            ]
            if better:
                copies.remove(t, member)
                copies.add(t, min(better, key=lambda m: copies.preference(t, m)))


def _keep_running_warmups(copies: Copies) -> None:
    """Move standbys to members that already warm up for them, if the loads stay level.

    Otherwise new members would get the standbys, and the warm-ups would be lost.
    """
    load = copies.load
    low = copies.low
    high = copies.high
    for t in copies.stateful:
        for taker in copies.board.warmups[t]:
            givers = [
                m
                for m in copies.standbys[t]
                if load[m] > low[m] and copies.copies_per_slot(m) > copies.copies_per_slot(taker)
            ]
            giver = max(givers, key=lambda m: (copies.copies_per_slot(m), -m), default=taker)
            if giver != taker and load[taker] < high[taker] and may_move(copies, t, giver, taker):
                copies.remove(t, giver)
                copies.add(t, taker)


def level_standbys(copies: Copies, members: Sequence[int]) -> bool:
    """Move standbys among ``members`` from those above their fair share to those below it.

    Return whether any standby moved.
    """
    moved = False
    for _ in range(sum(map(len, copies.standbys)) + 1):
        if not _level_once(copies, members):
            break
        moved = True
    return moved


def _level_once(copies: Copies, members: Sequence[int]) -> bool:
    """Move one standby from a fuller to an emptier member. Return whether that was possible."""
    load = copies.load
    low = copies.low
    high = copies.high
    takers = sorted(
        (m for m in members if load[m] < high[m]), key=lambda m: (load[m] >= low[m], copies.copies_per_slot(m), m)
    )
    givers = [m for m in members if load[m] > low[m] and copies.standby_tasks[m]]
    givers.sort(key=lambda m: (load[m] <= high[m], -copies.copies_per_slot(m), m))
    for giver in givers:
        over = load[giver] > high[giver]
        for taker in takers:
            if not (over or load[taker] < low[taker]) or taker == giver:
                break
            task = _choose_standby_to_move(copies, giver, taker)
            if task is not None:
                copies.remove(task, giver)
                copies.add(task, taker)
                return True
    return False


def _choose_standby_to_move(copies: Copies, giver: int, taker: int) -> int | None:
    """Return the task whose standby can move from giver to taker with least harm to racks and copies; ``None`` if none
    may move.
    """
    best: tuple[int, int, bool, int] | None = None
    for t in copies.standby_tasks[giver]:
        if not may_move(copies, t, giver, taker):
            continue
        other_holders = [m for m in copies.holders(t) if m != giver]
        apart = copies.spread.rack_conflicts(taker, other_holders) - copies.spread.rack_conflicts(giver, other_holders)
        key = (max(apart, 0), copies.board.rank(t, taker), copies.board.rank(t, giver) == 0, t)
        best = key if best is None else min(best, key)
    return None if best is None else best[3]


def may_move(copies: Copies, task: int, giver: int, taker: int) -> bool:
    """Return whether the task's standby may move from member ``giver`` to ``taker``.

    It must not share more tags with the other copies there.
    """
    holders = copies.holders(task)
    other_holders = [m for m in holders if m != giver]
    if taker in holders or not copies.board.may_own[taker] or copies.board.is_quarantined(task, taker):
        return False
    conflicts = copies.spread.tag_conflicts
    return copies.spread.may_join(taker, other_holders) and conflicts(taker, other_holders) <= conflicts(
        giver, other_holders
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """The tag values, rack and zone of each member. The rack counts only if no tag does. A zone has equal values."""

    tags: tuple[tuple[str | None, ...], ...]
    racks: tuple[str | None, ...]
    forced: tuple[tuple[str | None, ...], ...]
    most_per_value: tuple[int, ...]
    zones: tuple[tuple[int, ...], ...]

    def tag_conflicts(self, member: int, members: Sequence[int]) -> int:
        """Return how many tag values ``member`` shares with ``members``, the members that hold the other copies of a
        task.
        """
        own_tags = self.tags[member]
        if not own_tags:
            return 0
        return sum(
            a == b for holder in members for a, b in zip(own_tags, self.tags[holder], strict=True) if a is not None
        )

    def rack_conflicts(self, member: int, members: Sequence[int]) -> int:
        """Return how many of ``members``, which hold the other copies, are in the rack of ``member``."""
        rack = self.racks[member]
        return 0 if rack is None else sum(self.racks[holder] == rack for holder in members)

    def may_join(self, member: int, members: Sequence[int]) -> bool:
        """Return whether forced awareness lets ``member`` hold a copy if ``members`` hold the others."""
        for number, limit in enumerate(self.most_per_value):
            value = self.forced[member][number]
            if value is not None and sum(self.forced[holder][number] == value for holder in members) >= limit:
                return False
        return True


def spread_of(board: Board, settings: AssignSettings) -> Spread:
    """Return the tag values, racks and zones of the board's members under the configured tags.

    Racks count only if no member has such a tag.
    """
    keys = settings.rack_aware_assignment_tags
    forced = sorted(settings.forced_awareness)
    tags = tuple(tuple(member.attribute(key) for key in keys) for member in board.members)
    is_tagged = any(value is not None for values in tags for value in values)
    racks = tuple(None if is_tagged else member.rack for member in board.members)
    values = tuple(tuple(member.attribute(key) for key in forced) for member in board.members)
    zones: dict[object, list[int]] = {}
    for m, key in enumerate(zip(tags, racks, values, strict=True)):
        if board.may_own[m]:
            zones.setdefault(key, []).append(m)
    count = settings.num_standbys + 1
    limits = tuple(-(-count // max(1, len(settings.forced_awareness[key]))) for key in forced)
    return Spread(tags, racks, values, limits, tuple(tuple(zone) for zone in zones.values()))
