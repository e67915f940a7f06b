"""What executors that died left on a disk, and whether a process still runs. Knows locks, names of files and ``/proc``.
Does not know what is in the files.
"""

import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from riffle_spark.private_folders import is_private, open_regular
from riffle_spark.state.copies.disk import incoming_files, is_member
from riffle_spark.state.copies.stack import LIST, Stacks

__all__ = ["claims_of", "is_dead", "is_free", "named", "owners_in", "remove_folders", "remove_strays", "unless_used"]

_REMOVED = ".removed-"
_LOOKS = 600
_LOOK_SECONDS = 0.05
_STARTED = 19
"""The place of a process's start time in its ``stat``, after the name."""


@contextmanager
def claims_of(base: Path) -> Iterator[list[Path]]:
    """Hold the lock of all claims below ``base``; yield the ``owner`` files there, the one used last first.

    Raises ``OSError`` if the disk refuses, or if a process that hangs does not give the lock back.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW  # a FIFO does not block
    with os.fdopen(os.open(base / ".claims", flags, 0o600), "a") as gate:
        _lock(gate)
        _hide_writable(base)
        yield [owner for _, owner in sorted((-owner.stat().st_mtime_ns, owner) for owner in owners_in(base))]


def owners_in(base: Path) -> list[Path]:
    """Return the ``owner`` files of the members' folders below ``base`` that only this user can write to."""
    owners = [owner for owner in base.glob("m*/owner") if is_member(owner.parent.name) and owner.is_file()]
    return [owner for owner in owners if is_private(owner.parent)]


def _hide_writable(base: Path) -> None:
    """Rename members' folders that other users can write to, so that they are not used: their files may be forged.

    Only earlier versions made such folders.
    """
    for folder in base.glob("m*"):
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
        if is_member(folder.name) and is_folder and not is_private(folder):
            with suppress(OSError):  # a folder of another user
                folder.rename(folder.with_name(f"{_REMOVED}{uuid.uuid4().hex}"))


def _lock(gate: TextIO) -> None:
    for _ in range(_LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"another process has held {gate.name} for {_LOOKS * _LOOK_SECONDS:g} s: does it hang?")


def is_free(owner: Path, live: Collection[str]) -> bool:
    """Tell whether a folder's owner lives no more: the driver sees it no more, or its process has ended here."""
    if owner.read_text(errors="replace") not in live:
        return True
    try:
        return is_dead((owner.parent / "process").read_text(errors="replace"))
    except OSError:
        return False


@contextmanager
def unless_used(owner: Path) -> Iterator[bool]:
    """Lock a folder by its ``owner`` file against every use; yield whether nobody was in it, so that it worked."""
    with os.fdopen(open_regular(owner)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def remove_strays(folder: Path, added_before: float = 0.0) -> None:
    """Remove copies as versions before kept them, files that no stack has, sealed files that were not finished, and
    snapshots that came half and were not added to since that time (seconds, Unix).

    For a folder that is locked against every use.
    """
    shutil.rmtree(folder / "copies", ignore_errors=True)
    _remove_spare_parts(folder)
    for part in [path for path in (folder / "sealed").glob("*.part") if path.is_file()]:
        part.unlink(missing_ok=True)
    for file in incoming_files(folder / "incoming"):
        if file.path.stat().st_mtime < added_before:
            file.path.unlink(missing_ok=True)


def _remove_spare_parts(folder: Path) -> None:
    """Remove files of stacks that no stack has, and older lists of parts."""
    wanted: set[str] = set()
    for store in [path.name for path in (folder / "stacks").glob("*") if path.is_dir()]:
        stacks = Stacks(folder, store)
        found = {key_group: stacks.read(key_group) for key_group in stacks.key_groups()}
        wanted |= {part.file for stack in found.values() if stack is not None for part in stack.parts}
        wanted |= {f"stacks/{store}/{stacks.newest(kg)}" for kg, stack in found.items() if stack is not None}
    files = [*folder.glob("stacks/*/*.part"), *folder.glob(f"stacks/*/*{LIST}"), *folder.glob("fetched/*")]
    for path in files:
        if str(path.relative_to(folder)) not in wanted and path.is_file():
            path.unlink(missing_ok=True)


def remove_folders(base: Path, live: Collection[str], used_before: float) -> int:
    """Remove folders below ``base`` of owners that do not live, last used before that time (seconds, Unix).

    Return how many. One that somebody is in stays, even a late task of a dead executor. Folders of other roots are
    below another base, and none of ours. Raises ``OSError`` if the disk refuses.
    """
    with claims_of(base) as owners:
        old = [owner for owner in owners if owner.stat().st_mtime < used_before]
        removed = sum(_hide(owner, live) for owner in old)
    for aside in base.glob(f"{_REMOVED}*"):
        shutil.rmtree(aside, ignore_errors=True)
    return removed


def _hide(owner: Path, live: Collection[str]) -> bool:
    """Take a folder out of sight, so that its many files are removed after the lock of all claims is given back."""
    with suppress(FileNotFoundError), unless_used(owner) as free:
        if free and owner.read_text(errors="replace") not in live:
            owner.parent.rename(owner.parent.with_name(f"{_REMOVED}{uuid.uuid4().hex}"))
            return True
    return False


def named(pid: int) -> str:
    """Return the name of a process that runs, or an empty text if it cannot be told."""
    started, space = _started(pid), _namespace()
    return f"{pid} {started} {space}" if started and space else ""


def is_dead(name: str) -> bool:
    """Tell whether the process of that name is known to have ended; ``False`` for any that cannot be judged."""
    words = name.split()
    if len(words) != 3 or not words[0].isdecimal() or words[2] != _namespace():
        return False
    return _started(int(words[0])) != words[1]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process began, in clock ticks since the boot; empty if there is none any more."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if words[0] in "ZX" else words[_STARTED]
