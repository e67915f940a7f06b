"""Plan the background work: copies that follow the log, merges, snapshots, removed copies, deletes and scans.

A failure here never fails a batch: the work is done later. Snapshots and merged deltas count once a commit lists them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.errors import CorruptStateError, UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Drop, Follow, MergeOrder, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ownership.view import uses_pointers
from riffle_spark.protocol.ports import Background, Clock
from riffle_spark.protocol.upkeep.claim_work import ClaimWork, Steps, run_to_end
from riffle_spark.protocol.upkeep.merges import MergePolicy, choose_merges, find_sparse, list_merges
from riffle_spark.protocol.upkeep.retention import Deletes, Retention
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.scan import OldestRetained, ScanResult, Scans, find_oldest_retained
from riffle_spark.protocol.upkeep.snapshots import (
    LongChains,
    SnapshotPolicy,
    is_too_long,
    list_snapshots,
    needs_snapshot,
)
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import SURE_SECONDS
from riffle_spark.state.log.manifest import (
    Address,
    Entry,
    Manifest,
    MergedDelta,
    Replacement,
    Snapshot,
)
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

_SNAPSHOTS_PER_EXECUTOR = 16
_OVERDUE_FACTOR = 2
"""A chain this many times longer than the policy allows gets its snapshot before the first batch."""
_SWEEP_RECORDS = 16
_SWEEP_OBJECTS = 8
_CATCH_UP_SECONDS = 600.0


@dataclass(frozen=True)
class UpkeepInput:
    """The input of a plan. ``record`` is the newest record; ``operators`` are the durable operators."""

    record: Record
    manifest: Manifest
    operators: Sequence[Operator]
    ownership: Ownership
    home: Home


@dataclass(frozen=True, slots=True)
class UpkeepFacts:
    """The results of upkeep since the last report.

    ``requests`` counts requests by kind. ``sums`` has bytes and copies by the name of their figure.
    """

    requests: Mapping[str, int]
    sums: Mapping[str, int]
    warnings: tuple[str, ...]


class Upkeep:
    """Plans the upkeep of a driver and collects its results."""

    def __init__(
        self, settings: Settings, objects: ObjectStore, background: Background, rounds: Rounds, clock: Clock
    ) -> None:
        """Create the upkeep of a driver. ``objects`` is the store for deletes and scans, ``rounds`` runs the plans."""
        self._settings = settings
        self._merge_policy = _merge_policy_of(settings)
        self._policy = _policy_of(settings, self._merge_policy)
        self._retention = Retention(*_retention_limits(settings))
        self._deletes = Deletes(objects)
        self._promised = 0
        self._oldest_found = 0
        self._first_search: Callable[[], Steps[OldestRetained]] | None = None
        self._has_caught_up = False
        self._objects = objects
        self._work = ClaimWork(background)
        self._rounds = rounds
        self._clock = clock
        self._scans = Scans(objects, self._work, rounds.taken_snapshots)
        self._next_sweep = 0
        self._epoch = 0
        self._taken_snapshots: list[tuple[Address, Snapshot]] = []
        """Snapshots that no record lists yet."""
        self._merged: list[tuple[Address, Replacement]] = []
        """Links of merged deltas that no record lists yet."""
        self._sparse: frozenset[MergedDelta] = frozenset()
        """Merged deltas of which less than half was listed at the last sweep."""
        self._requests: Counter[str] = Counter()
        self._requests_before: Counter[str] = Counter(objects.requests)
        self._warnings: Counter[str] = Counter()
        self._long_chains = LongChains()
        self._sums: Counter[str] = Counter()

    def change_settings(self, settings: Settings) -> None:
        """Use changed settings from the next plan on, and allow failed work to be tried again."""
        self._settings = settings
        self._merge_policy = _merge_policy_of(settings)
        self._policy = _policy_of(settings, self._merge_policy)
        self._retention.set_limits(*_retention_limits(settings))
        self._rounds.setbacks.retry_all()

    def start(self, first: int | None, tail: Record, manifest: Manifest, *, follows_claim: bool = False) -> None:
        """Start with the record ``tail``, and forget earlier snapshots, deletes and scans.

        ``first`` is the number of the log's first record; ``None`` if it is already known. ``follows_claim`` means that
        the driver before committed nothing.
        """
        first = self._retention.first if first is None else first
        self._work.begin(tail.commit_id)
        self._retention.start(first, tail, manifest, self._now_ms)
        self._deletes = Deletes(self._objects, tail)
        self._promised = tail.promised
        self._oldest_found = tail.promised
        self._first_search = lambda: find_oldest_retained(self._objects, first, tail, *self._retention.limits)
        self._scans.start(follows_claim=follows_claim)
        self._rounds.taken_snapshots.forget_before(tail.epoch)
        self._epoch = tail.epoch
        self._forget_taken()
        self._long_chains.forget()
        self._next_sweep = tail.sequence + _SWEEP_RECORDS
        self._sparse = frozenset()
        self._has_caught_up = False

    def catch_up(self, current: UpkeepInput) -> None:
        """Before the first batch after a start: take overdue snapshots, merge overdue links, and start the search and
        scan that are due.

        This keeps jobs with one batch per run bounded. The commit of that batch lists the results, and promises the
        oldest retained record that the search finds during the batch.
        """
        if not self._has_caught_up and not self._rounds.is_running():
            self._has_caught_up = True
            self._shorten_overdue_chains(current)
        if self._first_search:
            self._work.submit(self._first_search)
            self._first_search = None
        interval = self._settings.orphan_scan_interval
        self._scans.submit_before_first_batch(current.record, self._retention, self._clock.seconds(), interval)

    def _shorten_overdue_chains(self, current: UpkeepInput) -> None:
        """Take the snapshots of chains that are far too long, merge the links of others, and wait for the results."""
        overdue = _due_entries(self._policy.times(_OVERDUE_FACTOR), current)
        merges = self._merge_orders(self._merge_policy.times(_OVERDUE_FACTOR), current, overdue.keys())
        orders = self._orders(current, self._snapshot_orders(overdue, current), {}, {}, merges)
        try:
            self._rounds.run_now({e: replace(order, seconds=_CATCH_UP_SECONDS) for e, order in orders.items()})
        except UnavailableError as error:
            self._warn_of_failure(error)

    def _warn_of_failure(self, error: object) -> None:
        """Add the warning that upkeep failed with ``error`` and will be retried."""
        # Cause: The error names the cause. Batches are not affected.
        # Remedy: Follow the remedy of the error. If it has none, do nothing, because upkeep is retried.
        self._warnings[f"[RIFFLE-0817] Upkeep failed and will be retried: {error}"] += 1
        self._sums["failures"] += 1

    def entries_with_snapshots(self, manifest: Manifest, ownership: Ownership) -> dict[Address, Entry]:
        """Return the manifest entries that list the snapshots and merged deltas put since the last commit."""
        self.gather(ownership)
        return list_merges(manifest, list_snapshots(manifest, self._taken_snapshots), self._merged)

    def promise_after(self, first: int, tail: Record) -> int:
        """Return the promise for a claim that follows ``tail``: the number of the oldest record to roll back to.

        ``first`` is the number of the log's first record. If ``tail`` is a claim too, no batch has raised its promise,
        so this searches the log.
        """
        if tail.kind != "claim":
            return tail.promised
        search = find_oldest_retained(self._objects, first, tail, *self._retention.limits)
        try:
            return max(tail.promised, run_to_end(search).oldest)
        except CorruptStateError:  # in an old record that no batch needs; the search during the first batch warns
            return tail.promised

    def promise(self, sequence: int) -> int:
        """Return the promise of record ``sequence``: the oldest record that a rollback may return to.

        It is raised only with records that deletes follow, and to the result of a search or scan. Until then old
        records stay available.
        """
        oldest = self._retention.oldest_after(sequence, self._now_ms)
        is_due = sequence >= self._next_sweep or self._retention.has_retired(_SWEEP_OBJECTS, oldest)
        return min(max(self._promised, self._oldest_found, oldest if is_due else 0), sequence)

    def record_commit(self, record: Record, manifest: Manifest, changes: dict[Address, Entry]) -> None:
        """Record a commit: objects that it no longer lists may be deleted later.

        ``manifest`` is the manifest before its ``changes``.
        """
        deleted_savepoints = self._deletes.set_tail(record)
        self._promised = record.promised
        self._retention.record_commit(record, manifest, changes, self._now_ms)
        listed_now = {(address, entry.snapshot) for address, entry in changes.items()}
        unused = [paths.snapshot_name(*a, s.id) for a, s in self._taken_snapshots if (a, s) not in listed_now]
        merged_names = {replacement.link.object for _, replacement in self._merged}
        if merged_names:
            merged_names -= {link.object for entry in changes.values() for link in entry.chain if link.merged}
        self._retention.retire(record.sequence, [*unused, *sorted(merged_names), *deleted_savepoints])
        self._scans.hasten_after(deleted_savepoints)
        self._forget_taken()

    def _forget_taken(self) -> None:
        """Forget the snapshots and merged deltas that no record lists yet."""
        self._rounds.taken_snapshots.forget(
            paths.snapshot_name(*address, snapshot.id) for address, snapshot in self._taken_snapshots
        )
        self._rounds.taken_snapshots.forget(replacement.link.object for _, replacement in self._merged)
        self._taken_snapshots.clear()
        self._merged.clear()

    @property
    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def plan(self, current: UpkeepInput, clock_seconds: float) -> None:
        """Plan the upkeep after a commit. The plan replaces one that still runs, after its present round."""
        record = current.record
        self.gather(current.ownership)  # snapshots taken during the commit are listed by the next one, not taken again
        due_entries = _due_entries(self._policy, current)
        long_chains = [a for a, entry in due_entries.items() if is_too_long(self._policy, a, entry, record.version)]
        self._warnings.update(self._long_chains.update(long_chains, record))
        self._submit_plan(current, due_entries, clock_seconds)
        deletable = self._retention.take_deletable(record.promised)
        if deletable:
            self._work.submit(partial(self._deletes.run, deletable))
        if record.sequence >= self._next_sweep:
            self._next_sweep = record.sequence + _SWEEP_RECORDS
            current.ownership.copies.reported.forget_trails(self._retention.oldest)
            self._sparse = find_sparse(current.manifest)
        self._scans.submit_if_due(record, self._retention, clock_seconds, self._settings.orphan_scan_interval)

    def plan_idle(self, current: UpkeepInput, clock_seconds: float) -> bool:
        """Plan the upkeep while no batch arrives; return whether there is any, now or after a delay."""
        self.gather(current.ownership)
        return self._submit_plan(current, _due_entries(self._policy, current), clock_seconds)

    def count_requests(self, requests: Mapping[str, int]) -> None:
        """Add requests that the driver itself sent between two batches."""
        self._requests.update(requests)

    def _submit_plan(self, current: UpkeepInput, due_entries: Mapping[Address, Entry], clock_seconds: float) -> bool:
        """Submit the removals, advances, merges and snapshots that are due now; return whether there are any."""
        ownership = current.ownership
        live = ownership.membership.live
        drops = ownership.copies.idle.take_due(
            ownership.copies.reported,
            live,
            clock_seconds,
            self._settings.state_cleanup_delay,
            at_once=ownership.placement.triggers.quarantine.members_to_empty,
        )
        follows = follow_orders(ownership, current.manifest, [operator.store for operator in current.operators])
        merges = self._merge_orders(self._merge_policy, current, due_entries.keys())
        orders = self._orders(current, self._snapshot_orders(due_entries, current), follows, drops, merges)
        self._rounds.setbacks.keep_members({member: living.executor.id for member, living in live.items()})
        self._rounds.submit(orders, self._settings.upkeep_bandwidth)
        return bool(orders)

    def _snapshot_orders(
        self, due_entries: Mapping[Address, Entry], current: UpkeepInput
    ) -> dict[MemberId, list[SnapshotOrder]]:
        """Return the snapshots that each owner takes next, of the entries that are due.

        Snapshots with the oldest base are first, so none starves.
        """
        placement = current.ownership.placement
        unlisted_addresses = {address for address, _ in self._taken_snapshots}
        by_owner: dict[MemberId, list[SnapshotOrder]] = {}
        for address, entry in sorted(due_entries.items(), key=lambda item: (item[1].base.version, item[0])):
            owner = placement.present.owners.get(placement.groups.task(*address))
            if owner is not None and address not in unlisted_addresses:
                by_owner.setdefault(owner, []).append(SnapshotOrder(*address, entry))
        seconds = self._clock.seconds()
        ready = {owner: self._rounds.setbacks.ready_snapshots(owner, o, seconds) for owner, o in by_owner.items()}
        return {owner: orders[:_SNAPSHOTS_PER_EXECUTOR] for owner, orders in ready.items() if orders}

    def _merge_orders(
        self, policy: MergePolicy, current: UpkeepInput, with_snapshots: Set[Address]
    ) -> dict[MemberId, list[MergeOrder]]:
        """Return the merges that each owner makes next.

        Key-groups that get a snapshot (``with_snapshots``) or whose last results are not listed yet are left out.
        """
        if not policy.fan_in:
            return {}
        placement = current.ownership.placement
        stores = {operator.store for operator in current.operators}
        waiting_addresses = {address for address, _ in (*self._taken_snapshots, *self._merged)} | with_snapshots
        owners = placement.present.owners
        candidates = {
            address: entry
            for address, entry in current.manifest.entries.items()
            if address[0] in stores and address not in waiting_addresses
        }
        by_owner = choose_merges(
            policy,
            candidates,
            lambda address: owners.get(placement.groups.task(*address)),
            current.record.version,
            self._sparse,
        )
        seconds = self._clock.seconds()
        ready = {
            owner: self._rounds.setbacks.ready_merges(owner, due_merges, seconds)
            for owner, due_merges in by_owner.items()
        }
        return {owner: merges for owner, merges in ready.items() if merges}

    def _orders(
        self,
        current: UpkeepInput,
        snapshots: Mapping[MemberId, list[SnapshotOrder]],
        follows: Mapping[MemberId, list[Follow]],
        drops: Mapping[MemberId, list[Drop]],
        merges: Mapping[MemberId, list[MergeOrder]],
    ) -> dict[str, UpkeepOrder]:
        """Return the orders by executor, for executors with work.

        At every other record, copies that have to be fetched whole are left out if there are snapshots to take, so that
        neither kind of work starves.
        """
        record = current.record
        schemas = {o.store: o.schema_after(record.schemas, record.epoch) for o in current.operators}
        placement = current.ownership.placement
        members_to_measure = placement.triggers.quarantine.members_to_measure(
            placement.present.owners.values(), self._clock.seconds()
        )
        live = current.ownership.membership.live
        orders: dict[str, UpkeepOrder] = {}
        for member in sorted({*snapshots, *merges, *follows, *drops, *members_to_measure} & set(live)):
            living = live[member]
            member_follows = follows.get(member, [])
            if member in snapshots and record.sequence % 2:
                member_follows = [follow for follow in member_follows if not follow.is_whole]
            orders[living.executor.id] = UpkeepOrder(
                current.home,
                member if living.counted else "",
                record.epoch,
                record.sequence,
                schemas,
                drops=tuple(drops.get(member, ())),
                follows=tuple(member_follows),
                snapshots=tuple(snapshots.get(member, ())),
                merges=tuple(merges.get(member, ())),
                disk_limit=self._settings.local_disk_limit,
                measure=member in members_to_measure,
                timeout_seconds=self._settings.upkeep_timeout,
            )
        return orders

    def gather(self, ownership: Ownership) -> None:
        """Take the results of background work, and record the copies and folders that they report in ``ownership``."""
        for result in self._work.collect():
            if isinstance(result, BaseException):
                self._warn_of_failure(result if isinstance(result, Exception) else repr(result))
            elif isinstance(result, OldestRetained):
                self._oldest_found = max(self._oldest_found, result.oldest)
                self._retention.record_scan(result.oldest, self._retention.first)
            elif isinstance(result, ScanResult):
                self._oldest_found = max(self._oldest_found, result.oldest)
                self._scans.record_result(result, self._retention, self._settings.orphan_scan_interval)
        while self._rounds.arrived:
            self._take_receipt(self._rounds.arrived.popleft(), ownership)
        self._warnings.update(self._rounds.setbacks.take_warnings())

    def _take_receipt(self, receipt: UpkeepReceipt, ownership: Ownership) -> None:
        """Record the snapshots, copies, figures and failures of an executor's receipt."""
        # A snapshot or merged delta of an earlier epoch may arrive late, when a scan may already delete it.
        self._taken_snapshots += [
            ((store, kg), snapshot) for store, kg, snapshot in receipt.snapshots if snapshot.epoch == self._epoch
        ]
        self._merged += [
            ((store, kg), replacement)
            for store, kg, replacement in receipt.merges
            if replacement.link.source.epoch == self._epoch
        ]
        ownership.record_folder(receipt.executor, receipt.member)
        living = ownership.membership.live.get(receipt.member)
        if living is not None and living.executor.id == receipt.executor:
            has_slots = receipt.member in ownership.placement.present.owners.values()  # slots report their own memory
            ownership.membership.record_usage(receipt.member, receipt.disk, (0, 0) if has_slots else receipt.memory)
            ownership.copies.reported.record_copies(receipt.member, receipt.copies)
            for address in receipt.missing:
                ownership.copies.reported.remove(receipt.member, address)
            fetched_by_task: Counter[TaskId] = Counter()
            for store, key_group, fetched_bytes, _ in receipt.unfinished:
                fetched_by_task[ownership.placement.groups.task(store, key_group)] += fetched_bytes
            ownership.copies.warmups.record_partial(receipt.member, fetched_by_task)
        self._requests.update(receipt.requests)
        self._sums.update(
            snapshot_bytes=receipt.snapshot_bytes,
            fetched_bytes=receipt.snapshot_bytes + receipt.delta_bytes + receipt.merge_bytes,
            folds=receipt.folds,
            restores=receipt.restores,
            failures=len(receipt.errors),
        )
        # Cause: The error names the cause. Batches are not affected.
        # Remedy: Follow the remedy of the error. If it has none, do nothing, because upkeep is retried.
        self._warnings.update(
            f"[RIFFLE-0818] Upkeep on executor {receipt.executor} failed and will be retried: {error}"
            for error in receipt.errors
        )
        # Cause: The disk or another process altered the file after it was written.
        self._warnings.update(
            f"[RIFFLE-0819] Executor {receipt.executor} removed its damaged copy of {store}, key-group {key_group}. It "
            "is restored when it is needed.\n  What to do: If this happens again, check that executor's disk."
            for store, key_group in receipt.damaged
        )

    def take_facts(self) -> UpkeepFacts:
        """Return the results since the last call, for the report, and forget them."""
        sent_requests = Counter(self._objects.requests)
        requests = self._requests + sent_requests - self._requests_before
        warnings = tuple(f"{text} ({count} times)" if count > 1 else text for text, count in self._warnings.items())
        facts = UpkeepFacts(dict(requests), dict(self._sums), warnings)
        self._requests_before = sent_requests
        self._requests.clear()
        self._sums.clear()
        self._warnings.clear()
        return facts


def _retention_limits(settings: Settings) -> tuple[int, int]:
    """Return the least number of retained records, and the milliseconds for which all records are retained.

    An earlier driver may assume for ``SURE_SECONDS`` that its newest record exists.
    """
    return max(2, settings.retained_versions), int(max(settings.retained_for, 2 * SURE_SECONDS) * 1000)


def _merge_policy_of(settings: Settings) -> MergePolicy:
    """Return the limits of unmerged links that the settings set."""
    return MergePolicy.of_chains(settings.snapshot_chain_links, _retention_limits(settings)[0])


def _policy_of(settings: Settings, merges: MergePolicy) -> SnapshotPolicy:
    """Return the limits of chains that the settings set."""
    versions = _retention_limits(settings)[0]
    return SnapshotPolicy.of_chains(settings.snapshot_chain_links, versions, are_merged=merges.fan_in > 0)


def _due_entries(policy: SnapshotPolicy, current: UpkeepInput) -> dict[Address, Entry]:
    """Return the manifest entries of the operators' stores that need a snapshot."""
    stores = {operator.store for operator in current.operators}
    return {
        address: entry
        for address, entry in current.manifest.entries.items()
        if address[0] in stores and needs_snapshot(policy, address, entry, current.record.version)
    }


def follow_orders(ownership: Ownership, manifest: Manifest, stores: Iterable[str]) -> dict[MemberId, list[Follow]]:
    """Return the copies that each member has to advance or fetch, so that standbys and warm-ups follow the log.

    ``stores`` are the durable stores. Pointer standbys hold no copies, except those that will become the owner.
    Warm-ups are first, because owners wait for them.
    """
    placement = ownership.placement
    known_copies = ownership.copies.reported
    assignment = placement.present
    standbys = assignment.standbys
    if uses_pointers(placement.settings):
        targets = assignment.target
        standbys = {task: tuple(m for m in members if m == targets.get(task)) for task, members in standbys.items()}
    follows: dict[MemberId, list[Follow]] = {}
    entries = manifest.entries
    live = ownership.membership.live
    sorted_stores = sorted(stores)
    stores_of = {group: placement.groups.stores_of(group, sorted_stores) for group in placement.groups.names}
    for members_by_task in (assignment.warmups, standbys):
        for task in sorted(members_by_task):
            key_group = task.key_group
            for member in members_by_task[task]:
                for store in stores_of.get(task.group, ()) if member in live else ():
                    entry = entries.get((store, key_group))
                    follow = known_copies.follow_of(member, (store, key_group), entry) if entry else None
                    if follow is not None:
                        follows.setdefault(member, []).append(follow)
    return follows
