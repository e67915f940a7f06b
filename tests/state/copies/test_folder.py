"""A member's folder belongs to one executor, and another executor takes it over only when nothing uses it."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConfigError, LocalDiskError, OutOfDate, UnavailableError
from riffle_spark.state.copies import abandoned, disk
from riffle_spark.state.copies import folder as folder_module
from riffle_spark.state.copies.disk import default_local_dir
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.restore.copy_progress import IncomingSnapshots
from tests.kit.module_time import replace_time

SPAWN = multiprocessing.get_context("spawn")
SOON_SECONDS = 60.0


def test_folders_have_mode_0700_and_a_claim_corrects_old_ones(tmp_path: Path) -> None:
    """New folders have mode 0700 whatever the umask, and a claim corrects folders that an earlier version made."""
    base, before = tmp_path / "local" / "root", os.umask(0)
    try:
        folder = claim_folder(base, "app/1", ["app/1"]).path
        assert [path.stat().st_mode & 0o777 for path in (base, folder)] == [0o700, 0o700]
        assert base.parent.stat().st_mode & 0o777 == 0o777, "the folder above has another mode"
        for path in (base, folder):
            path.chmod(0o755)
        assert claim_folder(base, "app/2", ["app/2"]).path == folder
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (base, folder)] == [0o700, 0o700]


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
NOBODY = 65_534


def planted(base: Path, kind: str) -> None:
    """Create the folder of copies as another user of a shared folder could do before the executor."""
    base.parent.mkdir(parents=True)
    base.parent.chmod(0o1777)
    target = base if kind == "owned by another user" else base.parent / "elsewhere"
    target.mkdir(0o777)
    if kind != "owned by another user":
        base.symlink_to(target)
    if kind != "a link to a folder of this user":
        os.chown(target, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        pytest.param("owned by another user", "belongs to user 65534", marks=AS_ROOT),
        pytest.param("a link to a folder of another user", "is a symbolic link", marks=AS_ROOT),
        ("a link to a folder of this user", "is a symbolic link"),
    ],
)
def test_a_folder_that_another_user_created_is_refused(tmp_path: Path, kind: str, problem: str) -> None:
    """A claim writes nothing to such a folder, and the error names the folder and the setting."""
    base = tmp_path / "shared" / "root-log"
    planted(base, kind)
    with pytest.raises(LocalDiskError, match=problem) as caught:
        claim_folder(base, "app/1", ["app/1"])
    assert (caught.value.where, "local_dir" in caught.value.remedy) == (str(base), True)
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("kind", [pytest.param("owned by another user", marks=AS_ROOT), "a link", "writable by all"])
def test_a_members_folder_that_could_be_forged_is_set_aside(tmp_path: Path, kind: str) -> None:
    """A member's folder that another user could have forged is set aside, and the executor gets a new one."""
    forged = claim_folder(tmp_path, "app/1", ["app/1"]).path
    forged.joinpath("stacks").mkdir()
    if kind == "a link":
        forged.rename(tmp_path / "elsewhere")
        forged.symlink_to(tmp_path / "elsewhere")
    elif kind == "writable by all":
        forged.chmod(0o777)
    else:
        os.chown(forged, NOBODY, NOBODY)
    folder = claim_folder(tmp_path, "app/1", ["app/1"])
    assert folder.path != forged
    assert not (folder.path / "stacks").exists()
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_fifo_in_place_of_the_lock_file_raises_an_error(tmp_path: Path) -> None:
    """A claim raises an error if the lock file is a FIFO, which another user could have created."""
    os.mkfifo(tmp_path / ".claims")
    with pytest.raises(LocalDiskError, match="RIFFLE-0384"):
        claim_folder(tmp_path, "app/1", ["app/1"])


def test_nested_folders_for_copies_have_mode_0700(tmp_path: Path) -> None:
    """Each folder that is made for copies has mode 0700, whatever the umask."""
    before = os.umask(0)
    try:
        folder = claim_folder(tmp_path / "root", "app/1", ["app/1"])
        folder.write_sealed_file(1, "1-aa", b"rows")
        folder.new_fetched_path(1, "1-aa")
        folder.stacks("totals").new_file(3)
        IncomingSnapshots(folder.path).append_bytes(
            ("totals", 3), Snapshot("3-1-aa", Head(3, "1-aa"), 9, 0, 1), 0, b"rows"
        )
        new_folders = [path for path in folder.path.parent.rglob("*") if path.is_dir()]
    finally:
        os.umask(before)
    assert {path.name for path in new_folders} >= {"sealed", "fetched", "stacks", "totals", "incoming"}
    assert {path.stat().st_mode & 0o777 for path in new_folders} == {0o700}


def test_undecryptable_files_are_removed_with_their_copies(tmp_path: Path) -> None:
    """Copies in undecryptable files are removed with their files, but not while deltas are being put on stacks."""
    folder = claim_folder(tmp_path, "app/1", ["app/1"])
    for version, data in enumerate((b"old row", b"new row")):
        folder.write_sealed_file(version, "1-aa", data)
        part = StackedPart(f"sealed/{version}-1-aa", 0, 7, 0, 1, 1)
        assert folder.stacks("store").replace(version, None, Stack(Head(version, "1-aa"), (part,)))
    own = folder.stacks("store").new_file(2)
    own.write_bytes(b"old one, on no stack")
    with folder.protect_deltas():
        assert folder.remove_undecryptable(lambda head: head == b"new", 3) is None
    assert len(folder.copies()) == 2
    assert folder.remove_undecryptable(lambda head: head == b"new", 3) == [("store", 0)]
    assert folder.copies() == [("store", 1)]
    assert [path.name for path in folder.sealed.iterdir()] == ["1-1-aa"]
    assert not own.exists()


def test_a_new_executor_takes_over_the_folder_of_a_lost_executor(tmp_path: Path) -> None:
    """A new executor takes over the folder and the copies of a lost executor, which can no longer use them."""
    lost = claim_folder(tmp_path, "app/1", ["app/1"])
    (lost.path / "mark").write_text("warm")
    claimed_folder = claim_folder(tmp_path, "app/2", ["app/2"])
    assert (claimed_folder.path / "mark").read_text() == "warm"
    assert not lost.belongs_to_owner()
    with pytest.raises(OutOfDate, match="RIFFLE-0386"), lost.hold():
        pass
    with claimed_folder.hold():
        pass


def test_a_folder_that_a_late_task_holds_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new executor gets another folder while a late task of a dead executor still holds the old one."""
    monkeypatch.setattr(folder_module, "_CLAIM_PAUSE_SECONDS", 0.0)
    lost = claim_folder(tmp_path, "app/1", ["app/1"])
    with lost.hold():
        assert claim_folder(tmp_path, "app/2", ["app/2"]).path != lost.path
    assert claim_folder(tmp_path, "app/3", ["app/3", "app/2"]).path == lost.path


def test_an_executor_that_waits_for_its_folder_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one executor waits for a folder that a late task holds, others claim theirs. A second claim of the waiting
    executor gets the same folder.
    """
    lost, own = claim_folder(tmp_path, "app/1", ["app/1", "app/2"]), claim_folder(tmp_path, "app/2", ["app/1", "app/2"])
    live = ["app/2", "app/3"]
    pauses = threading.Semaphore(0)
    proceed = threading.Event()

    def pause(_: float) -> None:
        pauses.release()
        assert proceed.wait(SOON_SECONDS)

    replace_time(monkeypatch, folder_module, sleep=pause)
    with lost.hold(), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(claim_folder, tmp_path, "app/3", live) for _ in range(2)]
        assert all(pauses.acquire(timeout=SOON_SECONDS) for _ in waiting)
        claimed = claim_folder(tmp_path, "app/2", live)
        assert not any(claim.done() for claim in waiting)
        proceed.set()
        paths = {claim.result().path for claim in waiting}
    assert claimed.path == own.path
    assert len(paths) == 1
    assert lost.path not in paths


def test_executors_start_in_new_folders_if_a_process_hangs_in_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a process hangs with the lock of all claims, executors start in new folders, which they find again. Free
    folders stay untouched.
    """
    left = claim_folder(tmp_path, "app/1", ["app/1"])
    monkeypatch.setattr(abandoned, "_LOCK_TRIES", 2)
    with (tmp_path / ".claims").open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        new_folder = claim_folder(tmp_path, "app/2", ["app/2"])
        assert claim_folder(tmp_path, "app/2", ["app/2"]).path == new_folder.path != left.path
    assert left.belongs_to_owner()


def test_the_most_recently_used_free_folder_is_taken(tmp_path: Path) -> None:
    """A new executor takes the free folder that was used last, because it has the warmest copies."""
    owners = [f"app/{n}" for n in range(4)]
    folders = [claim_folder(tmp_path, owner, owners) for owner in owners]
    for age, folder in enumerate(folders):
        os.utime(folder.path / "owner", (1000 - age,) * 2)
    with folders[2].hold():
        pass
    claimed_paths = [claim_folder(tmp_path, f"new/{n}", ["new/0", "new/1", "new/2"]).path for n in range(3)]
    assert claimed_paths == [folders[n].path for n in (2, 0, 1)]


def test_a_takeover_deletes_unlisted_files_and_keeps_complete_copies(tmp_path: Path) -> None:
    """A takeover deletes files that no stack lists, and keeps complete copies."""
    lost = claim_folder(tmp_path, "app/1", ["app/1"])
    stacks = lost.stacks("s")
    whole, half = stacks.new_file(7), stacks.new_file(7)
    for path in (whole, half):
        path.write_bytes(b"x")
    assert stacks.replace(7, None, Stack(Head(1, "1-aa"), (StackedPart(stacks.relative_name(whole), 0, 1, 0, 1, 1),)))
    lost.write_sealed_file(1, "1-aa", b"x")
    (lost.sealed / "2-1-bb.part").write_bytes(b"x")
    claimed_folder = claim_folder(tmp_path, "app/2", ["app/2"])
    assert claimed_folder.path == lost.path
    assert (whole.exists(), half.exists()) == (True, False)
    assert claimed_folder.sealed_attempts() == ("1-aa",)
    assert claimed_folder.copies() == [("s", 7)]


def test_a_folder_that_was_just_claimed_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that waited for the lock of all claims does not take a folder that a new owner has just claimed,
    although the previous owner's process has ended.
    """
    live, runs = ["app/1", "app/2", "app/3"], abandoned.process_name(os.getpid())
    number, _, machine = runs.split()
    left = claim_folder(tmp_path, "app/1", live, f"{number} 1 {machine}")
    waited: list[Path] = []

    @contextmanager
    def somebody_waits(base: Path) -> Iterator[list[Path]]:
        with abandoned.lock_claims(base) as owners:
            yield owners
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "lock_claims", abandoned.lock_claims)
            waited.append(claim_folder(base, "app/3", live, runs).path)

    monkeypatch.setattr(folder_module, "lock_claims", somebody_waits)
    claimed_folder = claim_folder(tmp_path, "app/2", live, runs)
    assert claimed_folder.path == left.path != waited[0]
    assert claimed_folder.belongs_to_owner()


def test_a_folder_with_an_empty_owner_file_is_free(tmp_path: Path) -> None:
    """A folder is free if a crash left an empty owner file in it."""
    lost = claim_folder(tmp_path, "app/1", ["app/1"])
    (lost.path / "owner").write_text("")
    assert claim_folder(tmp_path, "app/2", ["app/2"]).path == lost.path


def compete(base: Path, owner: str, live: Sequence[str], seconds: float) -> None:
    """Claim a folder and work in it again and again, and fail if another process is in it at the same time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        folder = claim_folder(base, owner, live)
        try:
            with folder.hold():
                (folder.path / "inside").write_text(owner)
                time.sleep(0.001)
                assert (folder.path / "inside").read_text() == owner
        except OutOfDate:
            continue


def test_competing_executors_never_share_a_folder(tmp_path: Path) -> None:
    """Executors that consider each other dead never hold the same folder at the same time."""
    for owner in ("app/old1", "app/old2"):
        claim_folder(tmp_path, owner, ["app/old1", "app/old2"])
    owners = [f"app/{n}" for n in range(3)]
    processes = [SPAWN.Process(target=compete, args=(tmp_path, owner, [owner], 0.7)) for owner in owners]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_the_attempt_after_a_folder_was_deleted_claims_a_new_one(tmp_path: Path) -> None:
    """Every use of a deleted folder raises OutOfDate, and the next attempt claims a new one."""
    deleted_folder = claim_folder(tmp_path, "app/1", ["app/1"])
    shutil.rmtree(deleted_folder.path)
    for use in (deleted_folder.hold, deleted_folder.lock_for_upkeep, deleted_folder.protect_deltas):
        with pytest.raises(OutOfDate, match="RIFFLE-0387"), use():
            pass
    assert not deleted_folder.path.exists()
    assert not deleted_folder.belongs_to_owner()
    with claim_folder(tmp_path, "app/1", ["app/1"]).hold():
        pass


def test_a_disk_error_names_the_folder_and_the_setting(tmp_path: Path) -> None:
    """A disk error is raised as an UnavailableError with the folder and the setting, not as a bare OSError."""
    folder = claim_folder(tmp_path, "app/1", ["app/1"])
    for name, use in (("upkeep", folder.lock_for_upkeep), ("advancing", folder.protect_deltas)):
        (folder.path / name).mkdir()
        with pytest.raises(UnavailableError, match="RIFFLE-0384") as caught, use():
            pass
        assert "local_dir" in caught.value.remedy
        assert caught.value.where == str(folder.path)


def test_an_error_raised_by_the_caller_in_a_folder_is_not_converted(tmp_path: Path) -> None:
    """An error that a caller raises while it holds a folder is not converted to an error of the folder."""
    with pytest.raises(FileNotFoundError, match="elsewhere"), claim_folder(tmp_path, "app/1", ()).hold():
        raise FileNotFoundError("elsewhere")


def test_unlisted_deltas_are_deleted_except_recent_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas that no stack lists are deleted, except those as new as the newest stack and a few sealed ones."""
    monkeypatch.setattr(folder_module, "_SPARE_FILES_MAX", 2)
    folder = claim_folder(tmp_path, "app/1", ())
    for version in range(9):
        assert folder.write_sealed_file(version, "1-aa", b"x" * 9)
        folder.new_fetched_path(version, "1-bb").write_bytes(b"y")
    part = StackedPart("sealed/3-1-aa", 0, 9, 0, 1, 1)
    assert folder.stacks("s").replace(1, None, Stack(Head(7, "1-aa"), (part,)))
    folder.remove_unused_deltas()
    assert sorted(path.name for path in folder.sealed.iterdir()) == [f"{n}-1-aa" for n in (3, 6, 7, 8)]
    assert sorted(path.name[:4] for path in folder.fetched.iterdir()) == ["7-1-", "8-1-"]
    refused = Folder(tmp_path / "absent", "app/1")
    assert not refused.write_sealed_file(1, "1-aa", b"x")
    refused.remove_unused_deltas()


def test_deltas_about_to_be_added_to_a_stack_survive_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deltas that are about to be put on a stack stay on a failing disk, also if the lock file cannot be read."""
    folder = claim_folder(tmp_path, "app/1", ())
    assert folder.stacks("s").replace(1, None, Stack(Head(9, "1-aa")))
    fetched = folder.new_fetched_path(1, "1-bb")
    fetched.write_bytes(b"x")
    opened, refused = Path.open, {"a"}

    def refusing(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if path.name == "advancing" and mode in refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return opened(path, mode, *arguments, **options)

    with folder.protect_deltas():
        monkeypatch.setattr(Path, "open", refusing)
        folder.remove_unused_deltas()
        assert fetched.exists()
        refused.add("rb")
        folder.remove_unused_deltas()
        assert fetched.exists()
    refused.clear()
    folder.remove_unused_deltas()
    assert not fetched.exists()


def test_files_listed_by_stacks_of_any_store_are_kept(tmp_path: Path) -> None:
    """Files that a stack of any store lists survive both the removal of unused deltas and a takeover."""
    folder, listed = claim_folder(tmp_path, "app/1", ()), set[Path]()
    for number, store in enumerate(("a", "b", "c")):
        own, fetched = folder.stacks(store).new_file(1), folder.new_fetched_path(number, "1-bb")
        for path in (own, fetched):
            path.write_bytes(b"x")
        parts = tuple(StackedPart(str(path.relative_to(folder.path)), 0, 1, 0, 1, 1) for path in (own, fetched))
        assert folder.stacks(store).replace(1, None, Stack(Head(9, "1-aa"), parts))
        listed |= {own, fetched}
    for path in (folder.stacks("a").new_file(1), folder.new_fetched_path(1, "1-cc")):
        path.write_bytes(b"x")
    folder.remove_unused_deltas()
    assert claim_folder(tmp_path, "app/2", ()).path == folder.path
    assert {*folder.path.glob("stacks/*/*.part"), *folder.fetched.iterdir()} == listed


def test_deltas_sealed_after_a_rollback_are_kept_and_older_ones_deleted(tmp_path: Path) -> None:
    """After a rollback, newly sealed deltas of lower versions are kept, and old ones of higher versions are deleted."""
    folder = claim_folder(tmp_path, "app/1", ())
    assert folder.stacks("s").replace(1, None, Stack(Head(50, "1-aa")))
    for version in (11, 12):
        assert folder.write_sealed_file(version, "2-bb", bytes(300 << 10))
    assert folder.write_sealed_file(49, "1-aa", bytes(300 << 10))
    folder.remove_unused_deltas()
    assert sorted(path.name for path in folder.sealed.iterdir()) == ["11-2-bb", "12-2-bb"]


def test_without_a_stack_only_the_newest_256_kib_of_deltas_are_kept(tmp_path: Path) -> None:
    """Without any stack, only the newest deltas up to 256 KiB are kept."""
    folder = claim_folder(tmp_path, "app/1", ())
    for version in range(300):
        assert folder.write_sealed_file(version, "1-aa", b"x" * 2048)
    folder.remove_unused_deltas()
    versions = sorted(int(path.name.partition("-")[0]) for path in folder.sealed.iterdir())
    assert versions == list(range(171, 300)), "the newest deltas up to 256 KiB are kept"


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        (rb"none / xfs rw 0 0|server:/x {}/my\040disk nfs4 rw 0 0", "nfs4"),
        (rb"none / xfs rw 0 0|a {}/my\040disk nfs4 rw 0 0|b {}/my\040disk ext4 rw 0 0", ""),
        (b"none / xfs rw 0 0|x /media/\xe9t\xe9 vfat rw 0 0|a {}/my\\040disk cifs rw 0 0", "cifs"),
    ],
    ids=["a blank", "mounted over", "another mount that is not UTF-8"],
)
def test_mounts_with_blanks_or_undecodable_names_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: bytes, kind: str
) -> None:
    """The mount table is parsed with escaped blanks and undecodable bytes, and the last mount at a path counts."""
    file = tmp_path / "mounts"
    file.write_bytes(mounts.replace(b"{}", bytes(tmp_path)).replace(b"|", b"\n") + b"\n")
    monkeypatch.setattr(disk, "_MOUNTS", file)
    if kind:
        with pytest.raises(ConfigError, match=kind):
            claim_folder(tmp_path / "my disk" / "state", "app/1", ())
    else:
        claim_folder(tmp_path / "my disk" / "state", "app/1", ())


def test_blocks_reserved_for_root_count_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that a file system reserves for root count as used."""
    statistics = os.statvfs(tmp_path)
    kept_back = os.statvfs_result((4096, 4096, 100, 30, 10, *statistics[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: kept_back)
    assert disk.read_disk_use(tmp_path) == (70 / 80, 80 * 4096)


def test_the_disk_probe_removes_its_file(tmp_path: Path) -> None:
    """The disk probe writes and removes a file of 1 MiB, also if an earlier probe left one."""
    folder = claim_folder(tmp_path, "app/1", ())
    before = sorted(folder.path.rglob("*"))
    folder.probe_disk()
    (folder.path / "probe").write_bytes(b"left")
    folder.probe_disk()
    assert sorted(folder.path.rglob("*")) == before


def test_the_local_folder_defaults_to_sparks_first_local_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local folder defaults to Spark's local directories, of which the first is taken."""
    for variable in ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LOCAL_DIRS", "/one,/two")
    assert default_local_dir(os.environ) == "/one"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/spark")
    assert default_local_dir(os.environ) == "/spark"
