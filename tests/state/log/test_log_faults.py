"""A log with lost, damaged or foreign records is refused with an error that names the object and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError, FencedError, UnavailableError
from riffle_spark.state.log import log as log_module
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.printed_commands import printed
from tests.kit.state.drawn_records import PLAIN, ROOT, drafted, grown, opened
from tests.kit.state.faulty_store import Fault, FaultyStore


@pytest.fixture(autouse=True)
def _full_every_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make record 16 full."""
    monkeypatch.setattr(log_module, "FULL_EVERY", 16)


def altered(store: MemoryStore, sequence: int, change: Callable[[bytes], bytes]) -> None:
    """Replace the bytes of a record by changed ones."""
    name = paths.record_name(sequence)
    data = store.get(name)
    assert data is not None
    store.delete([name])
    store.put_if_absent(name, change(data))


def test_a_gap_in_the_log_is_refused_with_a_remedy() -> None:
    """A gap between the full record and the newest is refused, and the remedy names the batch of the newest record."""
    store = MemoryStore()
    grown(store, 6)
    store.delete([paths.record_name(2), paths.record_name(3)])
    with pytest.raises(ConflictError, match="RIFFLE-0406") as caught:
        opened(store)
    newest = Log(store, ROOT).open(broken=True)
    assert newest is not None
    assert newest.sequence == 5
    (command,) = (words for words in printed(caught.value.remedy) if words[0] == "rollback")
    assert command[command.index("--to") + 1] == str(newest.version), "the remedy names the newest intact batch"


def test_the_remedy_for_a_lost_base_does_not_name_the_newest_batch() -> None:
    """If a base of the newest record is lost, the remedy does not name its batch, because the record cannot be read."""
    store = MemoryStore()
    grown(store, 6)
    store.delete([paths.record_name(4)])
    with pytest.raises(ConflictError, match="RIFFLE-0406") as caught:
        opened(store)
    (command,) = (words for words in printed(caught.value.remedy) if words[0] == "rollback")
    assert command[command.index("--to") + 1] == "BATCH"
    newest = Log(store, ROOT).open(broken=True)
    assert newest is not None
    assert newest.version == 2


def test_an_unknown_object_below_the_log_is_named() -> None:
    """An unknown object below log/ is named, and a root with other objects only is called foreign."""
    store = MemoryStore()
    grown(store, 2)
    store.put_if_absent("log/README", b"x")
    with pytest.raises(ConfigError, match="RIFFLE-0412"):
        opened(store)
    empty = MemoryStore()
    empty.put_if_absent("thesis.txt", b"x")
    with pytest.raises(ConfigError, match="RIFFLE-0411"):
        opened(empty)


def test_a_rollback_never_skips_a_record_corrupted_in_transit() -> None:
    """A rollback that reads a record corrupted in transit raises an error or opens the intact log, and never skips a
    record.
    """

    class BitFlippingStore(MemoryStore):
        """A memory store that flips a bit in the nth answer."""

        def __init__(self, nth: int) -> None:
            super().__init__()
            self.left = nth

        def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
            self.left -= 1
            data = super().get(name, start, length)
            return data[:-1] + bytes([data[-1] ^ 1]) if data and not self.left else data

    refused = []
    for nth in range(1, 7):
        store = BitFlippingStore(-1)
        log = grown(store, 3)
        reopened, store.left = Log(store, ROOT), nth
        try:
            assert reopened.open(broken=True) == log.tail
        except UnavailableError:
            refused.append(nth)
            continue
        reopened.append(replace(drafted("back", 1), kind="rollback"), log.manifest)
        store.left = -1
        assert opened(store).tail == reopened.tail
    assert refused == [1, 2, 3, 4], "only the newest record and its full record are read, twice each"


def test_the_error_names_a_lost_full_record() -> None:
    """The error names the lost full record that the newest record needs."""
    store = MemoryStore()
    grown(store, 20)
    store.delete([paths.record_name(s) for s in range(17)])
    with pytest.raises(CorruptStateError, match="RIFFLE-0408") as caught:
        opened(store)
    assert caught.value.where == paths.record_name(16)


@pytest.mark.parametrize(("gone", "broken"), [(17, False), (20, True), (22, False)])
def test_a_reader_overtaken_by_the_log_gets_no_error_about_damage(gone: int, *, broken: bool) -> None:
    """A reader that is overtaken by new records and a sweep gets an UnavailableError, not an error about damage."""

    class OvertakenStore(MemoryStore):
        """A memory store in which the query appends and sweeps records once the newest record was read, which a
        rollback reads twice.
        """

        def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
            data = super().get(name, start, length)
            if self.requests["get"] == 1 + broken:
                for newer in range(20, 24):
                    self.put_if_absent(paths.record_name(newer), b"newer")
                self.delete([paths.record_name(s) for s in range(gone)])
            return data

    store = OvertakenStore()
    grown(store, 20)
    with pytest.raises(UnavailableError, match="RIFFLE-0402"):
        Log(store, ROOT).open(broken=broken)


def test_a_log_without_its_oldest_records_opens() -> None:
    """A log without its oldest records, which retention has removed, opens normally."""
    store = MemoryStore()
    log = grown(store, 20)
    store.delete([paths.record_name(s) for s in range(10)])
    reopened = opened(store)
    assert reopened.first == 10
    assert reopened.manifest == log.manifest


@pytest.mark.parametrize(
    ("sequence", "change"),
    [(16, lambda b: b[: len(b) // 2]), (19, lambda b: b[:-1] + bytes([b[-1] ^ 1])), (16, lambda _: b"")],
)
def test_the_error_names_a_damaged_record(sequence: int, change: Callable[[bytes], bytes]) -> None:
    """A truncated, changed or empty newest or full record is named as damaged."""
    store = MemoryStore()
    grown(store, 20)
    altered(store, sequence, change)
    with pytest.raises(CorruptStateError) as caught:
        opened(store)
    assert caught.value.where == paths.record_name(sequence)


@pytest.mark.parametrize("kind", ["truncated", "flipped"])
@pytest.mark.parametrize("sequence", [16, 18, 19])
def test_a_record_corrupted_in_transit_is_fetched_again(sequence: int, kind: str) -> None:
    """A record that is corrupted in transit is fetched again, and the log opens."""
    store = FaultyStore(MemoryStore())
    log = grown(store, 20)
    store.script(Fault(kind, "get", paths.record_name(sequence)))  # type: ignore[arg-type]
    reopened = opened(store)
    assert reopened.tail == log.tail
    assert reopened.manifest == log.manifest
    store.script(Fault(kind, "get", paths.record_name(sequence)))  # type: ignore[arg-type]
    assert reopened.read(sequence).sequence == sequence


@pytest.mark.parametrize("name", ["log/readme", "photos/1"])
def test_a_root_with_objects_but_without_a_log_is_refused(name: str) -> None:
    """A root with objects but without a riffle log is refused."""
    store = MemoryStore()
    store.put_if_absent(name, b"mine")
    with pytest.raises(ConfigError, match="RIFFLE-0411"):
        opened(store)


def begun_in(folder: Path) -> Log:
    """Return a log with one record in a folder."""
    log = Log(DirectoryStore(folder), f"file://{folder}")
    assert log.open() is None
    log.append(PLAIN, Manifest())
    return log


def test_a_driver_writes_no_record_to_a_folder_that_has_lost_its_log(tmp_path: Path) -> None:
    """While the folder of the root is away, such as an unmounted disk, nothing is written. Then the log continues."""
    folder = tmp_path / "state"
    log = begun_in(folder)
    folder.rename(tmp_path / "away")
    with pytest.raises(UnavailableError, match="RIFFLE-1820") as caught:
        log.append(drafted("lost"), Manifest())
    assert "Mount the shared folder" in caught.value.remedy
    assert not log.is_unclear
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    assert log.append(drafted("listed"), Manifest()).sequence == 1


def test_a_record_that_a_newer_driver_swept_is_not_a_lost_folder(tmp_path: Path) -> None:
    """If the log has other records, the folder is there. The next put or check finds the newer driver."""
    folder = tmp_path / "state"
    log = begun_in(folder)
    newer = Log(DirectoryStore(folder), f"file://{folder}")
    newer.open()
    newer.append(drafted("newer"), Manifest())
    DirectoryStore(folder).delete([paths.record_name(0)])
    assert not log.next_is_absent()
    with pytest.raises(FencedError):
        log.append(drafted("older"), Manifest())
