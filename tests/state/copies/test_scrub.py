"""A scrub finds silently corrupted files between batches, a bounded number of bytes at a time."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import LocalDiskError
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.part_files import PartFiles, scrub_stacks
from riffle_spark.state.copies.stack import Stack, signature_of
from tests.kit.state.drawn_records import attempt
from tests.kit.state.members import SCHEMA, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a member with copies of five key-groups."""
    place = Place(tmp_path / "member")
    place.seal(0, {kg: {f"k{n}": n for n in range(200)} for kg in range(5)})
    for kg in range(5):
        place.snapshot(kg)
    place.bring()
    return place


def rot(file: Path) -> None:
    """Change a byte of a file and restore its times."""
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_file_missing_right_after_its_write_raises_local_disk_error(place: Place) -> None:
    """A file that is truncated or missing right after its write raises LocalDiskError, because the disk failed and not
    the copy or the object.
    """
    file = next(place.folder.path.glob("stacks/*/*.part"))
    stack = place.folder.stacks(SCHEMA.store).read(int(file.name[:4]))
    assert stack is not None
    part = next(part for part in stack.parts if part.file.endswith(file.name))
    os.truncate(file, part.length - 1)
    with pytest.raises(LocalDiskError, match="RIFFLE-0384"):
        PartFiles(place.folder.path).mark_verified(part)
    file.unlink()
    with pytest.raises(LocalDiskError, match="RIFFLE-0384"):
        PartFiles(place.folder.path).mark_verified(part)


def test_a_scrub_is_bounded_and_the_next_continues_after_it(place: Place) -> None:
    """A scrub of one byte checks one key-group, and five of them find the damaged one."""
    rot(place.files(3)[0])
    assert [scrub_stacks(place.folder, 1) for _ in range(5)].count([("totals", 3)]) == 1
    assert place.bring().restores == 1


@pytest.mark.parametrize("key_groups", [3, 4])
def test_successive_scrubs_check_each_key_group_once(tmp_path: Path, key_groups: int) -> None:
    """As many scrubs as there are key-groups check each key-group once, because each continues after the last."""
    place = Place(tmp_path)
    place.seal(0, {kg: {"k": kg} for kg in range(key_groups)})
    for kg in range(key_groups):
        place.snapshot(kg)
    place.bring()
    for damaged in range(key_groups):
        for file in place.files(damaged):
            file.write_bytes(b"x")
        dropped = [address for _ in range(key_groups) for address in scrub_stacks(place.folder, 1)]
        assert ("totals", damaged) in dropped
        place.bring()


@pytest.mark.parametrize("length", [1 << 45, 1 << 63])
def test_a_scrub_refuses_a_part_longer_than_its_file(place: Place, length: int) -> None:
    """A scrub refuses a part whose listed range exceeds its file."""
    stack = place.folder.stacks(SCHEMA.store).read(3)
    assert stack is not None
    files, part = PartFiles(place.folder.path), stack.parts[0]
    assert files.verify(part)
    assert not files.verify(part._replace(length=length))
    assert not files.verify(part._replace(start=length))


def test_a_change_with_restored_file_times_is_found_by_the_next_reader(place: Place) -> None:
    """The next reader finds a change whose file times were restored, because the inode's change time differs."""
    rot(place.files(3)[0])
    assert place.bring().restores == 1


def test_a_scrub_reports_no_damage_for_a_part_merged_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrub reports no damage if a slot merges a part while its stack is checked."""
    stacks, opening = place.folder.stacks(SCHEMA.store), Path.open
    before = stacks.read(2)
    assert before is not None
    part = place.folder.path / before.parts[0].file

    def overtaken(path: Path, *options):  # type: ignore[no-untyped-def]
        if path == part and path.exists():
            merged = stacks.new_file(2)
            shutil.copyfile(part, merged)
            now = before.parts[0]._replace(file=stacks.relative_name(merged))
            assert stacks.replace(2, before, Stack(before.head, (now,)))
            path.unlink(missing_ok=True)
        return opening(path, *options)

    monkeypatch.setattr(Path, "open", overtaken)
    assert scrub_stacks(place.folder) == []
    monkeypatch.undo()
    assert not part.exists()
    assert place.bring().restores == 0


@pytest.mark.parametrize("links", [0, 2])
def test_a_silently_changed_byte_is_not_merged_or_copied_to_a_snapshot(tmp_path: Path, links: int) -> None:
    """A byte that changes without a new file time is neither merged nor copied into a snapshot."""
    place = Place(tmp_path)
    place.seal(0, {1: {f"{n:08d}": n for n in range(20_000)}})
    place.snapshot(1)
    for version in range(1, links + 1):
        place.seal(version, {1: {f"{n:08d}": -n for n in range(12_000)}})
    place.bring()
    (file,) = [file for file in place.files() if "stacks" in file.parts]
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        offset = mapped.find((12_345).to_bytes(8, "little"))
        mapped[offset] = mapped[offset]  # marks the page as written, so that the file's time stays as it is now
        keeper = place.keeper()
        copies = keeper.advance(place.entries)[0]
        before = signature_of(str(file))
        mapped[offset] ^= 1
        assert signature_of(str(file)) == before
        with pytest.raises(DamagedCopy):
            keeper.merge(copies) if links else keeper.make_snapshot(1, place.entries[1], attempt(9))
        snapshot = keeper.make_snapshot(1, place.entries[1], attempt(9))
    assert 12_345 in pa.ipc.open_stream(snapshot.data).read_all()["v"].to_pylist()
