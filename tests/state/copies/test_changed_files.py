"""Copies whose file is not what the last of ours left: whatever was done to it, it is not read."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from riffle_spark.state.copies import lmdb_file
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.copies.lmdb_file import FileStamp
from riffle_spark.state.copies.reading import Reading
from riffle_spark.state.log.manifest import EMPTY_HEAD
from riffle_spark.state.schemas.copy_rows import CopyRows
from tests.kit.state.plain_copies import at, rows

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The data file of a copy at version 1."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1", b=b"2", c=os.urandom(9000)))
    return tmp_path / "c" / "data.mdb"


def overwritten(file: Path) -> None:
    """Write what was there already."""
    with file.open("r+b") as opened:
        opened.write(opened.read(0) or file.read_bytes()[:1])


def replaced(file: Path) -> None:
    """Put the same bytes in its place."""
    file.with_name("passing").write_bytes(file.read_bytes())
    file.with_name("passing").replace(file)


CHANGES: list[Callable[[Path], object]] = [
    overwritten,
    replaced,
    lambda file: os.truncate(file, file.stat().st_size - 1),
    lambda file: file.with_name("stamp").unlink(),
    lambda file: file.with_name("stamp").write_bytes(bytes(32)),
    lambda file: file.unlink(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_others_changed_is_damaged(file: Path, change: Callable[[Path], object]) -> None:
    """Even with its times put back, and if nothing is another than before."""
    before = file.stat()
    change(file)
    if file.exists():
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedCopy):
        Copy(file.parent)


def test_a_file_that_is_changed_while_it_is_open_is_damaged(file: Path) -> None:
    """Each transaction looks before it begins."""
    with Copy(file.parent) as copy:
        overwritten(file)
        for use in (copy.head, copy.scan, lambda: copy.fold(at(1), at(2), rows(a=b"3"))):
            with pytest.raises(DamagedCopy):
                use()


def fold(folder: Path) -> None:
    """Fold the next version."""
    with Copy(folder) as copy:
        copy.fold(at(1), at(2), rows(a=b"3"))


def fold_and_die(folder: Path, sent: int) -> None:
    """Fold the next version, and send oneself a signal before it is noted."""
    written = os.pwrite

    def interrupted(descriptor: int, data: bytes, at: int) -> int:
        if not at:
            os.kill(os.getpid(), sent)
        return written(descriptor, data, at)

    lmdb_file.os.pwrite = interrupted  # type: ignore[attr-defined]
    fold(folder)


def test_what_a_process_was_writing_when_it_died_is_damaged(file: Path) -> None:
    """Its transaction may be whole, but nobody can tell."""
    process = FORK.Process(target=fold_and_die, args=(file.parent, signal.SIGKILL))
    process.start()
    process.join(30)
    with pytest.raises(DamagedCopy, match="died"):
        Copy(file.parent)


def open_and_die(folder: Path) -> None:
    """Die with the copy open."""
    with Copy(folder):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("deaths", [1, 2])
def test_what_two_processes_die_over_is_damaged(file: Path, deaths: int) -> None:
    """What a disk gives back may kill each of its readers; one death alone may have any reason."""
    Copy(file.parent).close()
    for _ in range(deaths):
        process = FORK.Process(target=open_and_die, args=(file.parent,))
        process.start()
        process.join(30)
    if deaths == 1:
        for _ in range(3):
            Copy(file.parent).close()
    else:
        with pytest.raises(DamagedCopy, match="one after the other"):
            Copy(file.parent)


def test_nobody_waits_for_ever_for_a_writer_that_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been stopped in the middle: who comes takes the copy for damaged after a while."""
    monkeypatch.setattr(lmdb_file, "_LOOKS", 20)
    process = FORK.Process(target=fold_and_die, args=(file.parent, signal.SIGSTOP))
    process.start()
    assert process.pid is not None
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        with pytest.raises(DamagedCopy, match="does it hang"):
            Copy(file.parent)
    finally:
        process.kill()
        process.join()


def test_a_value_that_the_disk_gives_back_altered_is_damage(file: Path) -> None:
    """No time tells of it: its checksum does, whoever reads it and however."""
    with Copy(file.parent) as copy:
        copy.fold(at(1), at(2), CopyRows([b"due"], [b"\x80" + bytes(7) + b"unchanged"], [b"whole"], indexed=True))
    file.write_bytes(file.read_bytes().replace(b"unchanged", b"unchangeD").replace(b"whole", b"whale"))
    FileStamp(file, file.with_name("stamp")).note()
    with Copy(file.parent) as copy:
        with pytest.raises(DamagedCopy, match="altered"):
            copy.scan()
        with pytest.raises(DamagedCopy, match="altered"), copy.reading(at(2)) as reading:
            reading.one(b"due")
        with pytest.raises(DamagedCopy, match="altered"):
            copy.fold(at(2), at(3), CopyRows([b"due"], [bytes(8)], indexed=True))
        with copy.reading(at(2)) as reading:
            assert reading.many([b"a", b"b"]) == [(b"a", b"1"), (b"b", b"2")]


def caught(folder: Path, read: Callable[[Reading], object]) -> None:
    """Read, and go on as if nothing had been."""
    with Copy(folder) as copy, copy.reading(at(1)) as reading:
        with suppress(DamagedCopy):
            read(reading)
        assert reading.one(b"b") == b"2"


def test_damage_that_a_user_catches_is_told_all_the_same(file: Path) -> None:
    """Between the copy and who drops it is a user's code, which may catch whatever is raised."""
    file.write_bytes(file.read_bytes().replace(b"a1", b"a2"))
    FileStamp(file, file.with_name("stamp")).note()
    reads: list[Callable[[Reading], object]] = [
        lambda reading: reading.one(b"a"),
        lambda reading: reading.many([b"a"]),
        lambda reading: list(reading.under(b"a")),
        lambda reading: reading.last_under(b"a"),
    ]
    for read in reads:
        with pytest.raises(DamagedCopy, match="altered"):
            caught(file.parent, read)
