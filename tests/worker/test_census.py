"""A census lists the usable copies of an executor and deletes what ended processes left."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.state.copies import journal_file
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log import paths
from riffle_spark.testing import home_of
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import folder_of
from tests.kit.worker.slot_member import Member, rows_of

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """Return a member whose store has counted some keys in two batches."""
    member = Member(tmp_path, aggregate(n=count()))
    for _ in range(2):
        member.feed(rows_of(("a", 1, 0), ("b", 1, 0), ("c", 1, 0)))
    return member


def census(member: Member, **changes: object) -> Census:
    """Take a census of the member and check that it has no error."""
    result = take_census(CensusOrder(member.home, **changes), "1")  # type: ignore[arg-type]
    assert result.error is None
    return result


def heads(member: Member, version: int) -> set[tuple[str, int, int, str]]:
    """Return the copies that a census reports if they were last folded at ``version``."""
    of = {kg: [link.head for link in e.chain if link.head.version == version] for kg, e in member.entries.items()}
    return {("totals", kg, *found[0]) for kg, found in of.items()}


def test_a_new_executor_gets_an_empty_folder(tmp_path: Path) -> None:
    """A new executor gets an empty folder, and its census has the disk and memory."""
    home = home_of("memory://census-new", tmp_path)
    result = take_census(CensusOrder(home), "1")
    assert result.error is None
    assert result.member == folder_of(home, "1").member
    assert (result.copies, result.sealed, result.folders_removed) == ((), (), 0)
    assert 0 < result.disk[0] <= 1 < result.disk[1]
    assert min(result.memory) > 10**6


def test_a_census_lists_copies_with_heads_and_sealed_deltas(member: Member) -> None:
    """A census lists each copy with its head, which is the base of the last batch, and the sealed deltas of both
    batches.
    """
    result = census(member)
    assert set(result.copies) == heads(member, 0)
    assert result.copies == tuple(sorted(result.copies))
    assert set(result.sealed) == {link.head.attempt for e in member.entries.values() for link in e.chain}
    assert folder_of(member.home, "1").sealed_path(1, result.sealed[1]).exists()


def test_a_census_omits_damaged_copies(member: Member) -> None:
    """Copies are not listed if their journal or a file of their parts is damaged or missing. Without the file they are
    deleted.
    """
    folder = folder_of(member.home, "1")
    (journal,) = folder.path.glob("stacks/totals/*.journal")
    whole = journal.read_bytes()
    journal.write_bytes(b"torn")
    journal_file._states.clear()  # private: as in a new process
    assert census(member).copies == ()
    journal.write_bytes(whole)
    assert len(census(member).copies) == 3
    for file in folder.sealed.iterdir():
        file.unlink()
    assert census(member).copies == ()
    assert folder.copies() == []


def strays(folder: Folder) -> list[Path]:
    """Create the files that a process leaves if it dies while it fetches a copy or seals a delta."""
    (journal,) = folder.path.glob("stacks/totals/*.journal")
    number, _, rest = journal.name.partition(".")
    next_journal = journal.with_name(f"{int(number) + 1:010d}.{rest}")
    next_journal.write_bytes(journal.read_bytes()[:50])
    half_written = folder.stacks("totals").new_file(3)
    fetched = folder.fetched / "0-1-aa.bb"
    part = folder.sealed / "7-1-aa.part"
    fetched.parent.mkdir()
    for path in (part, fetched, half_written):
        path.write_bytes(b"half")
    return [part, fetched, half_written, next_journal]


def test_a_census_deletes_unlisted_files_of_an_unused_folder(member: Member) -> None:
    """If no process uses a folder, a census deletes the files that no stack lists."""
    left = strays(folder_of(member.home, "1"))
    assert len(census(member).copies) == 3
    assert [path for path in left if path.exists()] == []


def test_partly_fetched_snapshots_stay_for_folder_cleanup_seconds(member: Member) -> None:
    """Partly fetched snapshots stay for `folder_cleanup_seconds`, so that the next upkeep can continue them."""
    store = folder_of(member.home, "1").path / "incoming" / "totals"
    parts = [store / f"000{n}.{paths.snapshot_id(3, '1-aa')}" for n in range(2)]
    store.mkdir(parents=True)
    for age, part in zip((120, 20), parts, strict=True):
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age,) * 2)
    census(member, folder_cleanup_seconds=60)
    assert [part.exists() for part in parts] == [False, True]


def test_a_census_deletes_no_files_while_a_slot_uses_the_folder(member: Member) -> None:
    """While a slot uses the folder, a census deletes no files."""
    folder = folder_of(member.home, "1")
    with folder.hold():
        left = strays(folder)
        assert len(census(member).copies) == 3
    assert [path for path in left if not path.exists() and not path.is_symlink()] == []


def abandoned(home: Home, executor: str, *, seconds: float) -> Path:
    """Create a folder that was last used the given seconds ago."""
    path = folder_of(home, executor).path
    os.utime(path / "owner", (time.time() - seconds,) * 2)
    return path


def test_unused_folders_of_ended_executors_are_removed(member: Member, tmp_path: Path) -> None:
    """Folders of ended executors are removed when they were unused for `folder_cleanup_seconds`. Recently used folders,
    those of live executors and those of other roots stay.
    """
    own_folder = folder_of(member.home, "1").path
    live = frozenset({f"{member.home.application}/{executor}" for executor in ("1", "live")})
    member.home = replace(member.home, live=live | {f"{member.home.application}/{n}" for n in ("old", "young")})
    old, young = (abandoned(member.home, name, seconds=at) for name, at in [("old", 120), ("young", 20)])
    alive = abandoned(member.home, "live", seconds=120)
    other = abandoned(home_of("memory://census-other", tmp_path), "old", seconds=120)
    member.home = replace(member.home, live=live)
    assert census(member, folder_cleanup_seconds=60).folders_removed == 1
    assert sorted(path for path in own_folder.parent.iterdir() if path.is_dir()) == sorted([own_folder, young, alive])
    assert not old.exists()
    assert other.exists()
    assert census(member, folder_cleanup_seconds=60).folders_removed == 0
    member.home = replace(member.home, live=frozenset())
    assert census(member, folder_cleanup_seconds=-1).folders_removed == 2
    assert own_folder.exists()


def test_an_old_folder_stays_while_a_late_task_holds_it(member: Member) -> None:
    """An old folder stays while a late task of an ended executor holds it."""
    everybody = replace(member.home, live=frozenset(f"{member.home.application}/{n}" for n in ("1", "late")))
    late = folder_of(everybody, "late")
    member.home = replace(member.home, live=frozenset({f"{member.home.application}/1"}))
    with late.hold():
        os.utime(late.path / "owner", (0, 0))
        assert census(member, folder_cleanup_seconds=60).folders_removed == 0
    assert late.path.exists()
    os.utime(late.path / "owner", (0, 0))
    assert census(member, folder_cleanup_seconds=60).folders_removed == 1


def test_a_failed_census_returns_the_error(tmp_path: Path) -> None:
    """A census that fails returns the error."""
    (tmp_path / "file").write_text("in the way")
    result = take_census(CensusOrder(home_of("memory://census-fails", tmp_path / "file" / "below")), "7")
    assert (result.executor, result.member, result.copies) == ("7", "", ())
    assert "local_dir" in (result.error or "")


def test_rack_and_tags_come_from_the_environment(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rack and the tags of a census come from the environment."""
    monkeypatch.setenv("RIFFLE_TAG_POOL", "spot")
    assert census(member).rack is None
    monkeypatch.setenv("RIFFLE_RACK", "r1")
    result = census(member)
    assert (result.rack, result.tags) == ("r1", {"pool": "spot"})


def claim_at_once(home: Home, executor: str, gate: object, queue: object) -> None:
    """Wait for the other processes, take a census and send its member."""
    gate.wait()  # type: ignore[attr-defined]
    result = take_census(CensusOrder(home), executor)
    queue.put((executor, result.member, result.error))  # type: ignore[attr-defined]


def test_executors_that_start_at_the_same_time_get_different_folders(tmp_path: Path) -> None:
    """Executors that start at the same time get different folders. Free folders are reused before new ones are made."""
    executors = [str(n) for n in range(4)]
    home = home_of("memory://census-race", tmp_path)
    before = frozenset(f"{home.application}/old{n}" for n in range(2))
    old = {folder_of(replace(home, live=before), f"old{n}").member for n in range(2)}
    home = replace(home, live=frozenset(f"{home.application}/{name}" for name in executors))
    gate, queue = SPAWN.Barrier(len(executors)), SPAWN.Queue()
    processes = [SPAWN.Process(target=claim_at_once, args=(home, name, gate, queue)) for name in executors]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in executors]
    for process in processes:
        process.join(60)
    assert {error for _, _, error in answers} == {None}
    members = {member for _, member, _ in answers}
    assert len(members) == len(executors)
    assert old < members
