"""Copies and objects that are damaged or gone while copies are brought: healed, or named; nothing is left behind."""

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
    """A member and an empty store."""
    return Place(tmp_path / "member")


@pytest.mark.parametrize(("bytes_left", "taken"), [(b"", False), (b"\xff" * 8192, True), (None, True)])
def test_a_damaged_copy_is_healed_from_the_store(place: Place, bytes_left: bytes | None, taken: bool) -> None:
    """Emptied, overwritten or cut in half: restored, and nobody is asked."""
    place.seal(0, {1: {f"{n:04d}": n for n in range(2000)}, 2: {"x": 1}})
    if taken:
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
    """A process that has not read the journal yet restores all its copies."""
    place.seal(0, {1: {"a": 1}})
    place.bring()
    (path,) = place.folder.path.glob("stacks/totals/*.journal")
    path.write_bytes(bytes_left)
    journal_file._states.clear()  # private: as in a new process
    assert place.bring().restores == 1
    assert place.bring().restores == 0


def test_a_journal_of_another_store_is_not_used(place: Place) -> None:
    """Its entries are whole, but their checksums include the name of the store."""
    place.seal(0, {1: {"a": 1}, 2: {"b": 1}})
    place.bring()
    (path,) = place.folder.path.glob("stacks/totals/*.journal")
    changes = place.folder.stacks("totals").listing().all_changes()
    path.write_bytes(encode_entry(changes, first_seed("visits"))[0])
    journal_file._states.clear()  # private: as in a new process
    assert place.bring().restores == 2


def test_a_failed_restore_leaves_nothing_behind(place: Place) -> None:
    """A missing object ends the restore: half-filled copies go, and the next try starts clean."""
    place.seal(0, {1: {"a": 1}, 2: {"b": 1}})
    place.seal(1, {2: {"b": 2}})
    place.store.script(Fault("missing", name="delta/" + "0" * 19 + "1"))
    with pytest.raises(CorruptStateError, match="RIFFLE-0462") as caught:
        place.bring()
    assert caught.value.where == paths.delta_name(1, attempt(1))
    assert place.strays() == []
    assert place.bring().restores == 2


def test_a_store_that_is_away_is_told(place: Place) -> None:
    """No copy, no store: the error is the store's, and bringing works once it is back."""
    place.seal(0, {1: {"a": 1}})
    place.store.script(Fault("unavailable", "get", times=2))
    for _ in range(2):
        with pytest.raises(UnavailableError):
            place.bring()
    assert place.bring().restores == 1


@pytest.mark.parametrize("kind", ["truncated", "flipped"])
@pytest.mark.parametrize("name", ["totals/", "delta/"])
def test_an_object_whose_bytes_are_damaged_on_their_way_is_fetched_again(place: Place, kind: str, name: str) -> None:
    """The object in the store is intact. One more GET restores the copy, and no batch fails."""
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
def test_a_damaged_object_is_named_and_never_believed(place: Place, kind: str, name: str) -> None:
    """A delta or snapshot with other bytes than were sealed: the error names the object, the copy does not move."""
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
    """Return the name of the object of key-group 1's snapshot."""
    snapshot = place.entries[1].snapshot
    assert snapshot is not None
    return paths.snapshot_name("totals", 1, snapshot.id)
