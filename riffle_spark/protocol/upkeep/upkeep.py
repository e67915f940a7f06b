"""Work beside the batches: copies that follow, due snapshots, sweeping. Knows what and for whom. Does not know threads
or Spark.

Nothing here can fail a batch: what does not get done is done later. A snapshot counts only once a commit lists it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from riffle_spark.assign.model import MemberId
from riffle_spark.errors import CorruptStateError, UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Drop, Follow, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ownership.view import uses_pointers
from riffle_spark.protocol.ports import Background, Clock
from riffle_spark.protocol.upkeep.claim_work import ClaimWork, Steps, through
from riffle_spark.protocol.upkeep.retention import Deletes, Retention
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.scan import Looked, Scanned, Scans, look
from riffle_spark.protocol.upkeep.snapshots import CHAIN_SHARE, LongChains, SnapshotPolicy, due, listed, too_long
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import SURE_SECONDS
from riffle_spark.state.log.manifest import EMPTY_HEAD, Address, Entry, Head, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["Upkeep", "UpkeepFacts", "UpkeepInput", "follows"]

_SNAPSHOTS_PER_EXECUTOR = 16
_OVERDUE = 2
"""A chain of so many times the measure at which its snapshot is due has been left behind by drivers of one batch."""
_SWEEP_EVERY = 16
_CATCH_UP_SECONDS = 600.0


@dataclass(frozen=True)
class UpkeepInput:
    """What upkeep is planned for: the log's newest record and manifest, durable operators, who owns what, and where
    state lives.
    """

    record: Record
    manifest: Manifest
    operators: Sequence[Operator]
    ownership: Ownership
    home: Home


@dataclass(frozen=True, slots=True)
class UpkeepFacts:
    """What was done beside the batches: ``requests`` by kind, ``done`` sums of bytes and copies, ``warnings``."""

    requests: Mapping[str, int]
    done: Mapping[str, int]
    warnings: tuple[str, ...]


class Upkeep:
    """What one driver still has to tidy up."""

    def __init__(
        self, settings: Settings, objects: ObjectStore, background: Background, rounds: Rounds, clock: Clock
    ) -> None:
        self._settings, self._policy = settings, _policy_of(settings)
        self._retention = Retention(*_kept(settings))
        self._deletes = Deletes(objects)
        self._promised = self._found = 0
        self._look: Callable[[], Steps[Looked]] | None = None
        self._caught_up = False
        self._objects, self._work = objects, ClaimWork(background)
        self._rounds, self._clock = rounds, clock
        self._scans = Scans(objects, self._work, rounds.taken)
        self._next_sweep = self._epoch = 0
        self._taken: list[tuple[Address, Snapshot]] = []
        self._requests: Counter[str] = Counter()
        self._sent_before: Counter[str] = Counter(objects.requests)
        self._warnings: Counter[str] = Counter()
        self._long_chains = LongChains()
        self._done: Counter[str] = Counter()

    def obey(self, settings: Settings) -> None:
        """Take changed settings."""
        self._settings, self._policy = settings, _policy_of(settings)
        self._retention.keep(*_kept(settings))
        self._rounds.setbacks.start_over()

    def start(self, first: int | None, tail: Record, manifest: Manifest, *, after_claims: bool = False) -> None:
        """Begin with the log as a claim found it; ``after_claims``: the driver before committed nothing. No
        ``first``: the claim is the same, and the log begins where it did.

        What was taken under an earlier claim is forgotten, what was found, and what was still to be found or deleted.
        """
        first = self._retention.first if first is None else first
        self._work.begin(tail.commit_id)
        self._retention.start(first, tail, manifest, self._now_ms)
        self._deletes = Deletes(self._objects, tail)
        self._promised = self._found = tail.promised
        self._look = lambda: look(self._objects, first, tail, *self._retention.kept)
        self._scans.start(after_claims=after_claims)
        self._rounds.taken.only_of(tail.epoch)
        self._epoch = tail.epoch
        self._forget_taken()
        self._long_chains.forget()
        self._next_sweep = tail.sequence + _SWEEP_EVERY
        self._caught_up = False

    def catch_up(self, given: UpkeepInput) -> None:
        """Before the first batch after a start, take at once what is long overdue, to be listed with its commit, and
        begin the scan that the driver before never came to.

        What is taken after a commit is listed by the next one, which a driver of one batch never makes. For its sake,
        too, the old end of the log is looked at beside that batch: its commit then promises what is retained.
        """
        if not self._caught_up and not self._rounds.at_work():
            self._caught_up = True
            self._catch_up(given)
        if self._look:
            self._work.submit(self._look)
            self._look = None
        interval = self._settings.orphan_scan_interval
        self._scans.before_first_batch(given.record, self._retention, self._clock.seconds(), interval)

    def _catch_up(self, given: UpkeepInput) -> None:
        overdue = _due(self._policy.times(_OVERDUE), given)
        orders = self._orders(given, self._snapshots_of(overdue, given), {}, {})
        try:
            self._rounds.now({e: replace(order, seconds=_CATCH_UP_SECONDS) for e, order in orders.items()})
        except UnavailableError as error:
            self._warnings[f"upkeep failed and is tried again later: {error}"] += 1

    def snapshots(self, manifest: Manifest, ownership: Ownership) -> dict[Address, Entry]:
        """Return the entries that list the snapshots which were taken since the last commit."""
        self.gather(ownership)
        changes, _ = listed(manifest, self._taken)
        return changes

    def promise_after(self, first: int, tail: Record) -> int:
        """Return what a claim is to promise after ``tail``: where that is a claim too, no batch came to raise it."""
        if tail.kind != "claim":
            return tail.promised
        try:
            return max(tail.promised, through(look(self._objects, first, tail, *self._retention.kept)).oldest)
        except CorruptStateError:  # of an old record, which no batch needs: the look beside the first one tells of it
            return tail.promised

    def promise(self, sequence: int) -> int:
        """Return how far back record ``sequence`` is to promise a rollback.

        That is raised with records that deletes follow, and to what a scan has found: so much longer what is old can be
        gone back to.
        """
        due = self._retention.promise(sequence, self._now_ms) if sequence >= self._next_sweep else 0
        return min(max(self._promised, self._found, due), sequence)

    def committed(self, record: Record, before: Manifest, changes: dict[Address, Entry]) -> None:
        """Note a commit: what it replaced may go later."""
        self._deletes.committed(record)
        self._promised = record.promised
        self._retention.committed(record, before, changes, self._now_ms)
        known = {(address, entry.snapshot) for address, entry in changes.items()}
        unused = [paths.snapshot(*a, s.id) for a, s in self._taken if (a, s) not in known]
        self._retention.unlisted(record.sequence, unused)
        self._forget_taken()

    def _forget_taken(self) -> None:
        self._rounds.taken.forget(paths.snapshot(*a, s.id) for a, s in self._taken)
        self._taken.clear()

    @property
    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def plan(self, given: UpkeepInput, now: float) -> None:
        """Submit what is due after a commit; a plan that still runs makes way after its piece."""
        record, ownership, policy = given.record, given.ownership, self._policy
        self.gather(ownership)  # what was taken since the commit began is listed by the next one, not taken again
        due_now = _due(policy, given)
        long_chains = [name for name, entry in due_now.items() if too_long(policy, name, entry, record.version)]
        self._warnings.update(self._long_chains.seen(long_chains, record))
        self._begin(given, due_now, now)
        if record.sequence >= self._next_sweep:
            self._next_sweep = record.sequence + _SWEEP_EVERY
            self._submit_deletes(self._retention.take_free(record.promised))
            ownership.copies.known.forget_trails(self._retention.oldest)
        self._scans.after_commit(record, self._retention, now, self._settings.orphan_scan_interval)

    def go_on(self, given: UpkeepInput, now: float) -> bool:
        """Submit what is to be done where no commit comes; tell whether anything is, now or once a delay is over."""
        self.gather(given.ownership)
        return self._begin(given, _due(self._policy, given), now)

    def also_sent(self, requests: Mapping[str, int]) -> None:
        """Count what the driver itself asked of the store between two batches."""
        self._requests.update(requests)

    def _begin(self, given: UpkeepInput, due_now: Mapping[Address, Entry], now: float) -> bool:
        ownership, stores = given.ownership, [operator.store for operator in given.operators]
        delay, live = self._settings.state_cleanup_delay, ownership.membership.live
        emptied = ownership.placement.triggers.quarantine.emptied
        drops = ownership.copies.idle.take_due(ownership.copies.known, live, now, delay, at_once=emptied)
        wanted = follows(ownership, given.manifest, stores)
        orders = self._orders(given, self._snapshots_of(due_now, given), wanted, drops)
        self._rounds.setbacks.only_of({name: living.executor.id for name, living in ownership.membership.live.items()})
        self._rounds.begin(orders, self._settings.upkeep_bandwidth)
        return bool(orders)

    def _snapshots_of(
        self, due_now: Mapping[Address, Entry], given: UpkeepInput
    ) -> dict[MemberId, list[SnapshotOrder]]:
        """Return the snapshots to take of those that are due, by the owner that takes them: as many as one executor
        takes at once, those first that were taken longest ago. None waits for ever.
        """
        placement = given.ownership.placement
        owners = placement.present.owners
        groups = placement.groups
        setbacks = self._rounds.setbacks
        unlisted, now = {address for address, _ in self._taken}, self._clock.seconds()
        wanted: dict[MemberId, list[SnapshotOrder]] = {}
        for address, entry in sorted(due_now.items(), key=lambda one: (one[1].base.version, one[0])):
            owner, order = owners.get(groups.task(*address)), SnapshotOrder(*address, entry)
            if owner is not None and address not in unlisted:
                wanted.setdefault(owner, []).append(order)
        ready = {member: setbacks.ready(member, mine, now) for member, mine in wanted.items()}
        return {member: mine[:_SNAPSHOTS_PER_EXECUTOR] for member, mine in ready.items() if mine}

    def _orders(
        self, given: UpkeepInput, snapshots: Mapping[MemberId, list[SnapshotOrder]],
        wanted: Mapping[MemberId, list[Follow]], drops: Mapping[MemberId, list[Drop]],
    ) -> dict[str, UpkeepOrder]:  # fmt: skip
        """Return the order of each executor that has something to do.

        At every other record what has to be fetched whole makes way for snapshots, so that neither waits for ever.
        """
        record = given.record
        schemas = {one.store: one.schema_after(record.schemas, record.epoch) for one in given.operators}
        orders: dict[str, UpkeepOrder] = {}
        placement = given.ownership.placement
        working = placement.present.owners.values()
        looked_at = placement.triggers.quarantine.members_to_measure(working, self._clock.seconds())
        live = given.ownership.membership.live
        for member in sorted({*snapshots, *wanted, *drops, *looked_at} & set(live)):
            living = live[member]
            mine = wanted.get(member, [])
            if member in snapshots and record.sequence % 2:
                mine = [follow for follow in mine if follow.entry.cut is not None]
            orders[living.executor.id] = UpkeepOrder(
                given.home, member if living.counted else "", record.epoch, record.sequence, schemas,
                drops=tuple(drops.get(member, ())), follows=tuple(mine),
                snapshots=tuple(snapshots.get(member, ())), disk_limit=self._settings.local_disk_limit,
                measure=member in looked_at, timeout_seconds=self._settings.upkeep_timeout,
            )  # fmt: skip
        return orders

    def _submit_deletes(self, names: list[str]) -> None:
        if names:
            self._work.submit(partial(self._deletes.run, names))

    def gather(self, ownership: Ownership) -> None:
        """Take what has come from beside the batches."""
        for result in self._work.collect():
            if isinstance(result, BaseException):
                reason = result if isinstance(result, Exception) else repr(result)
                self._warnings[f"upkeep failed and is tried again later: {reason}"] += 1
            elif isinstance(result, Looked):
                self._found = max(self._found, result.oldest)
                self._retention.swept(result.oldest, self._retention.first)
            elif isinstance(result, Scanned):
                self._found = max(self._found, result.oldest)
                self._scans.came(result, self._retention, self._settings.orphan_scan_interval)
        while self._rounds.arrived:
            self._take(self._rounds.arrived.popleft(), ownership)
        self._warnings.update(self._rounds.setbacks.take_warnings())

    def _take(self, receipt: UpkeepReceipt, ownership: Ownership) -> None:
        # One of an earlier epoch may come late, when a scan may already be deleting it.
        self._taken += [((store, kg), taken) for store, kg, taken in receipt.snapshots if taken.epoch == self._epoch]
        ownership.record_folder(receipt.executor, receipt.member)
        living = ownership.membership.live.get(receipt.member)
        if living is not None and living.executor.id == receipt.executor:
            working = receipt.member in ownership.placement.present.owners.values()  # its slots report their memory
            ownership.membership.record_usage(receipt.member, receipt.disk, (0, 0) if working else receipt.memory)
            for store, key_group, version, attempt in receipt.copies:
                ownership.copies.known.record_copy(receipt.member, (store, key_group), Head(version, attempt))
            for address in receipt.missing:
                ownership.copies.known.remove(receipt.member, address)
        self._requests.update(receipt.requests)
        self._done.update(
            snapshot_bytes=receipt.snapshot_bytes, fetched_bytes=receipt.snapshot_bytes + receipt.delta_bytes,
            folds=receipt.folds, restores=receipt.restores,
        )  # fmt: skip
        self._warnings.update(
            f"upkeep on executor {receipt.executor} is tried again later: {error}" for error in receipt.errors
        )
        self._warnings.update(
            f"executor {receipt.executor} removed its copy of {store}, key-group {key_group}, damaged on its disk: "
            "whatever needs it next restores it\n  What to do: nothing; if it happens again, look at that disk"
            for store, key_group in receipt.damaged
        )

    def take_facts(self) -> UpkeepFacts:
        """Return what was done since the last call, for the report."""
        sent = Counter(self._objects.requests)
        told = tuple(f"{text} ({n} times)" if n > 1 else text for text, n in self._warnings.items())
        facts = UpkeepFacts(dict(self._requests + sent - self._sent_before), dict(self._done), told)
        self._sent_before = sent
        self._requests.clear()
        self._done.clear()
        self._warnings.clear()
        return facts


def _kept(settings: Settings) -> tuple[int, int]:
    """Return how many records are retained at least, and for how many milliseconds all: who had the log before may
    trust for a while that its newest record is still there.
    """
    return max(2, settings.retained_versions), int(max(settings.retained_for, 2 * SURE_SECONDS) * 1000)


def _policy_of(settings: Settings) -> SnapshotPolicy:
    return SnapshotPolicy(CHAIN_SHARE, settings.snapshot_chain_links, _kept(settings)[0])


def _due(policy: SnapshotPolicy, given: UpkeepInput) -> dict[Address, Entry]:
    """Return the entries of which a snapshot is due."""
    stores, version = {operator.store for operator in given.operators}, given.record.version
    entries = given.manifest.entries.items()
    return {address: e for address, e in entries if address[0] in stores and due(policy, address, e, version)}


def follows(ownership: Ownership, manifest: Manifest, stores: Iterable[str]) -> dict[MemberId, list[Follow]]:
    """Return what each member has to fold or fetch so that its standbys and warm-ups are where the log is.

    Pointer standbys hold nothing that could follow, unless they are to own. Warm-ups come first: owners wait for them.
    """
    present, live = ownership.placement.present, ownership.membership.live
    pointers = uses_pointers(ownership.placement.settings)
    kept = {t: tuple(m for m in members if m == present.target.get(t)) for t, members in present.standbys.items()}
    roles = [present.warmups, kept if pointers else present.standbys]
    wanted: dict[MemberId, list[Follow]] = {}
    named = sorted(stores)
    for copies in roles:
        for t, members in sorted(copies.items()):
            for member in (m for m in members if m in live):
                for store in ownership.placement.groups.stores_of(t.group, named):
                    address = (store, t.key_group)
                    entry = manifest.entry(*address)
                    if entry.head != EMPTY_HEAD and ownership.copies.known.missing_links(member, address, entry) != ():
                        follow = Follow(*address, ownership.copies.known.entry_to_follow(member, address, entry))
                        wanted.setdefault(member, []).append(follow)
    return wanted
