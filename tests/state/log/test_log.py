"""The log is one sequence of records (I3) for any number of drivers and any answers of the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError, FencedError, UnavailableError
from riffle_spark.state.log import log as log_file
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY, Log
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Manifest, Snapshot
from riffle_spark.state.log.record import Record, decode, digest, encode
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.state.drawn_records import PLAIN, ROOT, drafted, entry, grown, manifest, opened
from tests.kit.state.faulty_store import Fault, FaultyStore
from tests.kit.state.lagging_store import LaggingStore


def test_an_empty_root_opens_as_an_empty_log() -> None:
    """An empty root opens as an empty log without an error."""
    log = Log(MemoryStore(), ROOT)
    assert log.open() is None
    assert log.manifest == Manifest()
    assert log.next_is_absent()


def test_an_append_with_an_answer_needs_no_settling() -> None:
    """After an append with a clear answer, settling it sends no request and returns its record."""
    store = MemoryStore()
    log = opened(store)
    record = log.append(drafted("a"), log.manifest)
    before = dict(store.requests)
    assert log.settle_append() == record == log.tail
    assert dict(store.requests) == before


def test_a_driver_lists_the_log_again_before_it_refuses_the_root() -> None:
    """A driver that finds objects but no record lists the log again before it refuses the root."""
    inner = MemoryStore()

    def begin(_: float) -> None:
        grown(inner, 3)

    store = FaultyStore(inner, [Fault("slow", "list", skip=1)], sleep=begin)
    tail = Log(store, ROOT).open()
    assert tail is not None
    assert tail.sequence == 2


@pytest.mark.parametrize("went", [(60.0, 0.0), (0.0, -3600.0)])
def test_a_driver_checks_its_own_record_if_a_clock_jumps_i3(went: tuple[float, float]) -> None:
    """If either clock jumps, a driver checks that its own record still exists, and so finds that others have taken
    over.
    """
    store, clocks = MemoryStore(), [(7.0, 1_700_000_000.0)]
    grown(store, 3)
    log = Log(store, ROOT, lambda: clocks[-1])
    log.open()
    other = opened(store)
    for version in range(3, 30):
        other.append(drafted(f"o{version}", version), other.manifest)
    store.delete([paths.record_name(sequence) for sequence in range(20)])
    assert log.next_is_absent(), "the number is free, and no time has passed"
    clocks.append((clocks[0][0] + went[0], clocks[0][1] + went[1]))
    assert not log.next_is_absent()


@pytest.mark.parametrize(("oldest", "looks"), [(4, True), (20, False)])
def test_a_driver_whose_record_a_late_put_restored_is_fenced_i4(oldest: int, looks: bool) -> None:
    """A driver whose own record reappeared by a late put after a sweep is fenced and appends nothing."""
    store, clocks = MemoryStore(), [(7.0, 1_700_000_000.0)]
    grown(store, 3)
    log = Log(store, ROOT, lambda: clocks[-1])
    log.open()
    own_record = store.get(paths.record_name(2))
    assert own_record is not None
    other = opened(store)
    for version in range(3, 30):
        other.append(drafted(f"o{version}", version), other.manifest)
    store.delete([paths.record_name(sequence) for sequence in range(oldest)])
    store.put_if_absent(paths.record_name(2), own_record)
    clocks.append((clocks[0][0] + 600.0, clocks[0][1] + 600.0))
    if looks:
        assert not log.next_is_absent()
    with pytest.raises(FencedError):
        log.append(drafted("a", 3), log.manifest)
    assert not store.exists(paths.record_name(3)), "the record could be taken for the one before the oldest"


def test_a_returning_driver_does_not_delete_its_continued_record_i5() -> None:
    """A returning driver is fenced and does not delete its late record, because other drivers have continued from it
    (I5).
    """
    store, clocks = MemoryStore(), [(7.0, 1_700_000_000.0)]
    grown(store, 3)
    faulty = FaultyStore(store, [Fault("answer_lost", "put", paths.LOG, times=None)], sleep=lambda _: None)
    log = Log(faulty, ROOT, lambda: clocks[-1])
    log.open()
    faulty.script(Fault("unavailable", "get", paths.LOG, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        log.append(drafted("a", 3), log.manifest)
    other = opened(store)
    other.append(drafted("b", 4), other.manifest)
    store.delete([paths.record_name(sequence) for sequence in range(3)])
    faulty.heal()
    clocks.append((clocks[0][0] + 600.0, clocks[0][1] + 600.0))
    with pytest.raises(FencedError):
        log.settle_append()
    assert store.exists(paths.record_name(3)), "the oldest retained record was deleted"


def test_an_append_found_committed_after_a_long_absence_is_fenced_i4() -> None:
    """A driver that finds its own append committed after a long absence is fenced if others have continued (I4)."""
    store, clocks = MemoryStore(), [(7.0, 1_700_000_000.0)]
    grown(store, 3)
    faulty = FaultyStore(store, [Fault("answer_lost", "put", paths.LOG, times=None)], sleep=lambda _: None)
    log = Log(faulty, ROOT, lambda: clocks[-1])
    log.open()
    faulty.script(Fault("unavailable", "get", paths.LOG, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        log.append(drafted("a", 3), log.manifest)
    faulty.heal()
    other = opened(store)
    for version in range(4, 30):
        other.append(drafted(f"o{version}", version), other.manifest)
    clocks.append((clocks[0][0] + 600.0, clocks[0][1] + 600.0))
    log.settle_append()
    store.delete([paths.record_name(sequence) for sequence in range(20)])
    assert not log.next_is_absent()
    with pytest.raises(FencedError):
        log.append(drafted("b", 4), log.manifest)
    assert not store.exists(paths.record_name(4))


@pytest.mark.parametrize(
    "faults", [[], [Fault("answer_lost", "put", paths.LOG, skip=1)]], ids=["answered", "unanswered"]
)
def test_a_claim_whose_second_put_succeeds_is_fenced_i4(faults: list[Fault]) -> None:
    """A claim is fenced if its second put, which should be refused, succeeds because other drivers have swept the
    record.
    """
    inner = MemoryStore()

    def others_go_on(_: float) -> None:
        other = opened(inner)
        for version in range(3, 30):
            other.append(drafted(f"o{version}", version), other.manifest)
        inner.delete([paths.record_name(sequence) for sequence in range(20)])

    late = FaultyStore(inner, [Fault("slow", "put", paths.LOG, skip=1)], sleep=others_go_on)
    grown(inner, 3)
    log = opened(FaultyStore(late, faults))
    with pytest.raises(FencedError):
        log.append(replace(drafted("a", 2), kind="claim", epoch=2), log.manifest)
    assert faults or not inner.exists(paths.record_name(3)), "the record would be taken for the one before the oldest"


def test_each_record_has_the_digest_of_the_previous_one_i3() -> None:
    """Record n + 1 holds the digest of record n, and the numbers have no gap (I3)."""
    store = MemoryStore()
    grown(store, 40)
    names = store.list(paths.LOG)
    assert names == [paths.record_name(sequence) for sequence in range(40)]
    datas = [store.get(name) or b"" for name in names]
    previous = [decode(data, "").previous for data in datas]
    assert previous == ["", *(digest(data) for data in datas[:-1])]


def test_every_64th_record_is_full_and_the_others_hold_changes() -> None:
    """Every 64th record is full, and the others hold the changes since their bases, of which there are at most six."""
    store = MemoryStore()
    log = grown(store, 2 * FULL_EVERY + 1)
    records = [log.read(sequence) for sequence in range(2 * FULL_EVERY + 1)]
    assert [record.sequence for record in records if not record.bases] == [0, FULL_EVERY, 2 * FULL_EVERY]
    assert len(records[FULL_EVERY].entries) == 8
    assert records[FULL_EVERY + 3].bases == (FULL_EVERY, FULL_EVERY + 2)
    assert len(records[FULL_EVERY + 3].entries) == 1
    assert records[FULL_EVERY + 6].bases == (FULL_EVERY, FULL_EVERY + 4)
    assert len(records[FULL_EVERY + 6].entries) == 2
    assert max(len(record.bases) for record in records) == 6
    assert records[FULL_EVERY - 1].bases == (0, 32, 48, 56, 60, 62)


@pytest.mark.parametrize(("count", "bases"), [(1, 0), (17, 1), (19, 2), (64, 6), (65, 0)])
def test_opening_a_log_reads_the_newest_record_and_its_bases(count: int, bases: int) -> None:
    """Opening a log takes one LIST, and one GET for the newest record, each of its bases, and the record before it."""
    store = MemoryStore()
    log = grown(store, count)
    before = dict(store.requests)
    reopened = opened(store)
    assert reopened.manifest == log.manifest
    assert reopened.tail == log.tail
    assert store.requests["list"] - before["list"] == 1
    assert store.requests["get"] - before["get"] == bases + min(count, 2)


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=3), min_size=1, max_size=40), st.data())
def test_each_record_alone_gives_the_manifest_of_its_writer(history: list[dict[int, int]], data: st.DataObject) -> None:
    """Each record, read alone, gives the manifest that its writer had, over random changes and reopenings."""
    store = MemoryStore()
    log = opened(store)
    log.append(PLAIN, Manifest())
    manifests = [Manifest()]
    for version, changes in enumerate(history):
        if data.draw(st.booleans()):
            log = opened(store)
        entries: dict[Address, Entry] = {("totals", kg): entry(rows) for kg, rows in changes.items()}
        kind = data.draw(st.sampled_from(["batch", "batch", "batch", "rollback"]))
        following = Manifest(entries) if kind == "rollback" else log.manifest.with_entries(entries)
        manifests.append(following)
        log.append(_rollback(version) if kind == "rollback" else drafted(f"c{version}", version), following)
    assert [log.manifest_of(log.read(s)) for s in range(len(manifests))] == manifests


def _rollback(version: int) -> Record:
    return replace(drafted(f"c{version}", version), kind="rollback", target=0)


def test_an_append_without_an_answer_is_settled_by_reading_the_record() -> None:
    """An append whose put succeeded without an answer is settled by reading the record."""
    store = FaultyStore(MemoryStore(), [Fault("answer_lost", "put", paths.LOG)])
    log = opened(store)
    assert log.append(PLAIN, Manifest()).sequence == 0
    assert not log.is_unclear
    assert [method for method, _ in store.calls] == ["list", "head", "list", "put", "put", "get", "put"]


def test_a_driver_is_not_fenced_if_it_reads_its_own_record_corrupted() -> None:
    """A driver reads its own record again if the first read was corrupted, and is not fenced."""
    faults = [Fault("answer_lost", "put", paths.LOG), Fault("flipped", "get", paths.LOG)]
    log = opened(store := FaultyStore(MemoryStore(), faults))
    assert log.append(PLAIN, Manifest()).sequence == 0
    assert not log.is_unclear
    assert Log(store, ROOT).open() == log.tail


def test_a_lost_put_is_repeated() -> None:
    """A put whose request was lost is repeated with the same bytes."""
    store = FaultyStore(MemoryStore(), [Fault("request_lost", "put", paths.LOG, times=3)])
    log = opened(store)
    log.append(PLAIN, Manifest())
    assert opened(store.inner).tail == log.tail


@pytest.mark.parametrize("kind", ["answer_lost", "unavailable"])
def test_an_append_stays_unclear_if_the_store_does_not_answer(kind: str) -> None:
    """After a limited number of tries the append raises and stays unclear, and settling commits the record once."""
    store = FaultyStore(MemoryStore())
    log = grown(store, 3)
    following = log.manifest.with_entries(manifest(kg0=(2,)).entries)
    store.script(Fault(kind, "", paths.LOG, times=None), Fault("unavailable", "get", paths.LOG, times=None))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="RIFFLE-0421") as caught:
        log.append(drafted("mine", 2), following)
    assert caught.value.where == paths.record_name(3)
    assert log.is_unclear
    store.heal()
    assert log.settle_append().commit_id == "mine"
    assert not log.is_unclear
    assert log.manifest == following
    assert opened(store).tail == log.tail


def test_a_late_put_is_accepted_when_the_append_is_settled() -> None:
    """A put that takes effect after all tries is found and accepted when the append is settled."""
    store = FaultyStore(MemoryStore(), [Fault("late", "put", paths.LOG), Fault("unavailable", "put", paths.LOG, 1, 9)])
    log = opened(store)
    with pytest.raises(UnavailableError):
        log.append(PLAIN, Manifest())
    assert store.land() == [True]
    store.heal()
    assert log.settle_append() == opened(store).tail


@pytest.mark.parametrize("kind", ["claim", "rollback"])
def test_an_undecodable_claim_or_rollback_record_is_not_put(kind: str) -> None:
    """A claim or rollback record is decoded before its put, because an unreadable newest record would lose the root."""
    store = MemoryStore()
    log = opened(store)
    log.append(PLAIN, Manifest())
    strange = Snapshot("-1-5-ab", Head(0, "1-ab"), 1, 1, 1)
    draft = replace(drafted("c"), kind=kind)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="cannot be read"):
        log.append(draft, Manifest({("totals", 0): Entry(strange)}))
    assert store.list(paths.LOG) == [paths.record_name(0)]


def test_a_second_driver_fences_the_first_i4() -> None:
    """A driver that finds another driver's record under its next number is fenced and commits nothing (I4)."""
    store = MemoryStore()
    first = grown(store, 3)
    second = opened(store)
    assert first.next_is_absent()
    second.append(drafted("second", 2), second.manifest)
    assert not first.next_is_absent()
    with pytest.raises(FencedError, match="RIFFLE-0422"):
        first.append(drafted("first", 2), first.manifest)
    assert opened(store).tail == second.tail


def test_an_unclear_append_is_fenced_if_another_driver_took_its_number() -> None:
    """Settling raises FencedError if another driver took the number of a lost put, and the append is settled then."""
    store = FaultyStore(MemoryStore())
    first, second = grown(store, 2), opened(store)
    store.script(Fault("request_lost", "put", paths.LOG, times=5))
    with pytest.raises(UnavailableError):
        first.append(drafted("first", 1), first.manifest)
    second.append(drafted("second", 1), second.manifest)
    with pytest.raises(FencedError):
        first.settle_append()
    assert not first.is_unclear


def test_a_repeated_put_that_finds_a_foreign_record_is_fenced_i4() -> None:
    """A repeated put that finds another driver's record is fenced."""
    inner = MemoryStore()
    store = FaultyStore(inner, sleep=lambda _: foreign.append(second.append(drafted("second", 1), second.manifest)))
    first, second, foreign = grown(store, 2), opened(inner), list[Record]()
    store.script(Fault("request_lost", "put", paths.LOG), Fault("slow", "put", paths.LOG, skip=1))
    with pytest.raises(FencedError):
        first.append(drafted("first", 1), first.manifest)
    assert opened(inner).tail == foreign[0]


def test_reading_a_log_that_grows_faster_than_its_lists_ends_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterating and opening a log stop with an error if records are appended faster than they are listed."""
    monkeypatch.setattr(log_file, "_UNLISTED_MAX", 4)
    store = LaggingStore(MemoryStore())
    log = grown(store, 3)
    assert len(list(log.records_after(-1))) == 3
    log.append(drafted("more", 2), log.manifest)
    with pytest.raises(UnavailableError, match="RIFFLE-0409"):
        list(log.records_after(-1))
    with pytest.raises(UnavailableError, match="RIFFLE-0409"):
        opened(store)


def test_a_scan_gets_all_objects_that_records_list() -> None:
    """A scan is given all objects that the records from a number on list: links of chains, snapshots and outputs."""
    store = MemoryStore()
    log = grown(store, 40)
    assert log.tail is not None
    records = [log.read(sequence) for sequence in range(log.tail.sequence + 1)]

    def all_listed(some: list[Record], first: int) -> set[str]:
        return set().union(*log.listed_objects(some, first))

    everything = all_listed(records, 0)
    assert everything == {entry(version).chain[0].object for version in range(39)}
    assert all_listed(records[39:], 0) == log.manifest.object_names()
    assert all_listed(records[1:], FULL_EVERY) == all_listed(records[FULL_EVERY:], 0)
    output = Link(Head(39, "1-" + "f" * 32), 0, 1, 0, 1)
    assert output.object in all_listed([replace(records[39], outputs=(("seen", output),))], 0)


def test_a_record_with_a_far_number_is_refused_without_enumeration() -> None:
    """A record with a number far beyond the others is refused before the numbers between are enumerated."""
    store = MemoryStore()
    tail = grown(store, 3).tail
    assert tail is not None
    far = replace(tail, sequence=10**18, full=10**18)
    store.put_if_absent(paths.record_name(far.sequence), encode(far))
    with pytest.raises(CorruptStateError, match="RIFFLE-0413") as caught:
        opened(store)
    assert caught.value.where == paths.record_name(far.sequence)


@pytest.mark.timeout(60)
def test_a_rollback_is_refused_if_a_record_has_a_far_number() -> None:
    """A rollback is refused if a record has a number far beyond the others."""
    store = MemoryStore()
    grown(store, 3)
    store.put_if_absent(far := paths.record_name(10**20 - 1), store.get(paths.record_name(0)) or b"")
    with pytest.raises(CorruptStateError, match="RIFFLE-0413") as caught:
        Log(store, ROOT).open(broken=True)
    assert caught.value.where == far


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        (paths.snapshot_name("totals", 3, paths.snapshot_id(-1, f"1-{'0' * 32}")), True),
        (paths.snapshot_name("totals", 3, paths.snapshot_id(4, f"2-{'0' * 32}")), False),
        (paths.delta_name(0, f"1-{'0' * 32}"), False),
    ],
)
def test_only_snapshots_of_a_first_version_are_ignored_before_the_log_starts(name: str, starts: bool) -> None:
    """A root with snapshots of a first version whose writer died has no log. Other objects are refused."""
    store = MemoryStore()
    assert not Log(store, ROOT).is_started()
    store.put_if_absent(name, b"")
    if starts:
        assert not Log(store, ROOT).is_started()
    else:
        with pytest.raises(ConfigError, match="RIFFLE-0411"):
            Log(store, ROOT).is_started()
