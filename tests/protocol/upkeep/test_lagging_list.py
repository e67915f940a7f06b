"""On a store whose LIST lags, a scan deletes nothing that it would keep with a complete LIST (I5)."""

from __future__ import annotations

import contextlib
import functools
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError, FencedError, UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.offline.rollback_targets import find_target as target_of
from riffle_spark.protocol.batch.records import Stamp, claim_record, first_record
from riffle_spark.protocol.upkeep.claim_work import ClaimWork, Steps, run_to_end
from riffle_spark.protocol.upkeep.retention import Retention
from riffle_spark.protocol.upkeep.scan import ScanResult, Scans, scan
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.state.log import log as log_module
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record, encode
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.testing import InlineBackground, SimCluster
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import World, one_row, rows_of, totals
from tests.kit.state.faulty_store import FaultyStore
from tests.kit.state.lagging_store import LaggingStore

VERSIONS = 8


@dataclass(frozen=True)
class Root:
    """The objects of a query, and the newest record, from which scans start."""

    objects: Mapping[str, bytes]
    tail: Record

    def store(self) -> LaggingStore:
        """Return a store with these objects, which LIST shows."""
        inner = MemoryStore()
        for name, data in self.objects.items():
            inner.put_if_absent(name, data)
        return LaggingStore(inner)

    def deleted(self, store: LaggingStore, scans: Callable[[], object]) -> set[str]:
        """Run scans and return the deleted names."""
        before = {*store.inner.list("")}
        scans()
        return before - {*store.inner.list("")}


@functools.cache
def grown() -> Root:
    """Return a root of three drivers without any deletes: old records, orphans and snapshots."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), operators=[totals()], executors=["1"], snapshot_chain_links=3)
        version = 0
        for batches in (14, 3, 25):
            world.start(InlineBackground(deferred=True))
            for _ in range(batches):
                world.batch(version, rows_of(("a", 1, 0), (f"k{version}", 1, 0)))
                world.work_but_deletes()
                version += 1
        tail = world.log().tail
        assert tail is not None
        promising = replace(tail, promised=tail.sequence)  # as far as retention allows
        orphan = paths.delta_name(3, f"1-{7:032x}")
        return Root(
            {
                **{name: world.memory.get(name) or b"" for name in world.memory.list("")},
                paths.record_name(tail.sequence): encode(promising),
                orphan: b"x",
            },
            promising,
        )


def scanned(store: LaggingStore, tail: Record) -> None:
    """Run a scan, which may fail."""
    with contextlib.suppress(UnavailableError, FencedError, CorruptStateError):
        run_to_end(scan(store, tail, VERSIONS, 0))


@functools.cache
def truth(gone: int) -> set[str]:
    """Return the names that a scan deletes with a complete LIST, if the first ``gone`` records are deleted."""
    root = grown()
    store = root.store()
    store.inner.delete([paths.record_name(s) for s in range(gone)])
    deleted_names = root.deleted(store, lambda: run_to_end(scan(store, root.tail, VERSIONS, 0)))
    assert len(deleted_names) > 10
    return deleted_names


@given(st.randoms(use_true_random=False), st.sampled_from([0.02, 0.2, 0.9]), st.sampled_from([0, 4, 16]), st.booleans())
def test_a_scan_with_a_lagging_list_deletes_no_more_i5(
    chance: random.Random, share: float, gone: int, shows_tail: bool
) -> None:
    """I5: if LIST omits objects and shows deleted records, a scan deletes no more than with a complete LIST."""
    root = grown()
    store = root.store()
    store.delete([paths.record_name(s) for s in range(gone)])
    tail = paths.record_name(root.tail.sequence)
    names = [name for name in sorted(root.objects) if not (shows_tail and name == tail)]
    store.hide(*(name for name in names if chance.random() < share))
    store.catch_up(lambda name: name in store._ghosts and chance.random() < share)
    assert root.deleted(store, lambda: scanned(store, root.tail)) <= truth(gone)


def test_a_scan_fails_if_list_lacks_the_newest_record() -> None:
    """If LIST lacks the newest record, the scan fails without a delete, and a later scan succeeds."""
    root = grown()
    store = root.store()
    store.hide(paths.record_name(root.tail.sequence))
    with pytest.raises(UnavailableError, match="RIFFLE-0244") as caught:
        run_to_end(scan(store, root.tail, VERSIONS, 0))
    assert caught.value.where == paths.record_name(root.tail.sequence)
    assert {*store.inner.list("")} == {*root.objects}
    store.catch_up()
    assert root.deleted(store, lambda: run_to_end(scan(store, root.tail, VERSIONS, 0))) == truth(0)


def test_a_scan_whose_record_another_driver_deleted_is_fenced_i4() -> None:
    """If the record of a scan was deleted by another driver, the scan is fenced and deletes nothing."""
    root = grown()
    store = root.store()
    log = Log(store, "")
    log.append(claim_record(log.open(), "query", 8, "key_group", Stamp("c", root.tail.written_ms)), log.manifest)
    store.catch_up()
    store.inner.delete([name := paths.record_name(root.tail.sequence)])
    before = {*store.inner.list("")}
    with pytest.raises(FencedError, match="RIFFLE-0246") as caught:
        run_to_end(scan(store, root.tail, VERSIONS, 0))
    assert caught.value.where == name
    assert {*store.inner.list("")} == before


def test_a_scan_whose_record_its_own_driver_deleted_is_not_fenced() -> None:
    """If its own driver deleted the record of a waiting scan, the scan is not fenced, deletes nothing, and is repeated
    later.
    """
    root = grown()
    store = root.store()
    log = Log(store, "")
    log.open()
    log.append(replace(root.tail, commit_id="c", version=root.tail.version + 1), log.manifest)
    store.catch_up()
    store.inner.delete([paths.record_name(root.tail.sequence)])
    before = {*store.inner.list("")}
    with pytest.raises(UnavailableError, match="RIFFLE-0245"):
        run_to_end(scan(store, root.tail, VERSIONS, 0))
    assert {*store.inner.list("")} == before


def test_a_scan_after_a_failed_one_uses_the_newest_record() -> None:
    """After a scan failed because its record was deleted, the next scan uses the newest record."""
    root, background, retention = grown(), InlineBackground(deferred=True), Retention(2, 0)
    store, last = root.store(), root.tail.sequence
    waits = Log(store, "").read(last - 3)
    retention.start(0, root.tail, Manifest(), 0)
    cluster = SimCluster(Home("memory://r", StoreOptions(), None, "app", frozenset()), store, bytes)
    work = ClaimWork(background)
    scans = Scans(store, work, TakenSnapshots(cluster, Lock()))
    scans.start(follows_claim=False)
    scans.submit_if_due(waits, retention, 0.0, 60.0)
    store.inner.delete([paths.record_name(waits.sequence)])
    retention.record_scan(last - 1, last - 1)
    background.run()
    scans.submit_if_due(root.tail, retention, 1_000.0, 60.0)
    background.run()
    assert [type(result) for result in work.collect() if result] == [UnavailableError, ScanResult]


def test_list_need_not_show_the_retained_records() -> None:
    """Retained records are read by their numbers, so LIST does not have to show them."""
    root = grown()
    store = root.store()
    last = root.tail.sequence
    store.hide(*(paths.record_name(sequence) for sequence in range(last - VERSIONS - 12, last)))
    assert root.deleted(store, lambda: run_to_end(scan(store, root.tail, VERSIONS, 0))) == truth(0)


@pytest.mark.parametrize("back", [1, VERSIONS - 1])
def test_a_missing_retained_record_fails_the_scan(back: int) -> None:
    """If a retained record is missing, the scan fails without a delete, because the record's objects are unknown."""
    root = grown()
    store = root.store()
    store.inner.delete([paths.record_name(root.tail.sequence - back)])
    with pytest.raises(CorruptStateError, match="RIFFLE-0408"):
        run_to_end(scan(store, root.tail, VERSIONS, 0))
    assert len(store.inner.list("")) == len(root.objects) - 1


def test_a_scan_deletes_nothing_if_a_newer_epoch_has_a_record_i4() -> None:
    """I4: a scan finds a record of a newer epoch by its number, though LIST does not show it, and deletes nothing."""
    root = grown()
    store = root.store()
    log = Log(store, "")
    tail = log.open()
    log.append(claim_record(tail, "query", 8, "key_group", Stamp("c", root.tail.written_ms)), log.manifest)
    with pytest.raises(FencedError):
        run_to_end(scan(store, root.tail, VERSIONS, 0))
    assert len(store.inner.list("")) == len(root.objects) + 1


def test_a_start_can_be_repeated_if_list_shows_only_deleted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """If LIST shows only deleted records, a start fails and can be repeated. The root counts neither as damaged nor as
    empty.
    """
    monkeypatch.setattr(log_module, "FULL_EVERY", 16)
    root = grown.__wrapped__()  # other tests share the cached one
    store = root.store()
    old = [paths.record_name(sequence) for sequence in range(16)]
    store.hide(*(name for name in root.objects if name.startswith(paths.LOG) and name not in old[:10]))
    assert Log(store, "").open() == root.tail, "all newer records are found if the next one exists"
    store.delete(old)
    with pytest.raises(UnavailableError, match="RIFFLE-0405"):
        Log(store, "").open()
    store.catch_up()
    assert Log(store, "").open() == root.tail


def test_a_rollback_finds_an_earlier_rollback_that_list_omits() -> None:
    """A rollback follows the records since an earlier rollback, though LIST does not show that one. Records from before
    it are not used.
    """
    store = LaggingStore(MemoryStore())
    log = Log(store, "")
    log.open()
    first = first_record("query", 8, "key_group", Stamp("c", 0))
    for version in range(4):
        log.append(replace(first, kind="batch", version=version), log.manifest)
    turn = log.append(replace(first, kind="rollback", version=1, target=1), log.manifest)
    tail = log.append(replace(first, kind="claim", version=1), log.manifest)
    store.catch_up(lambda name: name != paths.record_name(turn.sequence))
    log.open()
    assert target_of(log, tail, 1) == tail
    with pytest.raises(ConfigError, match="RIFFLE-0132"):
        target_of(log, tail, 3)


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sample(step=3)
def test_a_query_on_a_store_with_a_lagging_list_keeps_all_records(tmp_path: Path, seed: int) -> None:
    """With a LIST that lags up to three batches, no start fails, every record is readable, and the root stays small."""
    world = World(tmp_path, operators=[totals()], executors=["1"], orphan_scan_interval=3, retained_versions=3)
    chance = random.Random(seed)
    lagging = LaggingStore(world.memory)
    world.store = FaultyStore(lagging)
    history = History(world)
    world.start()
    for version in range(40):
        if chance.random() < 0.3:
            world.start()
        world.batch(version, one_row(1))
        everything = version % 3 == 0
        lagging.catch_up(lambda _, all_of_it=everything: all_of_it or chance.random() < 0.5)  # type: ignore[misc]
        history.look()
    lagging.catch_up()
    world.clock.advance(61)
    world.batch(40, one_row(1))
    history.look()
    assert world.state("totals") == {"a": (41, 41)}
    assert len(world.memory.list("")) < 25


def test_records_added_between_the_steps_of_a_scan_stay_i5() -> None:
    """Other work runs between the steps of a scan. Records that are added meanwhile and their objects stay."""
    root, background = grown(), InlineBackground(deferred=True)
    store, work = root.store(), ClaimWork(background)
    log, done = Log(store, ""), list[str]()
    log.open()
    expected = truth(0)

    def swept() -> Steps[None]:
        done.append("swept")
        yield

    def others_turn() -> None:
        done.append("others")
        if done.count("others") == 1:
            log.append(replace(root.tail, commit_id="c", version=root.tail.version + 1), log.manifest)

    work.submit(lambda: scan(store, root.tail, VERSIONS, 0))
    background.submit(others_turn)
    work.submit(swept)
    for _ in range(2):
        background.submit(others_turn)
    assert root.deleted(store, background.run) == expected
    results = [result for result in work.collect() if result]
    assert done == ["others", "others", "others", "swept"]
    assert [type(result) for result in results] == [ScanResult]


def test_a_scan_deletes_nothing_after_a_claim_between_its_steps_i4() -> None:
    """I4: if another driver claims between two steps of a scan, the scan deletes nothing."""
    root, background = grown(), InlineBackground(deferred=True)
    store, work = root.store(), ClaimWork(background)
    log = Log(store, "")
    log.open()
    work.submit(lambda: scan(store, root.tail, VERSIONS, 0))
    claim = claim_record(root.tail, "query", 8, "key_group", Stamp("c", root.tail.written_ms))
    background.submit(lambda: log.append(claim, log.manifest))
    background.run()
    assert [type(result) for result in work.collect() if isinstance(result, Exception)] == [FencedError]
    assert {*root.objects} < {*store.inner.list("")}


def test_a_snapshot_that_is_put_at_the_start_of_a_scan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan reads LIST before it asks which snapshots may be listed, so a snapshot that is put meanwhile stays."""
    root, store, own_names = grown(), grown().store(), set[str]()
    fresh = paths.snapshot_name("totals", 0, f"{root.tail.version:020d}-{root.tail.epoch}-{8:032x}")
    lost = paths.snapshot_name("totals", 0, f"{root.tail.version:020d}-{root.tail.epoch}-{9:032x}")
    store.put_if_absent(lost, b"x")
    store.catch_up()
    shown = store.list

    def put_then_list(prefix: str) -> list[str]:
        store.inner.put_if_absent(fresh, b"x")
        own_names.add(fresh)
        return shown(prefix)

    monkeypatch.setattr(store, "list", put_then_list)
    run_to_end(scan(store, root.tail, 2, 0, own_snapshots=lambda: frozenset(own_names)))
    assert store.exists(fresh)
    assert not store.exists(lost)
