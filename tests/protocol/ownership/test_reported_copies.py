"""The known copies and their lags, as properties of random histories of a key-group."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.messages.upkeep_orders import Census
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.operator import operator_of
from riffle_spark.protocol.ownership.reported_copies import CopyLag, ReportedCopies, lag_without_copy
from riffle_spark.state.copies import folder
from riffle_spark.state.copies.folder import claim_folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Entry, Head, Link, Manifest, Snapshot
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.kit.simulated.world import ROWS
from tests.kit.state.drawn_records import cut_to_last
from tests.kit.state.local_copies import local_copy

ADDRESS = ("seen", 0)
MEMBER = "m1"
OPERATOR = operator_of("seen", ["k"], aggregate(count=count()), (), ROWS)
SCHEMA = PlainColumns.of_text("seen", OPERATOR.schema.to_text())
ACTS = st.lists(
    st.sampled_from(["batch", "batch", "batch", "whole", "snapshot", "sweep", "census", "seal"]), max_size=40
)


class KeyGroupHistory:
    """A history of one key-group: links, snapshots that replace them, and the copy of a member."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.copies = ReportedCopies()
        self.entry = EMPTY
        self.heads = [EMPTY_HEAD]
        self.every: list[Link] = []
        self.sequence = 0
        self.replaced_at: dict[Head, int] = {}
        self.first_whole = 0

    def act(self, action: str) -> None:
        """Run one step of the history."""
        getattr(self, action)()

    def batch(self) -> None:
        """Commit a link."""
        self.sequence += 1
        version = self.heads[-1].version + 1
        link = Link(Head(version, f"1-{version:032x}"), 0, self.chance.randint(1, 400), 0, self.chance.randint(1, 9))
        self.entry = self.entry.add_link(link)
        self.heads.append(link.head)
        self.every.append(link)

    def whole(self) -> None:
        """Commit a link with the whole state of the key-group."""
        before = self.entry
        self.entry = EMPTY
        self.first_whole = len(self.every)
        self.batch()
        self.copies.record_removed_links(self.sequence, Manifest({ADDRESS: before}), {ADDRESS: self.entry})

    def snapshot(self) -> None:
        """List a snapshot of a random link of the chain."""
        if self.entry.chain:
            self.sequence += 1
            head = self.chance.choice(self.entry.chain).head
            new_snapshot = Snapshot(
                paths.snapshot_id(head.version, head.attempt), head, self.chance.randint(1, 2000), 0, 20
            )
            after = self.entry.replace_by_snapshot(new_snapshot)
            assert after is not None
            self.copies.record_removed_links(self.sequence, Manifest({ADDRESS: self.entry}), {ADDRESS: after})
            self.entry = after

    def sweep(self) -> None:
        """Forget links that were removed before a retained record."""
        self.copies.forget_trails(self.sequence - self.chance.randint(0, 6))

    def census(self) -> None:
        """Report the member's copy at a random head."""
        head = self.chance.choice([*self.heads, Head(self.chance.randint(0, 9), "2-ff")])
        self.copies.record_census(Census("1", MEMBER, copies=((*ADDRESS, *head),)))

    def seal(self) -> None:
        """Let the member have the newest delta."""
        if self.every:
            self.copies._sealed.setdefault(MEMBER, {})[self.every[-1].head.attempt] = None


@given(ACTS, st.randoms(use_true_random=False))
def test_missing_links_connect_the_copy_to_the_head(acts: list[str], chance: random.Random) -> None:
    """The missing links start after the head of the copy, are in commit order, and end at the head of the key-group."""
    past = KeyGroupHistory(chance)
    for act in acts:
        past.act(act)
        missing = past.copies.missing_links(MEMBER, ADDRESS, past.entry)
        head = past.copies.of_member(MEMBER).get(ADDRESS)
        if missing is None:
            assert head not in [link.head for link in past.entry.chain]
            continue
        if head is None:
            assert past.entry.head == EMPTY_HEAD
            continue
        place = past.heads.index(head) if head != EMPTY_HEAD else past.first_whole
        assert list(missing) == past.every[place:]


def test_a_shortened_trail_is_not_used_by_older_copies() -> None:
    """A copy from before a forgotten link cannot use the rest of the trail."""
    past = KeyGroupHistory(random.Random(0))
    past.batch()
    past.snapshot()
    past.copies.forget_trails(past.sequence)
    past.copies.record_copies(MEMBER, [(*ADDRESS, *past.heads[-1])])
    past.batch()
    past.snapshot()
    sequence = past.sequence
    past.batch()
    past.snapshot()
    assert past.copies.missing_links(MEMBER, ADDRESS, past.entry) == tuple(past.every[1:])
    past.copies.forget_trails(sequence)
    assert past.copies.missing_links(MEMBER, ADDRESS, past.entry) is None


def test_a_trail_has_only_the_newest_links() -> None:
    """A trail has the newest 64 links. A copy that is further behind lacks the whole state."""
    past = KeyGroupHistory(random.Random(0))
    for _ in range(100):
        past.batch()
        past.snapshot()
    past.copies.record_copies(MEMBER, [(*ADDRESS, *past.heads[-65])])
    assert past.copies.missing_links(MEMBER, ADDRESS, past.entry) == tuple(past.every[-64:])
    past.copies.record_copies(MEMBER, [(*ADDRESS, *past.heads[-66])])
    assert past.copies.missing_links(MEMBER, ADDRESS, past.entry) is None


def test_a_census_replaces_all_known_copies_of_its_member() -> None:
    """A census replaces all known copies of its member."""
    past = KeyGroupHistory(random.Random(0))
    past.batch()
    head = past.heads[-1]
    past.copies.record_census(Census("1", MEMBER, copies=((*ADDRESS, *head), ("other", 0, *head))))
    past.copies.record_census(Census("1", MEMBER, copies=(("other", 0, *head),)))
    assert past.copies.of_member(MEMBER) == {("other", 0): head}
    assert past.copies.missing_links(MEMBER, ADDRESS, past.entry) is None


@given(ACTS, st.randoms(use_true_random=False))
def test_lag_is_the_size_of_missing_links_that_are_not_local(acts: list[str], chance: random.Random) -> None:
    """The lag is 0 if the member has all missing links. It is the whole state if the copy cannot follow the log.
    Without a snapshot, a copy that is not on the chain lags by the chain.
    """
    past = KeyGroupHistory(chance)
    for act in acts:
        past.act(act)
        missing = past.copies.missing_links(MEMBER, ADDRESS, past.entry)
        lag = past.copies.lag(MEMBER, ADDRESS, past.entry)
        if missing is None and (past.entry.snapshot is not None or ADDRESS not in past.copies.of_member(MEMBER)):
            assert lag == lag_without_copy(past.entry)
            continue
        missing = past.entry.chain if missing is None else missing
        lacking = [link for link in missing if link.head.attempt not in past.copies._sealed.get(MEMBER, ())]
        assert lag == CopyLag(sum(link.rows for link in lacking), sum(link.length for link in lacking))
        assert (lag.records == 0) == (not lacking)


def test_only_the_last_256_deltas_of_a_member_are_known() -> None:
    """Only the last 256 deltas of a member are known, so that memory is bounded."""
    copies = ReportedCopies()
    receipts = [Receipt("seen", 0, f"1-{number:02x}", number, MEMBER, "1") for number in range(258)]
    copies.record_census(Census("1", MEMBER, sealed=tuple(receipt.attempt for receipt in receipts[:1])))
    copies.record_receipts(receipts[1:], Manifest({}))
    lacking = [Link(Head(1, receipt.attempt), 0, 10, 0, 1) for receipt in receipts]
    lags = [copies._lag_of_links(MEMBER, [link]).records for link in lacking]
    assert lags == [1, 1, *[0] * 256]


@given(ACTS, st.randoms(use_true_random=False))
def test_missing_links_are_read_from_the_chain_without_trails(acts: list[str], chance: random.Random) -> None:
    """After all trails are forgotten, the missing links are on the chain, or unknown."""
    past = KeyGroupHistory(chance)
    for act in acts:
        past.act(act)
    past.copies.forget_trails(past.sequence)
    missing = past.copies.missing_links(MEMBER, ADDRESS, past.entry)
    assert missing is None or set(missing) <= set(past.entry.chain)
    assert past.copies._trails == {}


@given(ACTS, st.randoms(use_true_random=False))
def test_a_follow_order_has_the_entry_and_the_missing_links(acts: list[str], chance: random.Random) -> None:
    """An order has the entry of the manifest, and the number of newest links that the copy lacks."""
    past = KeyGroupHistory(chance)
    for act in acts:
        past.act(act)
        entry = past.copies.entry_to_follow(MEMBER, ADDRESS, past.entry) if past.entry.head != EMPTY_HEAD else None
        follow = past.copies.follow_of(MEMBER, ADDRESS, past.entry)
        if follow is None or entry is None:
            assert follow is None
            assert entry is None
            continue
        sent = follow.entry if follow.newest is None else cut_to_last(follow.entry, follow.newest)
        assert sent == entry
        assert follow.is_whole == (entry.cut is None)


class StoredKeyGroup:
    """One key-group with objects in a store and local copies."""

    def __init__(self, local: Path) -> None:
        self.objects = MemoryStore(f"{local.name}-copies")
        self.entry: Entry = EMPTY
        self.copies = ReportedCopies()
        self.sequence = 0
        self.folder = claim_folder(local / "mine", "owner", ())
        self.elsewhere = claim_folder(local / "other", "other", ())
        self.held: dict[bytes, int] = {}

    def keeper(self, where: folder.Folder) -> StackKeeper:
        """Return a keeper of the copies in a folder."""
        return StackKeeper(where, SCHEMA, Reader(self.objects), epoch=9, read_whole=lambda _: self.entry)

    def batch(self, chance: random.Random) -> None:
        """Commit a delta that sets some keys."""
        self.sequence += 1
        version = self.entry.head.version + 1
        head = Head(version, f"1-{version:032x}")
        keys = sorted({f"k{chance.randrange(9)}" for _ in range(3)})
        schema = OPERATOR.schema.part_schema(delta=True)
        columns = {"k": keys, **{name: [version + 1] * len(keys) for name in schema.names if name == "count"}}
        arrays = [
            pa.array(columns.get(f.name, [False if f.type == pa.bool_() else None] * len(keys)), f.type) for f in schema
        ]
        data = part_codec.encode(pa.table(arrays, schema=schema))
        self.objects.put_if_absent(paths.delta_name(*head), data)
        link = Link(head, 0, len(data), part_codec.checksum(data), len(keys))
        self.entry = self.entry.add_link(link)

    def snapshot(self) -> None:
        """List a snapshot of the current state."""
        if self.entry.chain:
            self.sequence += 1
            head, data, rows = self.keeper(self.elsewhere).make_snapshot(0, self.entry, self.entry.head.attempt)
            name = paths.snapshot_id(head.version, head.attempt)
            self.objects.put_if_absent(paths.snapshot_name(*ADDRESS, name), data)
            after = self.entry.replace_by_snapshot(Snapshot(name, head, len(data), part_codec.checksum(data), rows))
            assert after is not None
            self.copies.record_removed_links(self.sequence, Manifest({ADDRESS: self.entry}), {ADDRESS: after})
            self.entry = after

    def follow(self) -> tuple[bool, int]:
        """Let the member's copy follow the log. Return whether it equals another copy, and the number of restores."""
        followed_entry = self.copies.entry_to_follow(MEMBER, ADDRESS, self.entry) or self.entry
        brought = self.keeper(self.folder).advance({0: followed_entry})[1]
        self.keeper(self.elsewhere).advance({0: self.entry})
        mine, other = (local_copy(where, OPERATOR.schema, 0) for where in (self.folder, self.elsewhere))
        assert mine is not None
        self.copies.record_copies(MEMBER, [(*ADDRESS, *mine[0])])
        return mine == other, brought.restores


@given(
    st.lists(st.sampled_from(["batch", "batch", "snapshot", "follow", "sweep"]), max_size=14),
    st.randoms(use_true_random=False),
)
def test_a_followed_entry_brings_a_copy_to_the_head(acts: list[str], chance: random.Random) -> None:
    """After any history, the copy equals one that was restored from the objects."""
    with tempfile.TemporaryDirectory() as local:
        real = StoredKeyGroup(Path(local))
        real.batch(chance)
        for act in [*acts, "follow"]:
            if act == "batch":
                real.batch(chance)
            elif act == "snapshot":
                real.snapshot()
            elif act == "sweep":
                real.copies.forget_trails(real.sequence - 1)
            else:
                could = real.copies.missing_links(MEMBER, ADDRESS, real.entry) is not None
                before = real.copies.of_member(MEMBER).get(ADDRESS)
                followed_entry = real.copies.entry_to_follow(MEMBER, ADDRESS, real.entry) or real.entry
                same, restores = real.follow()
                assert same
                assert real.copies.lag(MEMBER, ADDRESS, real.entry) == CopyLag(0, 0)
                if followed_entry.cut is not None:
                    assert could
                    assert before is not None
                    assert restores == 0
