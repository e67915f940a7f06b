"""Files that other programs or people leave in local folders stay there and disturb nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from riffle_spark.state.copies import folder as folder_module
from riffle_spark.state.copies.abandoned import remove_folders, remove_leftovers
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.restore.copy_progress import IncomingSnapshots

FILES = (".DS_Store", "._7-1-aa", "Thumbs.db", "7-1-aa~", ".7-1-aa.swp", "#7-1-aa#", "notes.txt", "0007.old", "²", "-")
FOLDERS = ("lost+found", ".Trash-0", "8-1-bb", "0008.00000000000000000008-1-aa", "9.part", "m-old")


def litter(*folders: Path) -> list[Path]:
    """Create foreign files and folders in the given folders and return their paths."""
    left = []
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_text("not ours")
            left.append(folder / name)
        for name in FOLDERS:
            (folder / name / "owner").mkdir(parents=True)
            left.append(folder / name)
    return left


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A member's folder with two sealed deltas."""
    new_folder = claim_folder(tmp_path / "base", "app/1", ["app/1"])
    for version in (5, 6):
        assert new_folder.write_sealed_file(version, "1-aa", b"x")
    return new_folder


def test_sealed_deltas_are_counted_next_to_foreign_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed deltas are counted and removed correctly beside foreign files."""
    monkeypatch.setattr(folder_module, "_SPARE_FILES_MAX", 0)
    left = litter(folder.sealed)
    assert folder.sealed_attempts() == ("1-aa", "1-aa")
    assert folder.stacks("s").replace(1, None, Stack(Head(6, "1-aa")))
    folder.remove_unused_deltas()
    assert folder.sealed_attempts() == ("1-aa",)
    assert folder.sealed_path(6, "1-aa").exists()
    assert all(path.exists() for path in left)


def test_stacks_are_found_next_to_foreign_files(folder: Folder) -> None:
    """Stacks are found, replaced and dropped correctly beside foreign files."""
    left = litter(folder.path / "stacks", folder.path / "stacks" / "s")
    assert folder.stacks("s").replace(7, None, Stack(Head(6, "1-aa")))
    assert folder.copies() == [("s", 7)]
    for key_group in (7, 8, 9):
        folder.drop("s", key_group)
    assert folder.copies() == []
    assert all(path.exists() for path in left)


def test_an_interrupted_snapshot_download_resumes_next_to_foreign_files(folder: Folder) -> None:
    """An interrupted snapshot download resumes, or is discarded for another snapshot, beside foreign files."""
    address, snapshot = ("s", 7), Snapshot("00000000000000000003-1-aa", Head(3, "1-aa"), 10, 0, 1)
    IncomingSnapshots(folder.path).append_bytes(address, snapshot, 0, b"half")
    left = litter(folder.path / "incoming", folder.path / "incoming" / "s")
    assert IncomingSnapshots(folder.path).fetched_bytes(address, snapshot) == 4
    assert IncomingSnapshots(folder.path).fetched_bytes(address, snapshot._replace(id="00000000000000000004-1-aa")) == 0
    assert (
        IncomingSnapshots(folder.path).fetched_bytes(("s", 8), snapshot._replace(id="00000000000000000008-1-aa")) == 0
    )
    assert IncomingSnapshots(folder.path).fetched_bytes(address, snapshot) == 0
    assert all(path.exists() for path in left)


def test_a_takeover_leaves_foreign_files_alone(folder: Folder, tmp_path: Path) -> None:
    """A takeover and its clean-up handle the member's folder and leave foreign files in and beside it alone."""
    inside = [folder.path / name for name in ("", "copies", "copies/s", "sealed", "incoming", "incoming/s")]
    left = litter(tmp_path / "base", *inside[:1])
    litter(*inside[1:])
    assert folder.remove_unfinished(time.time() + 60)
    claimed_folder = claim_folder(tmp_path / "base", "app/2", ["app/2"])
    assert claimed_folder.path == folder.path
    remove_leftovers(claimed_folder.path, time.time() + 60)
    assert remove_folders(tmp_path / "base", ["app/2"], time.time() + 60) == 0
    assert all(path.exists() for path in left)


def test_a_directory_store_works_next_to_foreign_files(tmp_path: Path) -> None:
    """A directory store works on a mounted disk with lost+found and with foreign files among unfinished writes."""
    root = tmp_path / "root"
    (root / "lost+found").mkdir(parents=True)
    (root / "lost+found" / "#12345").write_text("a piece of something")
    left = litter(root / ".unfinished")
    for path in left:
        os.utime(path, (0, 0))
    store = DirectoryStore(root)
    assert store.put_if_absent("log/1", b"x")
    assert store.list("") == ["log/1"]
    store.delete(["log/1"])
    assert store.list("") == []
