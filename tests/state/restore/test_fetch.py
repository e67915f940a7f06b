"""Missing parts of stacks are fetched into files, in parallel ranges, completely or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError, LocalDiskError, UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.restore import reader
from riffle_spark.state.restore.copy_progress import IncomingSnapshots
from riffle_spark.state.restore.reader import choose_range_bytes, split_into_ranges
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import Fault
from tests.kit.state.members import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a member that lacks copies of six key-groups with large or small snapshots, chains, or both."""
    monkeypatch.setattr(reader, "RANGE_BYTES", 2_000)
    place = Place(tmp_path / "member")
    large = {f"{n * n:x}": n * 2_654_435_761 % 2**62 for n in range(1_500)}
    place.seal(0, {1: dict(large), 2: {"a": 1}, 3: dict(large), 4: {"b": 1}, 5: dict(large)})
    for key_group in (1, 2, 3):
        place.snapshot(key_group)
    place.seal(1, {kg: {"later": kg} for kg in (1, 2, 4, 6)})
    place.store.calls.clear()
    return place


def test_a_member_without_copies_fetches_large_snapshots_in_ranges(place: Place) -> None:
    """A member without copies fetches large snapshots in ranges, each byte once, and restores the committed state."""
    brought = place.bring()
    assert (brought.restores, place.strays()) == (6, [])
    lengths = [entry.snapshot.length for entry in place.entries.values() if entry.snapshot]
    assert place.reader.totals.snapshot_bytes == sum(lengths)
    assert place.reader.totals.fetched_snapshots == 3
    ranged = [name for _, name in place.store.calls if name.startswith("totals/key_group=0001")]
    assert len(ranged) == len(list(split_into_ranges(max(lengths), choose_range_bytes(sum(lengths))))) > 3


@pytest.mark.parametrize(
    ("kind", "skip", "range_bytes"),
    [
        ("truncated", 0, 2_000),
        ("flipped", 5, 2_000),
        ("missing", 1, 2_000),
        ("unavailable", 5, 2_000),
        ("truncated", 0, 1 << 20),
        ("missing", 0, 1 << 20),
    ],
)
def test_a_failed_range_fails_the_restore_and_removes_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str, skip: int, range_bytes: int
) -> None:
    """If a range fails, the restore raises the error, removes its files, and succeeds the next time."""
    monkeypatch.setattr(reader, "RANGE_BYTES", range_bytes)
    times = None if kind in {"truncated", "flipped"} else 1  # damaged bytes are fetched twice
    fault = Fault(kind, "get", name="totals/key_group=0003", skip=skip, times=times)  # type: ignore[arg-type]
    place.store.script(fault)
    with pytest.raises((CorruptStateError, UnavailableError)) as caught:
        place.bring()
    assert caught.value.where.startswith("totals/key_group=0003")
    assert place.strays() == []
    place.store.heal()
    assert place.bring().restores == 6


@pytest.mark.parametrize("range_bytes", [2_000, 1 << 20])
@pytest.mark.parametrize("kind", ["truncated", "flipped"])
def test_a_snapshot_corrupted_in_transit_is_fetched_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str, range_bytes: int
) -> None:
    """A snapshot that is corrupted in transit is fetched again, in one range or several, and the restore succeeds."""
    monkeypatch.setattr(reader, "RANGE_BYTES", range_bytes)
    place.store.script(Fault(kind, "get", name="totals/key_group=0003"))  # type: ignore[arg-type]
    assert place.bring().restores == 6
    assert place.strays() == []
    snapshots = [entry.snapshot for entry in place.entries.values() if entry.snapshot]
    assert place.reader.totals.fetched_snapshots == len(snapshots) + 1


HARMS: dict[str, Callable[[Path], None]] = {
    "loses its end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "has zeros in it": lambda path: zero(path, 2_100, 50),
    "is gone": Path.unlink,
}


def zero(path: Path, start: int, length: int) -> None:
    """Overwrite some bytes of a file with zeros."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(length))


def harm_one(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]) -> None:
    """Damage the first snapshot that is read back from the disk."""
    read, left = Path.read_bytes, [harm]

    def read_bytes(path: Path) -> bytes:
        if left and path.suffix == ".part":
            left.pop()(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


@pytest.mark.parametrize("harm", HARMS)
def test_a_disk_that_loses_fetched_bytes_raises_local_disk_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A disk that loses fetched bytes raises LocalDiskError, blames no object, and the next restore succeeds."""
    harm_one(monkeypatch, HARMS[harm])
    with pytest.raises(LocalDiskError, match="RIFFLE-0384") as caught:
        place.bring()
    assert caught.value.where.startswith(str(place.folder.path))
    assert place.strays() == []
    assert place.bring().restores == 6


def test_a_file_that_reads_wrong_once_raises_local_disk_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that reads wrong once and right the second time raises LocalDiskError."""
    read, left = Path.read_bytes, [1]

    def read_bytes(path: Path) -> bytes:
        data = read(path)
        return bytes(len(data)) if path.suffix == ".part" and left and left.pop() else data

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(LocalDiskError, match="RIFFLE-0384"):
        place.bring()
    assert place.bring().restores == 6


def test_a_restore_whose_file_is_deleted_raises_local_disk_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore whose file is deleted meanwhile raises LocalDiskError, and the next one succeeds."""
    touch, touched_files = Path.touch, list[Path]()

    def touched(path: Path) -> None:
        touch(path)
        touched_files.append(path)
        if len(touched_files) == 1:
            path.unlink()

    monkeypatch.setattr(Path, "touch", touched)
    with pytest.raises(LocalDiskError, match="RIFFLE-0384"):
        place.bring()
    assert place.bring().restores == 6


@given(st.integers(0, 1_000_000_000), st.integers(0, 2_000_000_000))
def test_ranges_cover_a_snapshot_exactly(length: int, others: int) -> None:
    """Ranges cover a snapshot exactly. Each has at most 1.5 times the chosen size, and at least half of it unless it is
    the only one.
    """
    most = choose_range_bytes(length + others)
    ranges = list(split_into_ranges(length, most))
    assert [start for start, _ in ranges] == [0, *itertools.accumulate(size for _, size in ranges)][: len(ranges)]
    assert sum(size for _, size in ranges) == length
    assert all(2 * size <= 3 * most for _, size in ranges)
    assert len(ranges) <= 1 or all(2 * size >= most for _, size in ranges)


def test_a_partly_fetched_snapshot_that_is_too_long_is_fetched_anew(tmp_path: Path) -> None:
    """The file of a partly fetched snapshot counts, unless it is longer than the snapshot."""
    snapshot = Snapshot(paths.snapshot_id(7, attempt(7)), Head(7, attempt(7)), 10, 1, 1)
    address = ("totals", 3)
    IncomingSnapshots(tmp_path).append_bytes(address, snapshot, 0, b"123456")
    assert IncomingSnapshots(tmp_path).fetched_bytes(address, snapshot) == 6
    IncomingSnapshots(tmp_path).append_bytes(address, snapshot, 6, b"789012")
    assert IncomingSnapshots(tmp_path).fetched_bytes(address, snapshot) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
