"""Retention deletes nothing that a retained record lists (I5), and nothing of a newer epoch (I4)."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import FencedError, UnavailableError
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.upkeep import scan
from riffle_spark.protocol.upkeep.claim_work import run_to_end
from riffle_spark.protocol.upkeep.retention import Deletes, Retention, find_orphans
from riffle_spark.protocol.upkeep.snapshots import list_snapshots
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Manifest, Snapshot
from riffle_spark.state.log.record import Record, encode
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import World, one_row, rows_of, totals
from tests.kit.state.drawn_records import attempt, drafted, grown, opened
from tests.kit.state.faulty_store import Fault

PLAIN = first_record("query", 8, "key_group", Stamp("c", 0))


class Model:
    """Records and objects as a list and a set, next to the tested tracker."""

    def __init__(self, chance: random.Random, versions: int, for_ms: int) -> None:
        self.chance, self.versions, self.for_ms = chance, versions, for_ms
        self.now = 0
        self.manifests = [Manifest()]
        self.written = [0]
        self.present: set[str] = set()
        self.promised = 0
        self.epoch = 1
        self.tracker = Retention(versions, for_ms)
        self.start()

    def start(self) -> None:
        """Start a driver with a claim and a new tracker."""
        self.tracker = Retention(self.versions, self.for_ms)
        self.manifests.append(self.manifests[-1])
        self.written = [self.now] * len(self.manifests)
        tail = self._record(len(self.manifests) - 1)
        self.tracker.start(0, tail, self.manifests[-1], self.now)
        self.epoch += 1

    def commit(self) -> None:
        """Commit a batch with deltas that several key-groups share, and with snapshots."""
        sequence, before = len(self.manifests), self.manifests[-1]
        addresses = list(before.entries)
        taken = [
            (a, self._snapshot(sequence, self.chance.choice(before.entries[a].chain).head))
            for a in self.chance.sample(addresses, self.chance.randint(0, len(addresses)))
            if before.entries[a].chain
        ]
        for (store, key_group), snapshot in taken:
            self.present.add(paths.snapshot_name(store, key_group, snapshot.id))
        changes = list_snapshots(before, taken)
        unused = [paths.snapshot_name(*a, s.id) for a, s in taken if changes.get(a, Entry()).snapshot != s]
        for slot in range(self.chance.randint(0, 2)):
            head = Head(sequence, f"{self.epoch}-{sequence * 10 + slot:032x}")
            for key_group in self.chance.sample(range(6), self.chance.randint(1, 3)):
                address: Address = ("totals", key_group)
                entry = changes.get(address, before.entry(*address))
                if not entry.chain or entry.chain[-1].head.version < sequence:
                    changes[address] = entry.add_link(Link(head, key_group, 1, 0, 1))
                    self.present.add(paths.delta_name(*head))
        self.now += self.chance.choice([0, 1, 50])
        self.promised = max(self.promised, self.tracker.oldest_after(sequence, self.now))
        self.manifests.append(before.with_entries(changes))
        self.written.append(self.now)
        record = self._record(sequence)
        self.tracker.record_commit(record, before, changes, self.now)
        self.tracker.retire(sequence, unused)
        self.check_counters()

    def check_counters(self) -> None:
        """Compare the tracker's counters with counts of the newest manifest."""
        recounted = Retention(self.versions, self.for_ms)
        newest = len(self.manifests) - 1
        recounted.start(0, self._record(newest), self.manifests[-1], self.now)
        assert self.tracker._references == recounted._references

    def _record(self, sequence: int) -> Record:
        return replace(PLAIN, sequence=sequence, written_ms=self.now, full=sequence - sequence % FULL_EVERY)

    def _snapshot(self, sequence: int, head: Head) -> Snapshot:
        return Snapshot(paths.snapshot_id(head.version, f"{self.epoch}-{sequence:032x}"), head, 1, 0, 1)

    def retained(self) -> set[str]:
        """Return the objects of the retained records: the newest ones and the recent ones."""
        newest = range(len(self.manifests))[-self.versions :]
        young = [s for s, written in enumerate(self.written) if self.now - written <= self.for_ms]
        return set().union(*(self.manifests[s].object_names() for s in {*newest, *young}))

    def sweep(self) -> None:
        """Delete the objects that the tracker releases, and check that no retained record lists them."""
        free = self.tracker.take_deletable(self.promised)
        objects = {name for name in free if not name.startswith(paths.LOG)}
        assert not objects & self.retained(), "I5: an object that a retained record lists would be deleted"
        promised = set().union(*(m.object_names() for m in self.manifests[self.promised :]))
        assert not objects & promised, "an object of a promised record would be deleted"
        assert objects <= self.present, "an object that does not exist would be deleted"
        self.present -= objects
        records = [paths.parse_record_name(name) for name in free if name.startswith(paths.LOG)]
        oldest = min(s for s in range(len(self.manifests)) if s >= self.tracker.oldest)
        assert all(s is not None and s < oldest - oldest % FULL_EVERY for s in records), "a full record is still needed"

    def scan(self) -> None:
        """Delete orphans of older epochs, and check that no retained record lists them."""
        listed_names = set().union(*(m.object_names() for m in self.manifests[self.tracker.oldest :]))
        orphans = find_orphans(sorted(self.present), listed_names, self.epoch, len(self.manifests))
        assert not set(orphans) & self.retained()
        self.present -= set(orphans)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=6), st.integers(1, 8), st.integers(0, 8))
def test_retired_objects_are_counted_by_name(groups: list[tuple[int, int]], count: int, oldest: int) -> None:
    """Enough objects are due if the record that stopped listing the last one needed is old enough."""
    tracker = Retention(2, 0)
    tracker.start(oldest, replace(PLAIN, sequence=oldest, full=oldest), Manifest(), 0)
    sequence = 0
    retired: list[tuple[int, str]] = []
    for step, number in groups:
        sequence += step
        names = [f"delta/{len(retired) + index}" for index in range(number)]
        tracker.retire(sequence, names)
        retired += [(sequence, name) for name in names]
    assert tracker.has_retired(count, oldest) == (len(retired) >= count and retired[count - 1][0] <= oldest)
    assert tracker.take_deletable(oldest) == [name for until, name in retired if until <= oldest]


def test_the_base_of_a_promised_record_stays_after_a_late_scan() -> None:
    """The base of the promised record stays, although a scan retains only later records."""
    tracker = Retention(1, 0)
    promised = 2 * FULL_EVERY + 10
    newest = promised + 2 * FULL_EVERY
    tracker.start(0, replace(PLAIN, sequence=newest - 1, full=newest - 1), Manifest(), 0)
    tracker.record_commit(replace(PLAIN, sequence=newest, full=newest - 1), Manifest(), {}, 1)
    tracker.record_scan(newest - 1, tracker.first)
    base = paths.record_name(2 * FULL_EVERY)
    before = tracker.take_deletable(promised)
    assert before != []
    assert base not in before, "a rollback to the promised record needs it"
    assert base in tracker.take_deletable(newest - 1)


def test_a_shared_delta_stays_until_no_key_group_lists_it() -> None:
    """A shared delta is deleted after the last key-group stops listing it, also if the driver started later."""
    link = Link(Head(1, "1-" + "a" * 32), 0, 1, 0, 1)
    first, second = ("totals", 0), ("totals", 1)
    both = Manifest({first: Entry(chain=(link,)), second: Entry(chain=(link,))})
    tracker = Retention(2, 0)
    tracker.start(0, replace(PLAIN, sequence=20, full=16), both, 0)
    snapshot = Snapshot(paths.snapshot_id(1, "1-" + "b" * 32), link.head, 1, 0, 1)
    for sequence, address in ((21, first), (22, second)):
        free = tracker.take_deletable(sequence)
        assert link.object not in free, "a key-group still lists the delta"
        changes = {address: Entry(snapshot)}
        tracker.record_commit(replace(PLAIN, sequence=sequence, full=16), both, changes, 0)
        both = both.with_entries(changes)
    assert link.object not in tracker.take_deletable(21)
    assert link.object in tracker.take_deletable(22)


def test_a_start_keeps_records_that_an_older_promise_may_need() -> None:
    """After a start, records that an older promised record may need stay, because its full record is unknown."""
    tail = replace(PLAIN, sequence=40, full=32)
    tracker = Retention(2, 0)
    tracker.start(0, tail, Manifest(), 0)
    free = tracker.take_deletable(35)
    assert free == [paths.record_name(sequence) for sequence in range(35 - FULL_EVERY)]


@given(
    st.lists(st.sampled_from(["commit"] * 6 + ["sweep", "sweep", "start", "scan", "wait"]), max_size=60),
    st.randoms(use_true_random=False), st.integers(2, 5), st.sampled_from([0, 0, 60]),
)  # fmt: skip
def test_no_object_of_a_retained_record_is_deleted_i5(
    acts: list[str], chance: random.Random, versions: int, for_ms: int
) -> None:
    """I5: over random commits, snapshots, restarts, deletes and scans, no object of a retained record is deleted."""
    model = Model(chance, versions, for_ms)
    for act in acts:
        if act == "wait":
            model.now += 100
        else:
            getattr(model, act)()
    for _ in range(versions + 1):
        model.now += 1000
        model.commit()
    model.sweep()
    model.start()
    model.now += 1000
    for _ in range(versions + 1):
        model.now += 1000
        model.commit()
    model.sweep()
    model.scan()
    kept = set().union(*(m.object_names() for m in model.manifests[-versions - 2 :]))
    epoch = [name for name in model.present - kept if f"-{model.epoch}-" in name or f"/{model.epoch}-" in name]
    assert model.present - kept <= set(epoch), "unused objects were never deleted"


def named(epoch: int, version: int = 1) -> tuple[str, str]:
    """Return the names of a delta and a snapshot."""
    attempt = f"{epoch}-{5:032x}"
    return paths.delta_name(version, attempt), paths.snapshot_name("totals", 1, paths.snapshot_id(version, attempt))


def test_only_orphans_of_older_epochs_and_abandoned_deltas_go_i4() -> None:
    """I4, I5: objects of newer epochs, snapshots of the own epoch, deltas of the running batch and foreign objects
    stay.
    """
    old, own, newer = named(1), named(2), named(3)
    in_flight = named(2, version=9)
    foreign = ["log/" + "0" * 20, "photos/1", "delta/readme", "totals/schema.json"]
    names = [*old, *own, *newer, *in_flight, *foreign]
    assert find_orphans(names, set(), epoch=2, version=9) == [*old, own[0]]
    assert find_orphans(names, {old[0], own[0]}, epoch=2, version=9) == [old[1]]


@pytest.mark.usefixtures("short_cycles")
def test_the_root_stays_small_over_many_batches(tmp_path: Path) -> None:
    """The number of objects and records does not grow with the number of batches and restarts."""
    world = World(tmp_path, operators=[totals()], retained_versions=3)
    history = History(world)
    counts = []
    for version in range(60):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(10))))
        if version % 7 == 6:
            world.start()
        history.look()
        if version % 10 == 9:
            counts.append(len(world.memory.list("")))
    assert max(counts[2:]) <= counts[1] + 15, counts
    assert world.state("totals") == {f"k{n}": (60, 60) for n in range(10)}


def test_a_fenced_driver_deletes_no_object_of_the_newer_driver_i4(tmp_path: Path) -> None:
    """I4: late upkeep of a fenced driver deletes nothing that the newer driver lists."""
    world = World(tmp_path, operators=[totals()], snapshot_chain_links=2)
    history = History(world)
    world.start(InlineBackground(deferred=True))
    for version in range(20):
        world.batch(version, rows_of(("a", 1, 0), ("b", 1, 0)))
        if version < 17:
            world.background.run()
    late = world.background
    world.start(InlineBackground(deferred=True))
    world.batch(20, rows_of(("a", 1, 0)))
    world.batch(21, rows_of(("a", 1, 0)))
    late.run()
    history.look()
    assert world.state("totals") == {"a": (22, 22), "b": (20, 20)}


def with_late_deletes(tmp_path: Path) -> World:
    """Return a query whose driver has not run its deletes yet."""
    world = World(tmp_path, operators=[totals()], executors=["1"])
    world.start(InlineBackground(deferred=True))
    for version in range(12):
        world.batch(version, one_row(1))
    return world


@pytest.mark.usefixtures("short_cycles")
def test_a_driver_whose_record_another_one_deleted_deletes_nothing_i4(tmp_path: Path) -> None:
    """I4: late deletes are not done if the driver's record was deleted by another one, whose records have the next
    numbers.
    """
    world = with_late_deletes(tmp_path)
    late, own = world.background, world.log().tail
    assert own is not None
    world.start()
    for version in range(12, 24):
        world.batch(version, one_row(1))
    assert not {paths.record_name(own.sequence), paths.record_name(own.sequence + 1)} & {*world.memory.list("")}
    before = world.memory.requests["delete"]
    late.run()
    assert world.memory.requests["delete"] == before


@pytest.mark.usefixtures("short_cycles")
def test_late_deletes_spare_a_recreated_log_i4(tmp_path: Path) -> None:
    """I4: late deletes spare a log that was created again, whose records have the same numbers."""
    world = with_late_deletes(tmp_path)
    late = world.background
    world.memory.delete(world.memory.list(""))
    world.start()
    world.batch(0, one_row(1))
    before = world.memory.list(paths.LOG)
    late.run()
    assert world.memory.list(paths.LOG) == before
    world.start()
    world.batch(1, one_row(1))
    assert world.state("totals") == {"a": (2, 2)}


def test_a_late_scan_spares_a_recreated_log_i4() -> None:
    """I4: a late scan spares a log that was created again, although a record has the number and epoch of its own
    record.
    """
    store = MemoryStore()
    late = grown(store, 8).tail
    assert late is not None
    store.delete(store.list(""))
    log = opened(store)
    log.append(replace(PLAIN, log_id="new"), Manifest())
    for number in range(4):
        log.append(replace(PLAIN, kind="orders", commit_id=f"orders {number}", log_id="new"), log.manifest)
    for version in range(3):
        log.append(replace(drafted(f"new {version}", version), log_id="new"), log.manifest)
    assert log.tail is not None
    assert (log.tail.sequence, log.tail.epoch) == (late.sequence, late.epoch)
    for name in (paths.delta_name(3, attempt(77)), paths.snapshot_name("totals", 0, paths.snapshot_id(2, attempt(78)))):
        store.put_if_absent(name, b"of the next batch")
    before = store.list("")
    with pytest.raises(FencedError):
        run_to_end(scan.scan(store, late, 2, 0, first=0, own_snapshots=set))
    assert store.list("") == before


def taken_over_by_each_delete(store: MemoryStore) -> None:
    """Let another driver append a record with each delete."""
    delete = store.delete

    def followed(names: Sequence[str]) -> None:
        log = opened(store)
        log.append(replace(PLAIN, commit_id="another's", epoch=9), log.manifest)
        delete(names)

    store.delete = followed  # type: ignore[method-assign]


def test_a_driver_checks_its_claim_before_each_1_000_deletes_i4() -> None:
    """I4: before each 1,000 deletes, a driver checks that its record is still the newest."""
    store = MemoryStore()
    deletes, names = Deletes(store), [paths.delta_name(0, attempt(number)) for number in range(2_500)]
    own = grown(store, 4).tail
    assert own is not None
    for name in names:
        store.put_if_absent(name, b"")
    deletes.set_tail(own)
    taken_over_by_each_delete(store)
    assert not run_to_end(deletes.run(names))
    assert sum(map(store.exists, names)) == 1_500


def test_a_scan_checks_its_claim_before_each_1_000_deletes_i4() -> None:
    """I4: before each 1,000 deletes, a scan checks that its record is still the newest."""
    store = MemoryStore()
    names = [paths.delta_name(0, attempt(number)) for number in range(2_500)]
    own = grown(store, 4).tail
    assert own is not None
    for name in names:
        store.put_if_absent(name, b"")
    taken_over_by_each_delete(store)
    with pytest.raises(FencedError):
        run_to_end(scan.scan(store, own, 5, 0))
    assert sum(map(store.exists, names)) == 1_500


@pytest.mark.usefixtures("short_cycles")
def test_a_record_with_an_unclear_append_retains_its_objects_i5(tmp_path: Path) -> None:
    """I5: a record whose append was unclear retains its objects as long as any other."""
    world = World(tmp_path, operators=[totals()], executors=["1"], retained_versions=6, snapshot_chain_links=2)
    everything, first_key_rows = rows_of(*((f"k{n}", 1, n) for n in range(20))), rows_of(("k0", 1, 0))
    history = History(world)
    world.batch(0, first_key_rows)
    history.look()
    record = paths.record_name(2)
    world.store.script(Fault("answer_lost", "put", record, times=None), Fault("unavailable", "get", record, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.batch(1, everything)
    world.store.heal()
    assert world.batch(1, everything).decision == "repeat"
    for version in range(2, 14):
        world.batch(version, first_key_rows)
        history.look()


def grown_root(tmp_path: Path, **settings: Any) -> World:
    """Return a query whose first records are deleted, with an orphan of its first epoch."""
    world = World(tmp_path, operators=[totals()], executors=["1"], **settings)
    for version in range(31):
        world.batch(version, one_row(1))
    assert paths.record_name(0) not in world.memory.list(paths.LOG)
    world.memory.put_if_absent(named(1)[0], b"given up")
    return world


@pytest.mark.usefixtures("short_cycles")
def test_deleted_records_are_not_read_after_an_unclear_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclear record, records that were deleted long ago are not read, and no missing record is reported."""
    monkeypatch.setattr(scan, "_OLD_RECORDS_PER_SCAN", 5)
    world = grown_root(tmp_path, retained_versions=6)
    first = paths.parse_record_name(world.memory.list(paths.LOG)[0])
    assert first is not None
    world.driver.operations.pin(0, "1")
    away = [Fault("unavailable", method, paths.LOG, times=None) for method in ("put", "get")]
    world.store.script(*away)
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.rest(2)
    world.store.heal()
    world.store.calls.clear()
    assert [world.batch(version, one_row(1)).warnings for version in (31, 32)] == [(), ()]
    requested_names = {name for _, name in world.store.calls if name > paths.LOG}
    assert min(requested_names & {paths.record_name(sequence) for sequence in range(50)}) >= paths.record_name(
        first - 1
    )


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("more", range(4))
@pytest.mark.sample(step=2)
def test_the_scan_after_a_start_deletes_orphans(tmp_path: Path, more: int) -> None:
    """The scan after a start deletes orphans, although the full record of the oldest records is deleted."""
    world = grown_root(tmp_path, retained_versions=6)
    first = paths.parse_record_name(world.memory.list(paths.LOG)[0])
    assert first is not None
    world.memory.delete([paths.record_name(sequence) for sequence in range(first, first + more)])
    world.start()
    assert world.batch(31, one_row(1)).warnings == ()
    assert world.batch(32, one_row(1)).warnings == ()
    assert named(1)[0] not in world.memory.list("")
    assert world.state("totals") == {"a": (33, 33)}


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("old_ms", [0, 10_000_000])
@pytest.mark.parametrize("sequence", [0, 9])
@pytest.mark.sample(step=3)
def test_a_late_record_below_the_log_is_ignored_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequence: int, old_ms: int, restart: bool
) -> None:
    """If a late put writes a record below the log, scans continue and delete it, and a start ignores it."""
    monkeypatch.setattr(scan, "_OLD_RECORDS_PER_SCAN", 5)
    world = grown_root(tmp_path, retained_versions=6, orphan_scan_interval=2)
    tail = world.log().tail
    assert tail is not None
    assert tail.promised > sequence + 2
    stray = replace(tail, sequence=sequence, full=sequence, between=(), written_ms=tail.written_ms - old_ms)
    assert world.memory.put_if_absent(paths.record_name(sequence), encode(stray))
    if restart:
        world.start()
    for version in range(31, 41):
        assert world.batch(version, one_row(1)).warnings == ()
    assert not {named(1)[0], paths.record_name(sequence)} & {*world.memory.list("")}
    assert not restart or world.driver._log.first > sequence  # private: the driver's log


@pytest.mark.usefixtures("short_cycles")
def test_a_lost_unneeded_record_frees_no_promised_objects(tmp_path: Path) -> None:
    """If an unneeded record below the promised one is lost, a scan still keeps the objects of the promised record and
    its full record.
    """
    world = grown_root(tmp_path, retained_versions=6)
    version, log = 31, world.log()

    def unused() -> list[int]:
        assert log.tail is not None
        promised = log.read(log.tail.promised)
        return sorted({*range(promised.full + 1, promised.sequence)} - {*promised.bases})

    while not unused():
        assert version < 60
        world.batch(version, one_row(1))
        version, log = version + 1, world.log()
    assert log.tail is not None
    needed = log.manifest_of(log.read(log.tail.promised)).object_names()
    world.memory.delete([paths.record_name(unused()[-1])])
    assert run_to_end(scan.scan(world.memory, log.tail, 6, 0)).is_complete
    assert named(1)[0] not in world.memory.list("")
    assert needed <= {*world.memory.list("")}


@pytest.mark.usefixtures("short_cycles")
def test_every_remaining_record_has_its_full_record(tmp_path: Path) -> None:
    """Every record that is left can be read, because its full record is left too."""
    world = grown_root(tmp_path, retained_versions=6)
    log = world.log()
    for name in world.memory.list(paths.LOG):
        sequence = paths.parse_record_name(name)
        assert sequence is not None
        log.manifest_of(log.read(sequence))


@pytest.mark.usefixtures("short_cycles")
def test_a_failed_scan_is_repeated_after_a_minute(tmp_path: Path) -> None:
    """A failed scan is repeated after a minute, not after a day."""
    world = grown_root(tmp_path)
    world.start()
    orphan, at_start = named(1)[0], Fault("unavailable", "list", "", skip=4)
    world.store.script(at_start)
    world.batch(31, one_row(1))
    warnings = world.batch(32, one_row(1)).warnings
    assert [w for w in warnings if "RIFFLE-0817" in w]
    assert orphan in world.memory.list("")
    world.clock.advance(60)
    world.batch(33, one_row(1))
    assert orphan not in world.memory.list("")


def short_runs(world: World, runs: int, seconds: float, keys: int = 10) -> tuple[list[int], list[int], list[int]]:
    """Run drivers of two batches each. Return the numbers of records, of objects and of read records after each."""
    history, version = History(world), 0
    records, objects, reads = [], [], []
    for _ in range(runs):
        world.start()
        world.clock.advance(seconds)
        world.store.calls.clear()
        for _ in range(2):
            world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(keys))))
            version += 1
        reads.append(sum(method == "get" and name.startswith(paths.LOG) for method, name in world.store.calls))
        history.look()
        records.append(len(world.memory.list(paths.LOG)))
        objects.append(len(world.memory.list("")))
    return records, objects, reads


def test_old_records_are_deleted_despite_frequent_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a query restarts more often than records expire, old records are still deleted, and starts do not read more
    and more.
    """
    full_record_every(16, monkeypatch)
    world = World(tmp_path, operators=[totals()], retained_for=100)
    records, objects, reads = short_runs(world, 24, seconds=20)
    assert max(records[12:]) <= 3 * (100 // 22 + 1) + 16 + 3, records
    assert max(objects[18:]) <= max(objects[8:18]) + 10, objects
    assert max(reads[18:]) <= max(reads[8:18]) + 5, reads
    assert world.state("totals") == {f"k{n}": (48, 48) for n in range(10)}


@pytest.mark.usefixtures("nothing_is_young")
@pytest.mark.long
def test_a_scan_reads_a_bounded_number_of_old_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan reads a bounded number of old records, so a long log gets shorter with each start."""
    monkeypatch.setattr(scan, "_OLD_RECORDS_PER_SCAN", 40)
    full_record_every(16, monkeypatch)  # a scan must pass a full record, as in a real log
    world = World(tmp_path, operators=[totals()], retained_for=1e6)
    records, _, _ = short_runs(world, 40, seconds=1)
    assert records[-1] == 120
    world.settings = world.settings.but(retained_for=0)
    for run in range(4):
        world.start()
        before = len(world.memory.list(paths.LOG))
        world.batch(80 + run, one_row(1))
        assert before - 40 <= len(world.memory.list(paths.LOG)) <= max(before - 20, 16 + 4)
    assert len(world.memory.list(paths.LOG)) <= 16 + 4


def test_damaged_sealed_output_of_a_retained_record_is_found_i5(tmp_path: Path) -> None:
    """I5 includes sealed output, which no manifest lists: damage to it is found."""
    world = World(tmp_path, operators=[totals()], deliver_after_commit=True)
    history = History(world)
    world.batch(0, one_row(1))
    history.look()
    tail = world.log().tail
    assert tail is not None
    ((_, link),) = tail.outputs
    data = bytearray(world.memory.get(link.object) or b"")
    data[link.start + link.length // 2] ^= 1
    world.memory.delete([link.object])
    world.memory.put_if_absent(link.object, bytes(data))
    with pytest.raises(AssertionError, match="I5"):
        history.check_listed_objects()


@pytest.mark.usefixtures("nothing_is_young")
def test_deletes_run_when_eight_objects_are_due(tmp_path: Path) -> None:
    """Deletes run when eight objects are due, not after 16 records."""
    world = World(tmp_path, operators=[totals()], executors=["1"], retained_versions=2, retained_for=0)
    unlisted = []
    for version in range(40):
        world.batch(version, rows_of(*((f"k{n}", 1, n) for n in range(40))))
        log = world.log()
        assert log.tail is not None
        retained = [log.read(log.tail.sequence - 1)]
        listed = log.manifest.object_names() | set().union(*log.listed_objects(retained, log.first))
        unlisted.append(sum(paths.parse_object_name(n) is not None and n not in listed for n in world.memory.list("")))
    assert 8 <= max(unlisted) < 8 + 2 * world.settings.key_groups


def test_sealed_output_stays_while_a_retained_record_lists_it() -> None:
    """Sealed output stays while a retained record lists it, although a snapshot replaced its delta in the state."""
    link = Link(Head(3, "11-a"), 0, 9, 1, 1)
    state, snapshot = Entry(None, (link,)), Entry(Snapshot("s", link.head, 9, 1, 1), ())
    batch = replace(PLAIN, sequence=16, outputs=(("totals", link),))
    before, after = Manifest({("totals", 0): state}), Manifest({("totals", 0): snapshot})
    retention = Retention(1, 0)
    retention.start(16, batch, before, 0)
    retention.record_commit(replace(batch, sequence=17), before, {("totals", 0): snapshot}, 1)
    assert link.object not in retention.take_deletable(17), "record 17 is promised and lists it"
    retention.record_commit(replace(batch, sequence=18, outputs=()), after, {}, 2)
    assert link.object in retention.take_deletable(18)


def test_a_scan_deletes_a_record_name_far_below_the_log() -> None:
    """A record name far below the log costs no memory, and the scan deletes it."""
    far, store = 10**6, MemoryStore()
    tail = replace(PLAIN, sequence=far, full=far, promised=far, kind="claim", epoch=1)
    store.put_if_absent(paths.record_name(far), encode(tail))
    store.put_if_absent(paths.record_name(0), b"")
    tracemalloc.start()
    try:
        run_to_end(scan.scan(store, tail, 2, 0))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20
    assert store.list(paths.LOG) == [paths.record_name(far)]


@pytest.mark.usefixtures("short_cycles")
def test_a_scan_deletes_unpromised_records_despite_a_clock_set_back() -> None:
    """If the clock was set back, unpromised records are deleted although they seem recent."""
    store = MemoryStore()
    log = grown(store, 30)
    newest = log.tail
    assert newest is not None
    full = log.read(20).full
    assert full > 0
    tail = log.append(replace(newest, written_ms=newest.written_ms - 10**7, promised=full), log.manifest)
    result = run_to_end(scan.scan(store, tail, 2, 1_000))
    assert result.kept_from == full
    assert store.list(paths.LOG)[0] == paths.record_name(full)
