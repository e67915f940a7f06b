"""Local copies that are damaged or refused by the disk: told as such, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.copies.lmdb_file import FileStamp
from riffle_spark.state.log.manifest import EMPTY_HEAD
from tests.kit.state.plain_copies import at, contents, rows

FILL = """
import resource, sys, os
from pathlib import Path
from riffle_spark.errors import UnavailableError
from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
with Copy(folder, new=True) as copy:
    copy.fold(EMPTY_HEAD, Head(1, "1-a"), CopyRows([b"kept"], [b"value"]))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        copy.fold(Head(1, "1-a"), Head(2, "1-b"), CopyRows([b"%d" % n for n in range(3000)], [os.urandom(1000)] * 3000))
    except UnavailableError as error:
        print("REFUSED", str(error).replace(chr(10), " "))
    with copy.reading(copy.head()) as reading:
        print(copy.head(), len(copy), reading.many([b"kept"]))
"""
NOTHING_LOST = "Head(version=1, attempt='1-a') 1 [(b'kept', b'value')]"


def filled(folder: Path, limit: int) -> list[str]:
    """Fill a copy in a process of its own until the system refuses; return what it printed."""
    command = [sys.executable, "-c", FILL, str(folder), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_file_that_may_not_grow_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    """The system's own limit stops a write: the error names the folder and the remedy, the copy is as it was."""
    refused, after = filled(tmp_path / "c", 512 * 1024)
    assert refused.startswith("REFUSED the local disk refused a write")
    assert "local_dir" in refused
    assert str(tmp_path) in refused
    assert after == NOTHING_LOST


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    """A file system of one megabyte runs full: the same error, and the copy is as it was."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk; the limit on files stands in for it")
    try:
        refused, after = filled(disk / "c", 0)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert refused.startswith("REFUSED the local disk refused a write")
    assert after == NOTHING_LOST


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A file where a folder should be: the disk's own words, with the remedy."""
    (tmp_path / "file").write_text("x")
    with pytest.raises((UnavailableError, DamagedCopy), match="file"):
        Copy(tmp_path / "file" / "c", new=True)


def grown(folder: Path) -> Path:
    """Return the data file of a copy of several hundred pages."""
    with Copy(folder, new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(**{f"{n:05d}": os.urandom(200) for n in range(3000)}))
        copy.fold(at(1), at(2), rows(**{f"{n:05d}": os.urandom(200) for n in range(0, 3000, 7)}))
    return folder / "data.mdb"


def rotted(file: Path) -> None:
    """Make the last change of a file one that left no trace: the disk gives back what nobody wrote."""
    FileStamp(file, file.with_name("stamp")).note()


@pytest.mark.parametrize("damage", ["emptied", "foreign", "meta pages flipped"])
def test_a_file_that_is_not_a_copy_is_told_or_starts_empty(tmp_path: Path, damage: str) -> None:
    """Whatever is wrong with the file's first pages, nothing in it is believed."""
    file = grown(tmp_path / "c")
    whole = file.read_bytes()
    flipped = bytes(255 - b for b in whole[:8192]) + whole[8192:]
    file.write_bytes({"emptied": b"", "foreign": b"\x01" * len(whole), "meta pages flipped": flipped}[damage])
    with contextlib.suppress(DamagedCopy), Copy(tmp_path / "c") as copy:
        assert copy.head() == EMPTY_HEAD
        assert contents(copy) == {}


def test_a_head_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """A head with a flipped byte is damage, not an accident of the parser's."""
    file = grown(tmp_path / "c")
    file.write_bytes(file.read_bytes().replace(b"[2, ", b"[2\x00 ").replace(b"[1, ", b"[1\x00 "))
    rotted(file)
    with Copy(tmp_path / "c") as copy, pytest.raises(DamagedCopy, match="damaged"):
        copy.head()


READ = """
import sys
from pathlib import Path
from riffle_spark.errors import RiffleError
from riffle_spark.state.copies.copy import Copy
try:
    with Copy(Path(sys.argv[1])) as copy:
        copy.scan()
except RiffleError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_truncated_or_flipped_file_never_raises_anything_but_our_error(tmp_path: Path, seed: int) -> None:
    """Random damage to a real file: what is cut off is always told, what is flipped at least raises nothing else."""
    chance = random.Random(seed)
    file = grown(tmp_path / "c")
    data = bytearray(file.read_bytes())
    if seed % 2:
        del data[chance.randrange(8192, len(data)) :]
    else:
        for _ in range(20):
            place = chance.randrange(len(data))
            data[place] ^= 1 << chance.randrange(8)
    file.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "c")], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.strip() in ({"DamagedCopy"} if seed % 2 else {"", "DamagedCopy"})
