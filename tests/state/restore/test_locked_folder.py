"""A process that hangs with the lock of a member's copies stops no other process, and dropped copies are never read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from riffle_spark.errors import LocalDiskError
from riffle_spark.state.copies import journal_file, part_files
from riffle_spark.state.log.manifest import EMPTY
from tests.kit.state.drawn_records import cut_to_last
from tests.kit.state.members import SCHEMA, Place

WAIT_SECONDS = 0.01


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a member and an empty store, whose writers wait only briefly for the lock."""
    monkeypatch.setattr(journal_file, "_LOCK_SECONDS", WAIT_SECONDS)  # private: a short wait
    place = Place(tmp_path / "member")
    place.seal(0, {1: {f"{n:04d}": n for n in range(500)}, 2: {"x": 1}})
    place.snapshot(1)
    return place


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """Hold the lock of the copies, like a process that stops while it writes."""
    path = place.folder.path / "stacks" / SCHEMA.store
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def zero_fetched(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Overwrite the next fetched files with zeros when they are read, until the returned list is empty."""
    read = Path.read_bytes
    left = [0] * times

    def read_bytes(path: Path) -> bytes:
        if path.parent.name == "fetched" and left:
            left.pop()
            path.write_bytes(bytes(path.stat().st_size))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    return left


def test_copies_are_restored_without_the_lock(place: Place) -> None:
    """Without the lock, a batch restores and reads a copy, and then removes its files, which no stack lists."""
    with locked(place):
        assert place.bring().restores == 2
        assert place.strays() == []
    assert place.bring().restores == 2
    assert place.bring().hits == 2
    assert place.strays() == []


def test_deltas_are_added_without_the_lock(place: Place) -> None:
    """Without the lock, a batch reads copies with new deltas, and the copies on disk advance when the lock is free."""
    place.bring()
    place.seal(1, {1: {"0000": None}, 2: {"y": 2}})
    with locked(place):
        assert place.bring().folds == 2
        assert place.bring().folds == 2
    assert place.bring().folds == 2
    assert place.bring().hits == 2


@pytest.mark.parametrize("is_snapshot", [True, False])
@pytest.mark.parametrize("is_behind", [True, False])
def test_a_damaged_copy_is_restored_without_the_lock(place: Place, is_snapshot: bool, is_behind: bool) -> None:
    """Without the lock, a damaged copy is restored and not read, although it cannot be dropped."""
    place.bring()
    (file,) = place.files(1 if is_snapshot else 2)
    file.write_bytes(b"\xff" * file.stat().st_size)
    if is_behind:
        place.seal(1, {1: {"0000": None}, 2: {"y": 2}})
    with locked(place):
        assert place.bring().restores >= 1
    assert place.bring().restores >= 1
    assert place.bring().hits == 2
    assert place.strays() == []


def test_a_copy_is_restored_again_if_the_fetched_file_is_damaged_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, a copy is restored again if the fetched file is damaged too."""
    place.seal(1, {1: {"0000": None}})
    place.bring()
    part_files._files.clear()  # as in a new process
    zero_fetched(monkeypatch, times=4)
    with locked(place):
        assert place.bring().restores >= 1
    assert place.bring().restores >= 1
    assert place.strays() == []


def test_a_disk_that_damages_each_restored_copy_counts_as_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that damages each restored copy raises LocalDiskError, so that the batch runs without this executor."""
    left = zero_fetched(monkeypatch, times=100)
    with pytest.raises(LocalDiskError, match="RIFFLE-0384") as caught:
        place.bring()
    assert caught.value.where.startswith(f"{place.folder.path}/fetched/")
    left.clear()
    assert place.bring().restores >= 1
    assert place.bring().hits == 2


def test_a_copy_of_a_key_group_without_state_is_not_read(place: Place) -> None:
    """Without the lock, a copy of a key-group that has no state after a rollback counts as absent."""
    place.bring()
    with locked(place):
        assert place.keeper(epoch=2).advance({1: EMPTY})[0] == {}
        assert place.keeper(epoch=2).prepare_caches({1: EMPTY}) == set()
    assert place.local(1) is not None
    assert place.keeper(epoch=2).advance({1: EMPTY})[0] == {}
    assert place.local(1) is None


def test_an_outdated_cache_counts_as_lost_without_the_lock(place: Place) -> None:
    """Without the lock, an outdated cache counts as lost, because its earlier rows are unknown."""
    place.bring()
    place.seal(1, {2: {"y": 2}}, epoch=2)
    cut = cut_to_last(place.entries[2], 1)
    with locked(place):
        assert place.keeper(epoch=2).prepare_caches({2: cut}) == {2}


def test_a_copy_that_cannot_be_removed_is_not_reported_as_removed(place: Place) -> None:
    """A drop without the lock raises LocalDiskError with the folder, and upkeep tries again."""
    place.bring()
    with locked(place), pytest.raises(LocalDiskError, match="RIFFLE-1730") as caught:
        place.folder.drop(SCHEMA.store, 1)
    assert str(place.folder.path) in caught.value.where
    assert place.local(1) is not None
    place.folder.drop(SCHEMA.store, 1)
    assert place.local(1) is None
