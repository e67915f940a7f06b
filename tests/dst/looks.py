"""Looks at what drivers and executors of a schedule go by, where they do so: where copies are, what went from chains,
for whom they wait, whose disk refused, and what is still to be done beside batches.

Results can be right though one of these is wrong: then time is lost, or room on disks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import CorruptStateError
from riffle_spark.protocol.ownership.discovery import Discovery
from riffle_spark.protocol.ownership.known_copies import KnownCopies
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import Executor, SlotLayout
from riffle_spark.protocol.receipts import is_refused
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.protocol.upkeep.upkeep import Upkeep, UpkeepInput
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.stack import Stack, Stacks
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Manifest
from riffle_spark.state.restore.copy_progress import CopyProgress
from riffle_spark.worker import member_folders, slot, upkeep_piece
from tests.dst.attempts import object_in
from tests.kit.state.local_copies import unremembered

__all__ = ["Looks"]

ASIDE_SECONDS = 10.0
"""So long at least an executor whose disk refused is not asked again, if there is another."""
_DISK_LOSES = ("flipped byte", "truncated")
Dropped = tuple[str, Address]
"""An executor, and a copy that is to go there."""


def wrapped(patch: pytest.MonkeyPatch, of: Any, name: str, around: Callable[..., Any]) -> None:
    """Put ``around`` in the place of a function: it gets that one first, and what that one would get."""
    inner = getattr(of, name)
    patch.setattr(of, name, lambda *given, **more: around(inner, *given, **more))


class Looks:
    """What was told to each driver's parts, and what must follow from it. ``world`` is the schedule."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._told: dict[KnownCopies, set[tuple[str, Address, Head]]] = {}
        """Where copies are, as it was said since their driver began."""
        self._refused: dict[Discovery, dict[str, float]] = {}
        """Until when an executor is set aside whose disk refused."""
        self._oldest: dict[Upkeep, list[int]] = {}
        """The oldest retained record after each plan."""
        self._to_drop: dict[TakenSnapshots, set[Dropped]] = {}
        self._works_as: dict[str, str] = {}
        """As which member each executor was given its last order."""
        """What was to go, by any plan, and was not ordered yet."""
        self._failed: set[Rounds] = set()
        """Those whose last run failed: what was planned waits for the next plan."""
        self._before: dict[tuple[Address, Head], Head] = {}
        """What stands before each link of the log."""
        self._read: set[str] = set()
        """Records, by commit id, of which that is known: a root begun anew has other ones under their numbers."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Look from now on."""
        for of, name, around in (
            (Ownership, "begin", self._begins), (KnownCopies, "counted", self._counted), (KnownCopies, "at", self._at),
            (Ownership, "layout_for", self._laid_out), (Ownership, "record_receipts", self._answered),
            (Discovery, "forget", self._forgives), (Discovery, "any_usable", self._tries_again),
            (Upkeep, "plan", self._planned), (Upkeep, "start", self._starts),
            (Rounds, "begin", self._plans), (Rounds, "_run", self._runs), (Rounds, "forget", self._gives_up),
            (Rounds, "at_once", self._gives_up), (TakenSnapshots, "upkeep", self._orders),
            (Stacks, "switch", self._switched), (slot, "entry_at", self._entry_at),
            (upkeep_piece, "entry_at", self._entry_at),
            (member_folders, "manifest_at", self._manifest_at), (CopyProgress, "fail", self._fails),
        ):  # fmt: skip
            wrapped(patch, of, name, around)

    # --- what a driver goes by when it lays out slots -----------------------------------------------------------------

    def _begins(self, begin: Callable[..., None], own: Ownership, *given: Any) -> None:
        self._told[own.copies.known] = set()
        begin(own, *given)

    def _counted(self, counted: Callable[..., None], copies: KnownCopies, census: Any) -> None:
        counted(copies, census)
        found = {(census.member, address, head) for address, head in copies.of(census.member).items()}
        self._told.setdefault(copies, set()).update(found)

    def _at(self, at: Callable[..., None], copies: KnownCopies, member: str, address: Address, head: Head) -> None:
        at(copies, member, address, head)
        self._told.setdefault(copies, set()).add((member, address, head))

    def _laid_out(
        self, layout_for: Callable[..., SlotLayout], own: Ownership, executors: Sequence[Executor], *given: Any,
        **more: Any,
    ) -> SlotLayout:  # fmt: skip
        layout = layout_for(own, executors, *given, **more)
        now, ids = given[3], {one.id for one in executors}
        self._world.holds(lambda: self._check_places(own))
        self._world.holds(lambda: self._check_trails(own.copies.known))
        self._world.holds(lambda: _check_waits(own, now))
        self._world.holds(lambda: self._check_aside(own, layout, ids, now))
        return layout

    def _check_places(self, own: Ownership) -> None:
        """What a driver takes for a copy's place was said since it began, by who looked: others may have been there."""
        told = self._told.get(own.copies.known, set())
        for member in own.membership.live:
            found = {(member, address, head) for address, head in own.copies.known.of(member).items()}
            assert found <= told, f"nobody has said since the driver began that copies are at {sorted(found - told)}"

    def _check_trails(self, copies: KnownCopies) -> None:
        """A trail is a stretch of its key-group's history, from where it begins, without a gap."""
        self._read_on()
        for address, trail in copies._trails.items():  # private: what the driver remembers
            at = trail.base
            for _, link in trail.links:
                before = self._before.get((address, link.head))
                assert before == at, f"the trail of {address} has {link.head} after {at}, but the log after {before}"
                at = link.head

    def _read_on(self) -> None:
        seen = self._world.log_seen
        seen.look()
        for sequence in sorted(n for n in seen.manifests if seen.records[n].commit_id not in self._read):
            for address, entry in seen.manifests[sequence].entries.items():
                at = entry.base
                for link in entry.chain:
                    self._before.setdefault((address, link.head), at)
                    at = link.head
            self._read.add(seen.records[sequence].commit_id)

    def _answered(self, answered: Callable[..., None], own: Ownership, receipts: Sequence[Any], now: float) -> None:
        answered(own, receipts, now)
        aside = self._refused.setdefault(own.discovery, {})
        aside.update({one.executor: now + ASIDE_SECONDS for one in receipts if is_refused(one)})

    def _forgives(self, forget: Callable[..., None], arrivals: Discovery) -> None:
        self._refused.pop(arrivals, None)
        forget(arrivals)

    def _tries_again(
        self, are_left: Callable[..., bool], arrivals: Discovery, executors: Sequence[Executor], now: float
    ) -> bool:
        """Where all are aside, those whose disk refused in an earlier batch are tried once more."""
        until = self._refused.get(arrivals, {})
        if all(arrivals._aside.holds(one.id, now) for one in executors):  # private: who is aside, and for how long
            for executor in until.keys() - arrivals._refused:
                del until[executor]
        return are_left(arrivals, executors, now)

    def _check_aside(self, own: Ownership, layout: SlotLayout, executors: set[str], now: float) -> None:
        """An executor whose disk refused is not asked again for a while, if there is another one."""
        until = self._refused.get(own.discovery, {})
        aside = {executor for executor in executors if until.get(executor, now) > now}
        asked = {one.executor for each in layout.each for one in each.slots}
        if aside == executors:  # who serves now, for want of another one, is no more aside
            for executor in asked:
                until.pop(executor, None)
        else:
            assert not asked & aside, f"slots are laid out on {sorted(asked & aside)}, that refused"

    # --- what is still to be done beside batches ----------------------------------------------------------------------

    def _starts(self, start: Callable[..., None], upkeep: Upkeep, *given: Any, **more: Any) -> None:
        self._oldest.pop(upkeep, None)
        start(upkeep, *given, **more)

    def _planned(self, plan: Callable[..., None], upkeep: Upkeep, given: UpkeepInput, now: float) -> None:
        plan(upkeep, given, now)
        known = self._oldest.setdefault(upkeep, [])
        known.append(upkeep._retention.oldest)  # private: what the driver holds
        if len(known) > 2:  # every second plan, at the latest, comes with a sweep
            self._world.holds(lambda: _check_trails_end(given.ownership.copies.known, known[-3]))

    def _plans(self, begin: Callable[..., None], rounds: Rounds, orders: Any, bandwidth: int) -> None:
        if not rounds._background.busy():  # private: who takes plans up
            self._world.holds(lambda: self._check_done(rounds))
        to_drop = self._to_drop.setdefault(rounds.taken, set())
        for executor, order in orders.items():
            if self._works_as.get(executor, order.member) != order.member:  # what was to go is in another folder
                to_drop -= {one for one in to_drop if one[0] == executor}
            self._works_as[executor] = order.member
        to_drop |= {(one, (drop.store, drop.key_group)) for one in orders for drop in orders[one].drops}
        begin(rounds, orders, bandwidth)

    def _check_done(self, rounds: Rounds) -> None:
        """While nobody is at work no plan waits, unless the last run failed; and what was to go, by a plan that a newer
        one took the place of, too, was ordered to go, or is owed.
        """
        waits = rounds._next[0] if rounds._next else {}  # private: the plan that waits
        assert not waits or rounds in self._failed, f"a plan for {sorted(waits)} waits, and nobody is at work"
        owed = {(one, (drop.store, drop.key_group)) for one in waits for drop in waits[one].drops}
        for executor, (*_, drops) in rounds.setbacks._owed.items():  # private: what is kept for a later plan
            owed |= {(executor, (drop.store, drop.key_group)) for drop in drops}
        live = {one.id for one in self._world.cluster.executors()}
        lost = {(one, address) for one, address in self._to_drop.get(rounds.taken, set()) - owed if one in live}
        assert not lost, f"copies that were to go are forgotten: {sorted(lost)}"

    def _runs(self, run: Callable[..., None], rounds: Rounds, *taken: Any) -> None:
        self._failed.discard(rounds)
        try:
            run(rounds, *taken)
        except Exception:
            self._failed.add(rounds)
            raise

    def _gives_up(self, inner: Callable[..., None], rounds: Rounds, *given: Any) -> None:
        self._to_drop.pop(rounds.taken, None)
        inner(rounds, *given)

    def _orders(self, upkeep: Callable[..., Any], taken: TakenSnapshots, orders: Any) -> Any:
        ordered = {(one, (drop.store, drop.key_group)) for one in orders for drop in orders[one].drops}
        self._to_drop.get(taken, set()).difference_update(ordered)
        return upkeep(taken, orders)

    # --- executors ----------------------------------------------------------------------------------------------------

    def _entry_at(
        self, entry_at: Callable[..., Entry], home: Any, sequence: int, address: Address, head: Head
    ) -> Entry:
        found = entry_at(home, sequence, address, head)
        self._world.holds(lambda: self._check_entry(found, sequence, address, head))
        return found

    def _check_entry(self, found: Entry, sequence: int, address: Address, head: Head) -> None:
        """What an executor takes for what a record says of a key-group is what that one says, if it has the record that
        it was told to go by.
        """
        seen = self._world.log_seen
        seen.look()
        wanted = seen.manifests[sequence].entry(*address) if sequence in seen.manifests else None
        is_meant = wanted is not None and wanted.head == head
        assert not is_meant or found == wanted, f"record {sequence} is taken to say what it does not of {address}"

    def _manifest_at(self, manifest_at: Callable[..., Manifest], home: Any, sequence: int) -> Manifest:
        found = manifest_at(home, sequence)
        self._world.holds(lambda: self._check_manifest(found, sequence))
        return found

    def _check_manifest(self, found: Manifest, sequence: int) -> None:
        """What an executor keeps of a record is that record's, where no other one comes under its number."""
        seen = self._world.log_seen
        seen.look()
        is_meant = self._world.roots.stays and sequence in seen.manifests
        assert not is_meant or found == seen.manifests[sequence], f"another record is taken for record {sequence}"

    def _fails(self, fail: Callable[..., None], copy: CopyProgress, trouble: Exception) -> None:
        """What is tried again later costs time: an object is called damaged, or missing, where its bytes came so. One
        that comes in pieces is looked at as the disk has it.
        """
        met = self._world.faults.met
        is_of_disk = any(kind == "reboot" or (kind in _DISK_LOSES and ": read " in step) for kind, step in met)
        if isinstance(trouble, CorruptStateError) and not is_of_disk:
            snapshot, world, name = copy.entry.snapshot, self._world, object_in(trouble.where)
            if isinstance(trouble, DamagedCopy) and snapshot is not None:  # a file of what came in an earlier piece
                name = paths.snapshot(*copy.address, snapshot.id)
            told = f"{copy.address} failed with {trouble}, and nothing was wrong with {name}"
            world.holds(lambda: _check(name in world.damaged or not world.memory.exists(name), told))
        fail(copy, trouble)

    def _switched(
        self, switch: Callable[..., bool], stacks: Stacks, key_group: int, before: Stack | None, stack: Stack
    ) -> bool:
        """I2: a copy moves on from where it was seen, by what the log lists next."""
        actor = self._world.scheduler.mine()
        durable = next(one.durable for one in self._world.operators if one.store == stacks.store)
        if actor is None or not actor.process.executor or before is None or not durable:
            return switch(stacks, key_group, before, stack)
        address, there = (stacks.store, key_group), self._lists(stacks, key_group)
        done = switch(stacks, key_group, before, stack)
        if done:
            self._world.holds(lambda: self._check_moved(address, before, stack))
            overtaken = f"I2: {address} is switched from {before.head}, which was gone: {there}"
            self._world.holds(lambda: _check(not there or before in there, overtaken))
        return done

    def _lists(self, stacks: Stacks, key_group: int) -> list[Stack]:
        """Return the lists that are there of a copy: while another one takes its place, there are two."""
        with self._world.scheduler.quiet(), unremembered():
            fresh = Stacks(Path(stacks._path).parents[1], stacks.store)  # private: where they are
            names = fresh._listed().get(key_group, ())  # private: as above
            return [one for one in (fresh._read(key_group, name) for name in names) if one is not None]

    def _check_moved(self, address: Address, before: Stack, stack: Stack) -> None:
        """What is put on top of a copy is a part for each link from where it is to where it goes."""
        added = len(stack.parts) - len(before.parts)
        if not before.parts or added <= 0 or stack.parts[: len(before.parts)] != before.parts:
            return
        self._read_on()
        at, links = stack.head, 0
        while at not in (before.head, EMPTY_HEAD) and links <= added:
            at, links = self._before.get((address, at), EMPTY_HEAD), links + 1
        assert (at, links) == (before.head, added), f"I2: {address} goes to {stack.head} from {before.head} by {added}"


def _check_waits(own: Ownership, now: float) -> None:
    """Who is lost was lost by now: else it would be waited for longer than ``scheduled_rebalance_max_delay``."""
    to_come = {name: lost.since for name, lost in own.membership.lost.items() if lost.since > now}
    assert not to_come, f"members were lost at a time to come, {to_come}, at {now}"


def _check_trails_end(copies: KnownCopies, oldest: int) -> None:
    """Links that snapshots took off are forgotten once no retained record lists them."""
    for address, trail in copies._trails.items():  # private: what the driver remembers
        kept = [sequence for sequence, _ in trail.links if sequence <= oldest]
        assert not kept, f"the trail of {address} has links that went with records {kept}, before {oldest}"


def _check(holds: bool, told: str) -> None:
    assert holds, told
