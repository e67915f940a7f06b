"""Damaged or missing copies and objects are restored or named, and leave no files behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.errors import CorruptStateError, UnavailableError
from riffle_spark.state.copies import journal_file
from riffle_spark.state.copies.journal import encode_entry, first_seed
from riffle_spark.state.log import paths
from tests.kit.state.drawn_records import attempt
from tests.kit.state.faulty_store import Fault
from tests.kit.state.members import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a member and an empty store."""
    return Place(tmp_path / "member")


@pytest.mark.parametrize(("bytes_left", "has_snapshot"), [(b"", False), (b"\xff" * 8192, True), (None, True)])
def test_a_damaged_copy_is_restored_from_the_store(place: Place, bytes_left: bytes | None, has_snapshot: bool) -> None:
    """An emptied, overwritten or truncated copy is restored from the store."""
    place.seal(0, {1: {f"{n:04d}": n for n in range(2000)}, 2: {"x": 1}})
    if has_snapshot:
        place.snapshot(1)
    place.bring()
    (file,) = place.files()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if bytes_left is None else bytes_left)
    place.seal(1, {1: {"0000": None}})
    assert place.bring().restores >= 1
    assert place.bring().restores == 0
    assert place.strays() == []


@pytest.mark.parametrize("bytes_left", [b"", b"0" * 17])
def test_copies_with_a_torn_journal_are_restored(place: Place, bytes_left: bytes) -> None:
    """A process that has not read a torn journal restores all its copies."""
    place.seal(0, {1: {"a": 1}})
    place.bring()
    (path,) = place.folder.path.glob("stacks/totals/*.journal")
    path.write_bytes(bytes_left)
    journal_file._states.clear()  # private: as in a new process
    assert place.bring().restores == 1
    assert place.bring().restores == 0


def test_a_journal_of_another_store_is_not_used(place: Place) -> None:
    """A journal of another store is ignored, because its checksums include the store's name."""
    place.seal(0, {1: {"a": 1}, 2: {"b": 1}})
    place.bring()
    (path,) = place.folder.path.glob("stacks/totals/*.journal")
    changes = place.folder.stacks("totals").listing().all_changes()
    path.write_bytes(encode_entry(changes, first_seed("visits"))[0])
    journal_file._states.clear()  # private: as in a new process
    assert place.bring().restores == 2


def test_a_failed_restore_removes_unfinished_copies(place: Place) -> None:
    """A restore that misses an object removes unfinished copies, and the next restore succeeds."""
    place.seal(0, {1: {"a": 1}, 2: {"b": 1}})
    place.seal(1, {2: {"b": 2}})
    place.store.script(Fault("missing", name="delta/" + "0" * 19 + "1"))
    with pytest.raises(CorruptStateError, match="RIFFLE-0462") as caught:
        place.bring()
    assert caught.value.where == paths.delta_name(1, attempt(1))
    assert place.strays() == []
    assert place.bring().restores == 2


def test_a_store_that_does_not_answer_raises_unavailable_error(place: Place) -> None:
    """A store that does not answer raises UnavailableError, and the next call succeeds."""
    place.seal(0, {1: {"a": 1}})
    place.store.script(Fault("unavailable", "get", times=2))
    for _ in range(2):
        with pytest.raises(UnavailableError):
            place.bring()
    assert place.bring().restores == 1


@pytest.mark.parametrize("kind", ["truncated", "flipped"])
@pytest.mark.parametrize("name", ["totals/", "delta/"])
def test_an_object_corrupted_in_transit_is_fetched_again(place: Place, kind: str, name: str) -> None:
    """An object that is corrupted in transit is fetched again, and the restore succeeds."""
    place.seal(0, {1: {"a": 1}})
    place.snapshot(1)
    place.seal(1, {1: {"b": 2}})
    place.store.script(Fault(kind, name=name))  # type: ignore[arg-type]
    assert place.bring().restores == 1
    assert sorted(call for call in place.store.calls if call[0] == "get" and call[1].startswith(name)) == 2 * [
        ("get", place.entries[1].chain[0].object if name == "delta/" else snapshot_object(place))
    ]
    assert place.bring().hits == 1
    assert place.strays() == []


@pytest.mark.parametrize("kind", ["truncated", "flipped"])
@pytest.mark.parametrize("name", ["totals/", "delta/"])
def test_a_damaged_object_is_named_and_does_not_change_the_copy(place: Place, kind: str, name: str) -> None:
    """A damaged delta or snapshot raises an error that names the object, and the copy does not change."""
    place.seal(0, {1: {"a": 1}})
    place.snapshot(1)
    place.seal(1, {1: {"b": 2}})
    place.store.script(Fault(kind, name=name, times=2))  # type: ignore[arg-type]
    with pytest.raises(CorruptStateError, match="RIFFLE-0397") as caught:
        place.bring()
    assert caught.value.where.startswith("delta/" if name == "delta/" else snapshot_object(place))
    assert place.strays() == []
    assert place.bring().restores == 1


def snapshot_object(place: Place) -> str:
    """Return the name of the snapshot object of key-group 1."""
    snapshot = place.entries[1].snapshot
    assert snapshot is not None
    return paths.snapshot_name("totals", 1, snapshot.id)
