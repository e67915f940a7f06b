"""A chain with merged deltas leads every copy of its history to the newest state, and records list it exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log import entry_rows, paths
from riffle_spark.state.log import record as records
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import (
    EMPTY,
    EMPTY_HEAD,
    Address,
    Entry,
    Head,
    Link,
    Manifest,
    MergedDelta,
    Replacement,
    Snapshot,
)
from riffle_spark.state.log.record_manifests import manifest_of_record
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.state.drawn_records import PLAIN, ROOT, attempt, drafted, link, opened

ADDRESS = ("totals", 3)
State = dict[str, int]
Changes = dict[str, int | None]


def merged_link(head: Head, number: int, *, level: int = 1, size: int = 100, epoch: int = 1) -> Link:
    """Return a link of a merged delta with this head."""
    merged = MergedDelta(paths.snapshot_id(head.version, attempt(number, epoch)), level, size)
    return Link(head, 0, 10, 7, 1, merged)


def applied(state: State, changes: Changes) -> State:
    """Return the state after changes; ``None`` deletes the key."""
    after = {**state, **{key: value for key, value in changes.items() if value is not None}}
    return {key: value for key, value in after.items() if changes.get(key, 0) is not None}


@dataclass
class Line:
    """A model of one key-group: its entry, the contents of its objects, and every copy that was ever at its head."""

    entry: Entry = EMPTY
    state: State = field(default_factory=dict)
    version: int = -1
    epoch: int = 1
    claims: int = 0
    objects: int = 0
    contents: dict[Link, Changes] = field(default_factory=dict)
    snapshots: dict[str, State] = field(default_factory=dict)
    copies: dict[Head, State] = field(default_factory=dict)
    on_line: list[Head] = field(default_factory=list)
    records: list[tuple[Entry, State, int, list[Head], int]] = field(default_factory=list)

    def append(self, changes: Changes, *, whole: bool = False) -> None:
        """Commit a batch that changes the key-group. With ``whole`` the delta has the whole state."""
        self.version += 1
        name = f"{self.epoch}-{self.claims:08x}{self.next_object():024x}"
        added = link(self.version)._replace(head=Head(self.version, name))
        self.state = applied(self.state, changes)
        self.contents[added] = dict(self.state) if whole else changes
        self.entry = (EMPTY if whole else self.entry).add_link(added)
        self.copies[added.head] = self.state
        self.on_line.append(added.head)
        self.remember()

    def remember(self) -> None:
        """Append the entry to the records."""
        self.records.append((self.entry, self.state, self.version, list(self.on_line), self.epoch))

    def next_object(self) -> int:
        """Return the number of a new object."""
        self.objects += 1
        return self.objects

    def merge(self, start: int, count: int) -> None:
        """Merge ``count`` successive links from ``start`` on."""
        links = self.entry.chain[start : start + count]
        merged = merged_link(links[-1].head, self.next_object(), level=1 + max(part.level for part in links))
        self.contents[merged] = {key: value for part in links for key, value in self.contents[part].items()}
        since = self.entry.chain[start - 1].head if start else self.entry.base
        entry = self.entry.replace_by_merged(Replacement(since, merged))
        assert entry is not None
        assert entry.head == self.entry.head
        self.entry = entry
        self.remember()

    def snapshot(self, place: int) -> None:
        """Replace the links up to ``place`` by a snapshot."""
        head = self.entry.chain[place].head
        new_snapshot = Snapshot(paths.snapshot_id(head.version, attempt(self.next_object())), head, 10, 1, 2)
        self.snapshots[new_snapshot.id] = self.copies[head]
        entry = self.entry.replace_by_snapshot(new_snapshot)
        assert entry is not None
        self.entry = entry
        self.remember()

    def roll_back(self, number: int) -> None:
        """Roll back to an earlier record as a new driver."""
        epoch = self.epoch
        self.restore_backup(number)
        self.epoch = epoch + 1
        self.remember()

    def restore_backup(self, number: int) -> None:
        """Restore the root from a backup of an earlier record, and claim it. Copies stay where they are."""
        self.entry, self.state, self.version, on_line, self.epoch = self.records[number]
        self.on_line = list(on_line)
        self.claim()

    def claim(self) -> None:
        """Claim the log as another driver."""
        self.epoch += 1
        self.claims += 1

    def restored(self, entry: Entry) -> State:
        """Return the state that a complete entry describes."""
        state = {} if entry.snapshot is None else self.snapshots[entry.snapshot.id]
        for part in entry.chain:
            state = applied(state, self.contents[part])
        return state

    def check(self) -> None:
        """Check the entry from the head of every copy, of the present and of abandoned histories."""
        assert self.restored(self.entry) == self.state
        for head, copy in self.copies.items():
            links = self.entry.links_after(head)
            if links is None:
                continue
            assert head in self.on_line, f"{head} is of an abandoned history, but counts as on the chain"
            state = copy
            for part in links:
                state = applied(state, self.contents[part])
            assert state == self.state
        base = self.entry.base
        newest = self.on_line[-1].claim if self.on_line else ""
        start = self.entry.chain[0].head if base == EMPTY_HEAD and self.entry.chain else base
        for head in self.on_line:
            if head.claim == newest and head.version >= start.version:
                assert self.entry.links_after(head) is not None, f"{head} is on the chain, but has no links"

    def check_records(self) -> None:
        """Check that the entry can be written as changes since each earlier entry of its history."""
        for before, *_ in self.records[-8:]:
            cut = self.entry.cut_to_changes(before)
            assert cut.restore_whole(before) == self.entry
            if cut.cut is not None:
                manifest = manifest_of_record(_record({ADDRESS: cut}), [replace(PLAIN, entries={ADDRESS: before})])
                assert manifest.entries[ADDRESS] == self.entry
            removed, added = self.entry.changed_links(before)
            assert {*before.chain} - {*removed} | {*added} == {*self.entry.chain}
            assert {*removed} & {*self.entry.chain} == {*added} & {*before.chain} == set()


def _record(entries: dict[Address, Entry]) -> records.Record:
    """Return a record with these entries."""
    return replace(PLAIN, sequence=1, entries=entries)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["batch", "batch", "batch", "whole", "merge", "merge", "snapshot", "claim", "rollback", "restore"]
        ),
        st.integers(0, 99),
        st.integers(1, 99),
        st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 99), min_size=1),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(ACTS)
def test_links_lead_from_any_head_on_the_chain_to_the_newest_state(acts: list[tuple[str, int, int, Changes]]) -> None:
    """After random batches, merges, snapshots, claims, rollbacks and restored backups, links lead from the head of a
    copy to the newest state, or the head is not on the chain. Some batches write the whole state.
    """
    line = Line()
    line.remember()
    for act, place, count, changes in acts:
        chain = line.entry.chain
        if act == "batch":
            line.append(changes)
        elif act == "whole":
            line.append(changes, whole=True)
        elif act == "claim":
            line.claim()
        elif act == "rollback":
            line.roll_back(place % len(line.records))
        elif act == "restore":
            line.restore_backup(place % len(line.records))
        elif chain and act == "merge":
            start = place % len(chain)
            line.merge(start, 1 + count % (len(chain) - start))
        elif chain:
            line.snapshot(place % len(chain))
        line.check()
        line.check_records()
        columns = json.loads(entry_rows.entries_to_text({ADDRESS: line.entry}))
        assert entry_rows.checked_entries_from_json(columns) == {ADDRESS: line.entry}
        assert ("merged" in columns) == any(part.merged is not None for part in line.entry.chain)


def test_a_copy_between_merged_links_applies_the_merged_delta() -> None:
    """A copy between merged links applies the merged delta only if it has the claim of the merged delta's head."""
    chain = tuple(link(version, epoch=epoch) for version, epoch in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 2)))
    merged = merged_link(chain[3].head, 9)
    entry = Entry(chain=chain).replace_by_merged(Replacement(chain[0].head, merged))
    assert entry is not None
    assert entry.chain == (chain[0], merged, chain[4])
    assert entry.links_after(chain[2].head) == (merged, chain[4])
    assert entry.links_after(chain[1].head) is None
    assert entry.links_after(chain[3].head) == (chain[4],)
    assert entry.links_after(chain[0].head) == (merged, chain[4])


def test_a_copy_older_than_a_merged_whole_state_is_restored() -> None:
    """A copy that is older than a merged delta with the whole state is restored, because the delta has no deletions."""
    entry = Entry(chain=(merged_link(link(5).head, 9),))
    assert entry.links_after(link(3).head) is None
    assert entry.links_after(EMPTY_HEAD) == entry.chain


def test_a_copy_of_a_lost_claim_of_the_same_epoch_is_not_on_the_chain() -> None:
    """A copy whose claim was lost when the root was restored from a backup is not on the chain, although a new claim
    has the same epoch. Copies of earlier versions, whose attempts have only random digits, are not on it either.
    """
    before = link(1)
    claims = {
        claim: [Head(version, f"2-{claim}{version:024x}") for version in (2, 3)] for claim in ("aa" * 4, "bb" * 4)
    }
    lost, present = claims.values()
    chain = (before, *(link(head.version)._replace(head=head) for head in present))
    entry = Entry(chain=chain).replace_by_merged(Replacement(before.head, merged_link(present[-1], 9)))
    assert entry is not None
    assert entry.links_after(present[0]) == entry.chain[1:]
    assert entry.links_after(lost[0]) is None


def test_a_merged_delta_whose_ends_are_not_in_the_chain_is_refused() -> None:
    """A merged delta is refused if a snapshot or another merge has removed its first or last head from the chain."""
    chain = tuple(link(version) for version in range(6))
    whole = Entry(chain=chain)
    late = Replacement(chain[0].head, merged_link(chain[4].head, 1))
    assert whole.replace_by_merged(Replacement(chain[4].head, merged_link(chain[0].head, 1))) is None
    assert whole.replace_by_merged(Replacement(chain[4].head, merged_link(chain[4].head, 1))) is None
    assert whole.replace_by_merged(Replacement(Head(9, attempt()), merged_link(chain[4].head, 1))) is None
    other = whole.replace_by_merged(Replacement(chain[1].head, merged_link(chain[5].head, 2)))
    assert other is not None
    assert other.replace_by_merged(late) is None
    snapshot = Snapshot(paths.snapshot_id(1, attempt(7)), chain[1].head, 10, 1, 2)
    snapped = whole.replace_by_snapshot(snapshot)
    assert snapped is not None
    assert snapped.replace_by_merged(late) is None


def merged_log(store: MemoryStore, batches: int) -> Log:
    """Return a log in which every fourth record merges links."""
    log = opened(store)
    log.append(PLAIN, Manifest())
    for version in range(batches):
        entry = log.manifest.entry(*ADDRESS)
        if version % 4 == 3:
            replaced = entry.replace_by_merged(Replacement(entry.chain[-3].head, merged_link(entry.head, version)))
            assert replaced is not None
            entry = replaced
        log.append(drafted(f"c{version}", version), log.manifest.with_entries({ADDRESS: entry.add_link(link(version))}))
    return log


def test_records_with_merged_deltas_can_be_read() -> None:
    """Each record with merged deltas can be read, and lists fewer links than the whole chain."""
    store = MemoryStore()
    log = merged_log(store, 40)
    reader = Log(store, ROOT)
    tail = reader.open()
    assert tail is not None
    assert reader.manifest == log.manifest
    for sequence in range(1, tail.sequence):
        listed = reader.manifest_of(reader.read(sequence)).entry(*ADDRESS)
        versions = [part.head.version for part in listed.chain]
        assert versions == sorted(set(versions))
        assert listed.head.version == sequence - 1
    assert tail.full < tail.sequence
    (newest,) = tail.entries.values()
    assert newest.cut is not None
    assert len(newest.chain) < len(log.manifest.entry(*ADDRESS).chain)


@pytest.mark.parametrize(
    "merged",
    [
        MergedDelta("../x", 1, 1),
        MergedDelta(f"{1:020d}-1-{2:032x}/..", 1, 1),
        MergedDelta(f"{1:020d}-1-{2:032x}", 0, 1),
        MergedDelta(f"{1:020d}-1-{2:032x}", 99, 1),
        MergedDelta(f"{1:020d}-1-{2:032x}", 1, -1),
        MergedDelta(f"{1:020d}-1-{2:032x}", 1, 1 << 63),
    ],
)
def test_impossible_merged_deltas_are_refused(merged: MergedDelta) -> None:
    """A record with an impossible merged delta is refused, because names of objects and files contain its id."""
    entry = Entry(chain=(Link(Head(1, attempt()), 0, 1, 1, 1, merged),))
    columns = json.loads(entry_rows.entries_to_text({ADDRESS: entry}))
    with pytest.raises(ValueError, match="merged delta"):
        entry_rows.checked_entries_from_json(columns)


def test_a_cut_that_does_not_fit_its_full_record_is_refused() -> None:
    """A cut that lies before the last link is refused unless a merged delta replaces the later links."""
    base = {ADDRESS: Entry(chain=(link(1), link(2)))}
    for entry in (
        Entry(None, (link(3),), cut=link(1).head),
        Entry(None, (merged_link(link(3).head, 1),), cut=Head(1, attempt(5))),
        Entry(None, (), cut=link(1).head),
    ):
        with pytest.raises(CorruptStateError, match="does not fit"):
            manifest_of_record(_record({ADDRESS: entry}), [replace(PLAIN, entries=base)])
