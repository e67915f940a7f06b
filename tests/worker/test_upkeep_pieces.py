"""Pieces of upkeep follow the log, drop copies and take snapshots, within a time and a number of bytes."""

from __future__ import annotations

import base64
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.messages.upkeep_orders import MergeOrder, UpkeepReceipt
from riffle_spark.state.copies import part_files
from riffle_spark.state.copies.folder import claim_folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Entry, Head
from riffle_spark.worker import upkeep_piece
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.state.drawn_records import cut_to_last
from tests.kit.worker.upkeep_member import STORE, UpkeepMember

KEY_GROUPS = range(1, 9)


@pytest.fixture
def upkept(tmp_path: Path) -> UpkeepMember:
    """Return a member without copies. Two versions of eight key-groups are committed."""
    upkept = UpkeepMember(tmp_path)
    for version in range(2):
        upkept.place.seal(version, {kg: {f"k{version}": kg, "k": version} for kg in KEY_GROUPS})
    return upkept


def test_a_member_without_copies_fetches_them(upkept: UpkeepMember) -> None:
    """A member without copies fetches snapshots and chains. The receipt has the copies and the requests."""
    upkept.place.snapshot(1)
    upkept.place.seal(2, {1: {"k": None}})
    receipt = upkept.run()
    assert upkept.is_warm(receipt)
    assert (receipt.executor, receipt.member) == ("1", upkept.folder().member)
    assert (receipt.restores, receipt.folds) == (8, 15)
    assert receipt.requests == {"get": 4}
    assert receipt.snapshot_bytes == upkept.place.entries[1].snapshot.length  # type: ignore[union-attr]
    assert receipt.delta_bytes > 0
    assert upkept.incoming() == []


def test_each_delta_is_fetched_with_one_get_for_all_copies(upkept: UpkeepMember) -> None:
    """Each delta is fetched with one get, for all key-groups of the member. Caught-up copies fetch nothing."""
    upkept.run()
    for version in range(2, 5):
        upkept.place.seal(version, {kg: {"k": version} for kg in KEY_GROUPS if kg % 3})
    upkept.gets("")
    (journal,) = upkept.folder().path.glob("stacks/*/*.journal")
    before = journal.read_bytes()
    receipt = upkept.run()
    assert upkept.is_warm(receipt)
    assert (upkept.gets("delta/"), receipt.folds, receipt.restores) == (3, 18, 0)
    appended = journal.read_bytes()[len(before) :]
    assert int.from_bytes(appended[8:12], "little") == len(appended) - 12, "one entry for all copies"
    second_receipt = upkept.run()
    assert upkept.is_warm(second_receipt)
    assert (upkept.gets(""), second_receipt.folds, second_receipt.delta_bytes) == (0, 0, 0)


def test_a_member_follows_its_own_deltas_without_a_get(upkept: UpkeepMember) -> None:
    """A member follows its own deltas from local files, without a get, whatever the byte budget."""
    upkept.run()
    upkept.place.folder = upkept.folder()
    upkept.place.seal(2, {kg: {"k": 2} for kg in KEY_GROUPS}, kept=True)
    upkept.gets("")
    assert upkept.is_warm(upkept.run(fetch_bytes=0))
    assert upkept.gets("") == 0


def test_a_cut_entry_suffices_for_a_copy_that_is_near(upkept: UpkeepMember) -> None:
    """A cut entry suffices for a copy that is near. The log is read only for a copy that needs more."""
    upkept.run()
    upkept.place.seal(2, {kg: {"k": 2} for kg in KEY_GROUPS})
    upkept.log()
    cut = {kg: cut_to_last(entry, 1) for kg, entry in upkept.place.entries.items()}
    upkept.gets("")
    assert upkept.is_warm(upkept.run(follows=upkept.follows(cut)))
    assert upkept.gets("log/") == 0
    upkept.folder().drop(STORE, 3)
    assert upkept.is_warm(upkept.run(follows=upkept.follows(cut)))
    assert upkept.gets("log/") > 0


def test_copies_newer_than_a_late_order_are_not_changed(upkept: UpkeepMember) -> None:
    """If a late order has older entries than the copies, these are reported and not changed."""
    late = dict(upkept.place.entries)
    upkept.place.seal(2, {kg: {"k": 2} for kg in KEY_GROUPS})
    upkept.run()
    receipt = upkept.run(follows=upkept.follows(late))
    assert upkept.is_warm(receipt)
    assert receipt.restores == 0


def test_a_copy_of_an_abandoned_version_is_replaced(upkept: UpkeepMember) -> None:
    """After a rollback, a copy of an abandoned version is replaced. A copy of an empty key-group is dropped."""
    back, expected = dict(upkept.place.entries), {kg: dict(rows) for kg, rows in upkept.place.wanted.items()}
    upkept.place.seal(2, {1: {"k": 2}, 9: {"z": 1}})
    upkept.run()
    upkept.place.entries, upkept.place.wanted = back, expected
    order = replace(upkept.order(follows=upkept.follows({**back, 9: EMPTY})), epoch=2)
    receipt = run_upkeep(order, "1")
    assert receipt.errors == ()
    assert (upkept.is_warm(receipt), receipt.restores, receipt.missing) == (True, 1, ((STORE, 9),))


def test_a_copy_is_dropped_only_at_the_head_of_the_order(upkept: UpkeepMember) -> None:
    """A copy is dropped only at the head that the order names. An order without a head drops any copy, and a missing
    copy is reported as dropped.
    """
    upkept.run()
    head = upkept.place.entries[1].head
    upkept.place.seal(2, {1: {"k": 2}})
    upkept.run()
    drops = (upkept.drop(1, head), upkept.drop(2, upkept.place.entries[2].head), upkept.drop(3), upkept.drop(99))
    receipt = upkept.run(follows=(), drops=drops)
    assert receipt.copies == ((STORE, 1, *upkept.place.entries[1].head),)
    assert receipt.missing == ((STORE, 2), (STORE, 3), (STORE, 99))
    assert [upkept.held(kg) is None for kg in (1, 2, 3, 4)] == [False, True, True, False]


def test_a_copy_is_dropped_if_either_of_two_drops_applies(upkept: UpkeepMember) -> None:
    """If an order has two drops of one copy, the copy is reported as dropped when either applies."""
    upkept.run()
    drops = (upkept.drop(2, EMPTY_HEAD), upkept.drop(2, upkept.place.entries[2].head))
    receipt = upkept.run(follows=(), drops=drops)
    assert (receipt.copies, receipt.missing) == ((), ((STORE, 2),))


def test_a_piece_without_time_still_makes_progress(upkept: UpkeepMember) -> None:
    """Each piece makes progress even without time, so that several pieces complete the work."""
    drops = (upkept.drop(1), upkept.drop(2))
    first = upkept.run(follows=(), drops=drops, seconds=0.0)
    assert (first.missing, first.drops_left) == (((STORE, 1),), 1)
    for count in itertools.count(1):
        receipt = upkept.run(seconds=0.0)
        if not receipt.unfinished:
            break
        assert count < 30
        assert all(fetched < total for _, _, fetched, total in receipt.unfinished)
    assert upkept.is_warm(receipt)
    assert count > 8


def test_no_work_starts_after_the_given_clock_reaches_the_limit(upkept: UpkeepMember) -> None:
    """No work starts after the given clock reaches the given seconds."""
    upkept.place.snapshot(1)
    ticks = itertools.count()
    receipt = run_upkeep(upkept.order(seconds=4.0), "1", seconds=lambda: float(next(ticks)))
    assert (receipt.errors, receipt.restores, receipt.seconds > 0) == ((), 4, True)
    assert [key_group for _, key_group, _, _ in receipt.unfinished] == [2, 3, 4, 5, 6, 7, 8]


def test_snapshots_are_taken_after_copies_follow_the_log(upkept: UpkeepMember) -> None:
    """Snapshots have the state after the copies follow the log. Those without time are counted as left."""
    due = tuple(upkept.snapshot(kg) for kg in (1, 2, 3))
    receipt = upkept.run(snapshots=due)
    assert [(store, kg) for store, kg, _ in receipt.snapshots] == [(STORE, 1), (STORE, 2), (STORE, 3)]
    for store, key_group, taken in receipt.snapshots:
        name = paths.snapshot_name(store, key_group, taken.id)
        table = part_codec.decode(upkept.store.get(name) or b"", taken.checksum, name)
        assert dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)) == upkept.place.wanted[key_group]
        assert taken.head == upkept.place.entries[key_group].head
    short = upkept.run(follows=(), snapshots=due, seconds=0.0)
    assert (len(short.snapshots), short.snapshots_left) == (1, 2)


def test_a_piece_closes_deleted_files(upkept: UpkeepMember) -> None:
    """A process that only follows the log and takes snapshots keeps no deleted file open. Such a file uses the disk."""
    folder = upkept.folder().path
    opened: set[Path] = set()
    for version in range(2, 14):
        upkept.place.seal(version, {kg: {"k": version} for kg in KEY_GROUPS})
        upkept.run(snapshots=tuple(upkept.snapshot(kg) for kg in KEY_GROUPS))
        all_files = map(Path, part_files._files)  # private: the open files of a process
        open_files = {path for path in all_files if path.is_relative_to(folder)}
        assert [path for path in open_files if not path.exists()] == []
        opened |= open_files
    assert any(not path.exists() for path in opened), "files were deleted"


def test_a_failed_snapshot_does_not_stop_the_others(upkept: UpkeepMember) -> None:
    """A failed snapshot is reported, and the others are taken."""
    due = tuple(upkept.snapshot(kg) for kg in (1, 2, 3))
    receipt = upkept.troubled(
        snapshots=(
            due[0],
            replace(due[1], entry=None),  # type: ignore[arg-type]
            due[2],
        )
    )
    assert [key_group for _, key_group, _ in receipt.snapshots] == [1, 3]
    assert receipt.errors[0].startswith("totals, key-group 2: ")
    assert receipt.snapshots_left == 0


def test_merged_parts_share_objects_of_a_bounded_size(upkept: UpkeepMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged parts are put in objects of a bounded size."""
    entries = {kg: Entry(None, entry.chain, cut=entry.base) for kg, entry in upkept.place.entries.items()}
    size = max(entry.chain_bytes for entry in entries.values())
    monkeypatch.setattr(upkeep_piece, "_MERGED_BYTES", 2 * size)
    merges = tuple(MergeOrder(STORE, kg, entry, 1) for kg, entry in entries.items())
    receipt = upkept.run(merges=merges)
    assert [kg for _, kg, _ in receipt.merges] == list(KEY_GROUPS)
    objects = [replacement.link.object for _, _, replacement in receipt.merges]
    assert objects[::2] == objects[1::2]
    assert len(set(objects)) == len(KEY_GROUPS) // 2


def test_an_order_for_another_member_does_nothing(upkept: UpkeepMember) -> None:
    """If an executor has another member than the order names, upkeep does nothing and returns an error."""
    receipt = run_upkeep(replace(upkept.order(), member="m000000000000"), "1")
    assert (receipt.copies, receipt.unfinished, receipt.member) == ((), (), upkept.folder().member)
    assert "m000000000000" in receipt.errors[0]
    order = replace(upkept.order(), member=upkept.folder().member)
    assert upkept.is_warm(run_upkeep(order, "1"))


def test_upkeep_does_not_change_a_folder_of_another_executor(upkept: UpkeepMember) -> None:
    """A late piece of upkeep does not change a folder that another executor has taken over."""
    upkept.run()
    before = upkept.folder()
    claimed_folder = claim_folder(before.path.parent, "app/2", ["app/2"])
    assert claimed_folder.path == before.path
    late = replace(upkept.order(drops=(upkept.drop(1),)), member=before.member, home=alive(upkept))
    receipt = run_upkeep(late, "1")
    assert "is for member" in receipt.errors[0]
    assert claimed_folder.stacks(STORE).read(1) is not None


def alive(upkept: UpkeepMember):  # type: ignore[no-untyped-def]
    """Return the home with both executors as live."""
    return replace(upkept.home, live=frozenset({"app/1", "app/2"}))


def test_two_pieces_never_work_in_one_folder(upkept: UpkeepMember) -> None:
    """A second piece of upkeep in the same folder returns an error, and succeeds later."""
    with upkept.folder().lock_for_upkeep():
        receipt = upkept.troubled()
    assert "RIFFLE-0388" in receipt.errors[0]
    assert receipt.copies == ()
    assert upkept.is_warm(upkept.run())


def test_a_store_without_a_schema_fails_alone(upkept: UpkeepMember) -> None:
    """A store without a schema fails alone, and the copies of the other store follow the log."""
    other = replace(upkept.follows()[0], store="unknown")
    receipt = upkept.troubled(follows=(other, *upkept.follows()[1:]))
    assert len(receipt.errors) == 1
    assert receipt.errors[0].startswith("unknown, key-group 1: ")
    assert len([copy for copy in receipt.copies if copy[0] == STORE]) == 7


def test_a_copy_with_missing_parts_is_restored(upkept: UpkeepMember) -> None:
    """A copy whose parts are missing is restored."""
    upkept.run()
    stack = upkept.folder().stacks(STORE).read(1)
    assert stack is not None
    (upkept.folder().path / stack.parts[0].file).unlink()
    receipt = upkept.run()
    assert (upkept.is_warm(receipt), receipt.restores >= 1) == (True, True)


def test_a_copy_advanced_by_a_slot_is_reported_at_its_new_head(upkept: UpkeepMember) -> None:
    """If a slot advances a copy during a fetch, the copy is reported at the head that the slot reached."""
    upkept.run()
    upkept.place.seal(2, {1: {"k": 2}})
    entry = upkept.place.entries[1]
    original = type(upkept.store).get

    def overtaken(store, name, start=0, length=None):  # type: ignore[no-untyped-def]
        stacks = upkept.folder().stacks(STORE)
        stack = stacks.read(1)
        assert stack is not None
        stacks.replace(1, stack, stack.with_parts(Head(3, entry.head.attempt), stack.parts[-1:]))
        return original(store, name, start, length)

    upkept.store.get = overtaken.__get__(upkept.store)  # type: ignore[method-assign]
    receipt = upkept.run(follows=upkept.follows({1: entry}))
    assert receipt.copies == ((STORE, 1, 3, entry.head.attempt),)
    assert receipt.unfinished == ()


def test_upkeep_keeps_a_copy_that_a_slot_restored_first(upkept: UpkeepMember) -> None:
    """If a slot restores a copy during a fetch, upkeep keeps the slot's copy and counts no restore."""
    upkept.place.snapshot(1)
    entry, original = upkept.place.entries[1], upkept.store.get

    def overtaken(name, start=0, length=None):  # type: ignore[no-untyped-def]
        upkept.store.get = original  # type: ignore[method-assign]
        upkept.place.keeper(folder=upkept.folder()).advance({1: entry})
        return original(name, start, length)

    upkept.store.get = overtaken  # type: ignore[method-assign]
    receipt = upkept.run(follows=upkept.follows({1: entry}))
    assert (receipt.restores, receipt.copies) == (0, ((STORE, 1, *entry.head),))
    assert upkept.strays() == []


def test_a_failing_executor_returns_a_receipt_with_the_error(tmp_path: Path) -> None:
    """An executor that cannot work returns a receipt with the error and raises nothing."""
    upkept = UpkeepMember(tmp_path)
    (tmp_path / "file").write_text("in the way")
    receipt = run_upkeep(replace(upkept.order(), home=replace(upkept.home, local_dir=str(tmp_path / "file"))), "1")
    assert isinstance(receipt, UpkeepReceipt)
    assert "local_dir" in receipt.errors[0]


KEYS = st.sampled_from("abcd")
DELTAS = st.dictionaries(st.integers(0, 3), st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1))
ACTS = st.sampled_from(["nothing", "snapshot", "lose", "other executor"])
BUDGETS = st.fixed_dictionaries(
    {"seconds": st.sampled_from([0.0, 1000.0]), "fetch_bytes": st.sampled_from([None, 1, 700, 2_000])}
)


@given(st.lists(st.tuples(DELTAS, ACTS, BUDGETS), max_size=8))
def test_any_sequence_of_pieces_leaves_copies_at_committed_heads(
    history: list[tuple[dict[int, dict[str, int | None]], str, dict[str, object]]],
) -> None:
    """Over deltas, snapshots, lost copies and executors, each piece leaves copies at heads of their chains. The last
    piece leaves them caught up.
    """
    with tempfile.TemporaryDirectory() as folder:
        upkept, executors = UpkeepMember(Path(folder)), itertools.count(1)
        executor = str(next(executors))
        for version, (changes, act, budget) in enumerate(history):
            upkept.place.seal(version, changes)
            if act == "snapshot" and changes:
                upkept.place.snapshot(min(changes))
            if act == "other executor":
                executor = str(next(executors))
            if act == "lose" and changes:
                upkept.folder(executor).drop(STORE, min(changes))
            receipt = upkept.run(executor, **budget)
            on_chain = {(kg, e.head) for kg, e in upkept.place.entries.items()}
            behind = {kg for _, kg, _, _ in receipt.unfinished}
            assert {(kg, Head(v, a)) for _, kg, v, a in receipt.copies if kg not in behind} <= on_chain
        receipt = upkept.run(executor)
        assert receipt.unfinished == ()
        assert {kg: upkept.held(kg, executor) for kg in upkept.place.entries} == upkept.place.wanted


def test_copies_with_removed_keys_are_dropped_and_fetched_again(tmp_path: Path) -> None:
    """When the listed keys cannot decrypt copies any more, upkeep drops and reports them. With the old list it fetches
    them again.
    """
    upkept, keys = UpkeepMember(tmp_path), tmp_path / "keys"
    upkept.place.seal(0, {1: {"k": 1}, 2: {"k": 2}})
    upkept.log()
    upkept.run()
    upkept.home = replace(upkept.home, encryption_keys=f"file:{keys}")
    key = f"a = {base64.b64encode(bytes(32)).decode()}\n"
    keys.write_text(f"plain\n{key}")
    assert upkept.run(follows=()).missing == ()
    keys.write_text(key)
    assert sorted(upkept.run(follows=()).missing) == [(STORE, 1), (STORE, 2)]
    files = [path.read_bytes() for path in upkept.folder().path.rglob("*") if path.is_file()]
    assert not any(part_codec.IN_PLAIN in data for data in files)
    assert (upkept.held(1), upkept.held(2)) == (None, None)
    keys.write_text(f"plain\n{key}")
    assert upkept.run().missing == ()
    assert (upkept.held(1), upkept.held(2)) == ({"k": 1}, {"k": 2})
