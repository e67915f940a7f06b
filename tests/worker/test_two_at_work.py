"""Slots and upkeep use one folder at the same time. Neither deletes files that the other needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.restore.copy_progress import read_head
from tests.kit.state.members import Place
from tests.kit.worker.upkeep_member import STORE, UpkeepMember


def before_the_last_get(place: Place, count: int, work: Callable[[], object]) -> None:
    """Call ``work`` during the last of ``count`` gets."""
    original, seen = place.store.get, 0

    def get(name, start=0, length=None):  # type: ignore[no-untyped-def]
        nonlocal seen
        seen, data = seen + 1, original(name, start, length)
        if seen == count:
            work()
        return data

    place.store.get = get  # type: ignore[method-assign]


def merge(stacks: Stacks, before: Stack | None) -> None:
    """Replace the only part of a stack by a copy of its file, as a merge in another process does."""
    assert before is not None
    (part,), path = before.parts, stacks.new_file(1)
    shutil.copyfile(path.parents[2] / part.file, path)
    assert stacks.replace(1, before, Stack(before.head, (part._replace(file=stacks.relative_name(path)),)))


def test_a_slot_keeps_the_deltas_that_upkeep_fetched(tmp_path: Path) -> None:
    """A slot keeps the deltas that upkeep fetched, before they are in a stack."""
    upkept = UpkeepMember(tmp_path)
    upkept.place.seal(0, {1: {"a": 0}, 2: {f"k{n}": n for n in range(500)}})
    upkept.run()
    for version in range(1, 5):
        upkept.place.seal(version, {1: {"a": version}, 2: {"b": version}})
    entries = upkept.place.entries
    upkept.run(follows=upkept.follows({1: entries[1]}))
    before_the_last_get(upkept.place, 4, upkept.folder().remove_unused_deltas)
    assert upkept.run(follows=upkept.follows({2: entries[2]})).folds == 4
    upkept.folder().remove_unused_deltas()
    assert upkept.held(2) == upkept.place.wanted[2]
    assert upkept.run(follows=upkept.follows()).restores == 0


def test_a_slot_keeps_the_deltas_of_the_restore_of_another_slot(tmp_path: Path) -> None:
    """A slot keeps the deltas that another slot fetched, while that slot still fetches snapshots. The next batch
    restores nothing.
    """
    place = Place(tmp_path)
    place.seal(0, {1: {"a": 0}, 2: {"b": 0}})
    place.snapshot(2)
    for version in range(1, 4):
        place.seal(version, {1: {"a": version}, 2: {f"b{version}": version}})
    place.keeper().advance({1: place.entries[1]})

    def tidy(write: Callable[[bytes], object]) -> Callable[[bytes], object]:
        place.folder.remove_unused_deltas()
        return write

    original = place.store.copy_to
    place.store.copy_to = lambda name, start, length, write: original(name, start, length, tidy(write))  # type: ignore[method-assign]
    assert place.keeper().advance({2: place.entries[2]})[1].restores == 1
    assert place.bring().restores == 0


def test_a_stack_merged_during_its_check_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a merge replaces the parts of a stack during a check of them, the copy is not reported as damaged."""
    place = Place(tmp_path)
    place.seal(0, {1: {"a": 1}})
    place.snapshot(1)
    place.bring()
    stacks, looking = place.folder.stacks(STORE), Path.stat
    before = stacks.read(1)
    assert before is not None
    part = place.folder.path / before.parts[0].file

    def overtaken(path: Path, **options: bool):  # type: ignore[no-untyped-def]
        if path == part:
            merge(stacks, before)
        return looking(path, **options)

    monkeypatch.setattr(Path, "stat", overtaken)
    assert read_head(place.folder, Folder.stacks(place.folder, STORE), 1) == before.head
    monkeypatch.undo()
    assert not part.exists()
    assert place.bring().restores == 0


def test_a_merge_that_fails_on_a_full_disk_removes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that fails on a full disk removes its unfinished file."""
    place = Place(tmp_path)
    for version in range(3):
        place.seal(version, {1: {f"{version}.{n}": n for n in range(1000)}})
    keeper = place.keeper()
    opened = keeper.advance(place.entries)[0]
    writing = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        writing(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        keeper.merge(opened)
    monkeypatch.undo()
    assert place.strays() == []
    assert place.bring().restores == 0


def test_a_slot_retries_while_its_stack_is_merged_repeatedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process merges a stack again and again while a slot opens it, the slot tries again and restores
    nothing.
    """
    place = Place(tmp_path)
    place.seal(0, {1: {"a": 1}})
    place.snapshot(1)
    place.bring()
    stacks, looking, left = place.folder.stacks(STORE), os.stat, 2

    def overtaken(path, **options):  # type: ignore[no-untyped-def]
        nonlocal left
        if left and str(path).endswith(".part"):
            left -= 1
            monkeypatch.setattr(os, "stat", looking)
            merge(stacks, stacks.read(1))
            monkeypatch.setattr(os, "stat", overtaken)
        return looking(path, **options)

    monkeypatch.setattr(os, "stat", overtaken)
    assert place.bring().restores == 0
    assert left == 0


def test_a_restore_overtaken_by_another_process_leaves_no_file(tmp_path: Path) -> None:
    """If another process completes a copy during a restore, the restore leaves no unlisted file."""
    place = Place(tmp_path)
    overtaken_in_a_restore(place, lambda: place.keeper().advance(place.entries))
    assert place.strays() == []
    assert place.bring().restores == 0


def test_upkeep_overtaken_by_a_slot_counts_no_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a slot completes a copy first, upkeep deletes its own one and counts no restore."""
    upkept = UpkeepMember(tmp_path)
    for version in range(2):
        upkept.place.seal(version, {1: {"a": version}})
        upkept.place.snapshot(1)
        assert version or upkept.run().restores == 1
    switching = Stacks.replace

    def overtaken(stacks: Stacks, key_group: int, before: Stack | None, after: Stack) -> bool:
        monkeypatch.undo()
        assert upkept.place.keeper(folder=upkept.folder()).advance(upkept.place.entries)[1].restores == 1
        return switching(stacks, key_group, before, after)

    monkeypatch.setattr(Stacks, "replace", overtaken)
    receipt = upkept.run()
    assert receipt.restores == 0
    assert upkept.is_warm(receipt)


def test_dropping_a_damaged_copy_keeps_the_fetches_of_another_slot(tmp_path: Path) -> None:
    """If two attempts restore a copy and the first one is damaged, the second one continues, and no unlisted file is
    left.
    """
    place = Place(tmp_path)

    def damaged_meanwhile() -> None:
        place.keeper().advance(place.entries)
        (file,) = place.files()
        os.truncate(file, 1)
        assert place.keeper().advance(place.entries)[1].restores == 1

    overtaken_in_a_restore(place, damaged_meanwhile)
    assert place.strays() == []
    assert place.bring().restores == 0


def overtaken_in_a_restore(place: Place, meanwhile: Callable[[], object]) -> None:
    """Restore a copy from a snapshot, and call ``meanwhile`` during the fetch."""
    place.seal(0, {1: {"a": 1}})
    place.snapshot(1)
    original = place.store.copy_to

    def overtaken(*arguments):  # type: ignore[no-untyped-def]
        place.store.copy_to = original  # type: ignore[method-assign]
        meanwhile()
        return original(*arguments)

    place.store.copy_to = overtaken  # type: ignore[method-assign]
    place.bring()
