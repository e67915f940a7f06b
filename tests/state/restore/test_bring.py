"""Stacks are advanced to the head that a driver names, by adding links or by a restore, and never beyond it (I2)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies.folder import claim_folder
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.log.manifest import EMPTY, Head
from riffle_spark.state.restore import stack_parts
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress, IncomingSnapshots
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import AdvanceCounts, StackKeeper
from riffle_spark.state.restore.stack_parts import _merge_start
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import Fault
from tests.kit.state.members import SCHEMA, Place, rows_of_copy
from tests.kit.state.stack_changes import part


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a member and an empty store."""
    return Place(tmp_path / "member")


def test_a_key_group_without_state_gets_no_copy(place: Place) -> None:
    """A key-group without state gets no copy, and nothing is read for it."""
    copies, brought = place.keeper().advance({3: EMPTY})
    assert copies == {}
    assert (brought.restores, brought.folds) == (0, 0)
    assert place.store.calls == []


def test_a_new_member_restores_copies_and_then_adds_new_links(place: Place) -> None:
    """The first call restores copies from the chain, and later calls add only new links."""
    place.seal(0, {1: {"a": 1, "b": 2}, 2: {"c": 3}})
    place.seal(1, {1: {"a": None, "d": 4}})
    first = place.bring()
    assert first == AdvanceCounts(restores=2, folds=3)
    place.seal(2, {1: {"a": 9}})
    second = place.bring()
    assert second == AdvanceCounts(folds=1, hits=1, catch_ups=1), "copy 1 fetched a delta, copy 2 fetched nothing"
    assert place.bring() == AdvanceCounts(hits=2)


def test_a_restore_reads_the_snapshot_and_the_chain_after_it(place: Place) -> None:
    """A restore reads each snapshot with one GET and the deltas after it with ranged GETs."""
    place.seal(0, {1: {"a": 1}})
    place.seal(1, {1: {"b": 2}})
    place.snapshot(1)
    place.seal(2, {1: {"a": None}})
    place.store.calls.clear()
    assert place.bring().restores == 1
    assert sorted(name.split("/")[0] for _, name in place.store.calls) == ["delta", "totals"]


def test_merging_the_top_of_a_stack_keeps_deletions(place: Place) -> None:
    """Merging the upper parts of a stack keeps deletions of keys that are in the snapshot below."""
    place.seal(0, {1: {f"{n:04d}": n for n in range(5000)}})
    place.snapshot(1)
    place.bring()
    for version in range(1, 25):
        place.seal(version, {1: {f"{version:04d}": None, "new": version}})
        keeper = place.keeper()
        opened = keeper.advance(place.entries)[0]
        assert len(opened[1].stack.parts) <= 10
        assert opened[1].stack.parts[0].rows == 5000, "the snapshot is still the lowest part"
        keeper.merge(opened)
    assert place.bring() == AdvanceCounts(hits=1)


def test_a_merge_includes_stacks_of_half_as_many_parts(place: Place) -> None:
    """If one stack has too many parts, stacks of half as many are merged with it, because they share files."""
    for version in range(10):
        changed = [1] if version < 5 else [1, 2] if version < 7 else [1, 2, 3]
        place.seal(version, {key_group: {str(version): version} for key_group in changed})
        place.bring()
    keeper = place.keeper()
    opened = keeper.advance(place.entries)[0]
    keeper.merge({key_group: opened[key_group] for key_group in (2, 3)})
    stacks = place.folder.stacks("totals").listing().stacks
    assert [len(stacks[key_group].parts) for key_group in (1, 2, 3)] == [10, 5, 3], "the merged stacks have few parts"
    keeper.merge(opened)
    stacks = place.folder.stacks("totals").listing().stacks
    assert [len(stacks[key_group].parts) for key_group in (1, 2, 3)] == [1, 1, 3]
    assert stacks[1].parts[0].file == stacks[2].parts[0].file
    assert place.bring() == AdvanceCounts(hits=3)


@pytest.mark.parametrize(
    ("rows", "length", "merged_from"),
    [
        (100, 10_000, [*[None] * 6, 0]),
        (300, 3_000, [*[None] * 4, 0]),
        (100, 1_000, [*[None] * 9, 0]),
        (10, 1_000, [*[None] * 9, 1]),
    ],
    ids=["bytes", "rows of packed parts", "many packed parts", "many parts of few rows"],
)
def test_stacks_are_merged_by_bytes_rows_and_parts(rows: int, length: int, merged_from: list[int | None]) -> None:
    """Parts above one of 1,000 rows are merged at half of its bytes, as many rows, or nine parts. Their rows decide
    where the merge starts.
    """
    parts = [StackedPart("bottom", 0, 100_000, 0, 1_000, 1)]
    for first in merged_from:
        assert _merge_start(parts, 0.5, 9) == first
        parts.append(StackedPart("delta", 0, length, 0, rows, 1))


def test_an_attempt_with_an_older_head_than_its_copy_is_out_of_date(place: Place) -> None:
    """An attempt that names an older head than a copy has raises OutOfDate, and the copy stays."""
    place.seal(0, {1: {"a": 1}})
    old = dict(place.entries)
    place.seal(1, {1: {"a": 2}})
    place.bring()
    for entries in (old, {1: EMPTY}):
        with pytest.raises(OutOfDate, match="RIFFLE-0463") as caught:
            place.bring(entries)
        assert caught.value.where == "totals, key-group 1"
    assert place.bring().restores == 0


def test_an_attempt_of_a_fenced_driver_does_not_revert_copies(place: Place) -> None:
    """An attempt of an older epoch raises OutOfDate if a newer epoch has advanced the copy."""
    place.seal(5, {1: {"a": 1}})
    old = dict(place.entries)
    place.seal(6, {1: {"a": 2}}, epoch=3)
    place.bring(epoch=3)
    with pytest.raises(OutOfDate):
        place.bring(old, epoch=2)


def test_a_copy_of_an_abandoned_history_is_restored(place: Place) -> None:
    """After a rollback a copy of the abandoned history is restored, or dropped if its key-group has no state."""
    place.seal(0, {1: {"a": 1}})
    back, before = dict(place.entries), {1: dict(place.wanted[1])}
    place.seal(1, {1: {"a": 2}, 2: {"z": 1}})
    place.bring()
    place.entries, place.wanted = back, before
    assert place.bring(epoch=2).restores == 1
    assert place.bring({2: EMPTY}, epoch=2).restores == 0
    assert place.folder.stacks("totals").key_groups() == [1]


def test_a_copy_at_the_head_of_an_unlisted_attempt_is_restored(place: Place) -> None:
    """A copy at the head of an attempt that was never listed is restored."""
    place.seal(0, {1: {"a": 1}})
    place.bring()
    stacks = place.folder.stacks("totals")
    stack = stacks.read(1)
    assert stack is not None
    assert stacks.replace(1, stack, stack.with_parts(Head(0, attempt(77)), stack.parts))
    place.seal(1, {1: {"a": 5}})
    assert place.bring().restores == 1


def test_a_keeper_whose_copy_another_process_advanced_reads_new_state(place: Place) -> None:
    """A keeper whose copy is advanced by another process while it fetches reads the newest state."""
    place.seal(0, {1: {"a": 1}})
    place.bring()
    place.seal(1, {1: {"a": 2}})
    place.seal(2, {1: {"a": 3}})

    class OvertakenReader(Reader):
        def fetch_run(self, run):  # type: ignore[no-untyped-def]
            place.bring()
            return super().fetch_run(run)

    keeper = StackKeeper(place.folder, SCHEMA, OvertakenReader(place.store), 1)
    assert rows_of_copy(keeper.advance(place.entries)[0][1]) == {"a": 3}
    assert place.bring()[:2] == (0, 0)


KEYS = st.sampled_from("abcdef")
DELTAS = st.dictionaries(
    st.integers(0, 2), st.dictionaries(KEYS, st.none() | st.integers(0, 99), min_size=1), min_size=1
)
ACTS = st.sampled_from(["bring", "bring", "snapshot", "forget", "move", "nothing"])


@given(st.lists(st.tuples(DELTAS, ACTS, st.booleans()), max_size=10))
def test_copies_equal_a_dictionary_after_random_changes(
    history: list[tuple[dict[int, dict[str, int | None]], str, bool]],
) -> None:
    """After random deltas, snapshots, lost copies and moves to other members, copies hold the committed state."""
    with tempfile.TemporaryDirectory() as folder:
        live_through(Place(Path(folder)), history)


def live_through(place: Place, history: list[tuple[dict[int, dict[str, int | None]], str, bool]]) -> None:
    """Seal each delta and do its action. At the end all copies are complete and there are no other files."""
    for version, (changes, act, kept) in enumerate(history):
        place.seal(version, changes, kept=kept)
        if act == "bring":
            place.bring()
        elif act == "snapshot":
            place.snapshot(min(changes))
        elif act == "forget":
            place.keeper().drop(changes)
        elif act == "move":
            place.folder = claim_folder(place.folder.path.parent, f"app/{version + 2}", ())
    if place.entries:
        place.bring()
    assert place.strays() == []


def test_a_snapshot_checks_the_file_of_its_copy_again(place: Place) -> None:
    """A snapshot checks the copy's file again, although the same keeper has verified it for an earlier snapshot."""
    place.seal(0, {1: {f"k{n}": n for n in range(5_000)}})
    place.snapshot(1)
    keeper = place.keeper()
    first = keeper.make_snapshot(1, place.entries[1], attempt(9))
    with place.files(1)[0].open("r+b") as file:
        file.seek(len(first.data) // 2)
        file.write(b"damaged")
    assert keeper.make_snapshot(1, place.entries[1], attempt(9)) == first


def test_a_copy_that_another_process_advanced_is_finished_at_its_head(place: Place) -> None:
    """A copy that another process advanced is finished only if it has reached its head, so that upkeep continues with
    it.
    """
    place.seal(0, {1: {"a": 1}})
    place.bring()
    behind = place.entries[1]
    place.seal(1, {1: {"b": 2}})
    planner = CopyPlanner(place.folder, IncomingSnapshots(place.folder.path), 1, lambda _: place.entries[1])
    for entry, is_finished in ((place.entries[1], False), (behind, True)):
        copy = CopyProgress((SCHEMA.store, 1), entry, links=entry.chain)
        planner.accept_if_advanced(copy, OutOfDate("moved"))
        assert copy.is_finished == is_finished


def test_merges_are_split_into_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges are split into blocks when their parts have enough bytes, and each merge is in one of them."""
    monkeypatch.setattr(stack_parts, "_BLOCK_BYTES", 25)
    stack: Any = None  # only the parts decide
    merges = [(number, stack, [part(number)] * count) for number, count in enumerate((1, 2, 1, 1, 1, 1))]
    sizes = [[number for number, _, _ in block] for block in stack_parts._split_by_size(merges)]
    assert sizes == [[0, 1], [2, 3, 4], [5]]
    assert next(iter(stack_parts._split_by_size(merges[:2]))) == merges[:2]


def test_a_copy_that_another_driver_replaced_meanwhile_stays_as_it_is(place: Place) -> None:
    """I2: while a task fetches a delta, a newer driver's task restores the copy to another head. The first task reads
    its own rows, and does not add its delta to the other copy.
    """
    place.seal(0, {1: {"a": 1}})
    place.bring()
    before = place.entries, place.wanted
    place.entries = {}
    place.wanted = {}
    place.seal(5, {1: {"z": 9}}, epoch=2)
    newer = place.entries
    place.entries, place.wanted = before
    (link,) = place.seal(1, {1: {"b": 2}})

    def restore(_: float) -> None:
        place.keeper(epoch=2).advance(newer)

    place.store.script(Fault("slow", "get", link.object))
    place.store._sleep = restore  # Another task restores the copy while this call is slow.
    place.bring()
    assert place.local(1) == (newer[1].head, {"z": 9})
