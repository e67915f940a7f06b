"""Remove folders and files that dead executors left on a disk, and check whether a process still runs."""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from riffle_spark.private_folders import is_private, open_regular
from riffle_spark.state.copies.disk import is_member_name, list_incoming_files
from riffle_spark.state.copies.stack import PART, STACKS
from riffle_spark.state.copies.stacks import Stacks

_REMOVED: Final = ".removed-"
_LOCK_TRIES: Final = 600
_LOCK_PAUSE_SECONDS: Final = 0.05
_START_TIME_FIELD: Final = 19
"""The index of a process's start time in ``/proc/<pid>/stat``, counted after the name."""


@contextmanager
def lock_claims(base: Path) -> Iterator[list[Path]]:
    """Lock all claims below ``base`` and yield the members' ``owner`` files, most recently used first.

    Raises ``OSError`` if the disk refuses, ``TimeoutError`` if another process holds the lock for 30 s.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW  # a FIFO does not block
    with os.fdopen(os.open(base / ".claims", flags, 0o600), "a") as lock_file:
        _acquire_lock(lock_file)
        yield [owner for _, owner in sorted((-owner.stat().st_mtime_ns, owner) for owner in owner_files(base))]


def owner_files(base: Path) -> list[Path]:
    """Return the ``owner`` files of the members' folders below ``base`` that only this user can write to."""
    owners = [owner for owner in base.glob("m*/owner") if is_member_name(owner.parent.name) and owner.is_file()]
    return [owner for owner in owners if is_private(owner.parent)]


def _acquire_lock(file: TextIO) -> None:
    """Lock a file, waiting up to 30 s. Raises ``TimeoutError`` if another process holds the lock for longer."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_SECONDS)
    seconds = _LOCK_TRIES * _LOCK_PAUSE_SECONDS
    raise TimeoutError(f"Another process has held the lock {file.name} for {seconds:g} s.")


def is_owner_dead(owner: Path, live: Collection[str]) -> bool:
    """Return whether the folder with this ``owner`` file is free: its owner is not among the ``live`` owners, or the
    owner's process has ended on this machine.
    """
    if owner.read_text(errors="replace") not in live:
        return True
    try:
        return has_process_ended((owner.parent / "process").read_text(errors="replace"))
    except OSError:
        return False


@contextmanager
def lock_exclusively(owner: Path) -> Iterator[bool]:
    """Lock the folder with this ``owner`` file against every use.

    Yield whether that worked; it fails while the folder is in use.
    """
    with os.fdopen(open_regular(owner)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def remove_leftovers(folder: Path, added_before: float = 0.0) -> None:
    """Remove unfinished files from a member's folder.

    These are files that no stack lists, unfinished sealed files, and partly fetched snapshots that got no bytes since
    ``added_before`` (Unix time, seconds).

    The caller must have locked the folder against every use.
    """
    _remove_unlisted_parts(folder)
    for part in [path for path in (folder / "sealed").glob("*.part") if path.is_file()]:
        part.unlink(missing_ok=True)
    for file in list_incoming_files(folder / "incoming"):
        if file.path.stat().st_mtime < added_before:
            file.path.unlink(missing_ok=True)


def _remove_unlisted_parts(folder: Path) -> None:
    """Remove part files that no stack lists, and superseded journals."""
    listed: set[str] = set()
    for store in [path.name for path in (folder / STACKS).glob("*") if path.is_dir()]:
        stacks = Stacks(folder, store)
        stacks.remove_leftovers()
        listed |= stacks.listing().files.keys()
    for path in [*folder.glob(f"{STACKS}/*/*{PART}"), *folder.glob("fetched/*")]:
        if str(path.relative_to(folder)) not in listed and path.is_file():
            path.unlink(missing_ok=True)


def remove_folders(base: Path, live: Collection[str], used_before: float) -> int:
    """Remove the folders below ``base`` whose owners are dead and that were last used before ``used_before`` (Unix
    time, seconds). Return their number.

    A folder in use is kept, even if a late task of a dead executor uses it. Raises ``OSError`` if the disk refuses.
    """
    with lock_claims(base) as owners:
        old = [owner for owner in owners if owner.stat().st_mtime < used_before]
        removed = sum(_hide_folder(owner, live) for owner in old)
    for hidden in base.glob(f"{_REMOVED}*"):
        shutil.rmtree(hidden, ignore_errors=True)
    return removed


def _hide_folder(owner: Path, live: Collection[str]) -> bool:
    """Rename a dead owner's folder so that it can be deleted after the lock of all claims is released.

    Return ``False`` if the folder is in use.
    """
    with suppress(FileNotFoundError), lock_exclusively(owner) as is_locked:
        if is_locked and owner.read_text(errors="replace") not in live:
            owner.parent.rename(owner.parent.with_name(f"{_REMOVED}{uuid.uuid4().hex}"))
            return True
    return False


def process_name(pid: int) -> str:
    """Return a name that identifies a running process on this machine, or an empty text if it cannot be determined."""
    started = _start_time(pid)
    namespace = _pid_namespace()
    return f"{pid} {started} {namespace}" if started and namespace else ""


def has_process_ended(name: str) -> bool:
    """Return whether the process with this name, from ``process_name``, has certainly ended."""
    words = name.split()
    if len(words) != 3 or not words[0].isdecimal() or words[2] != _pid_namespace():
        return False
    return _start_time(int(words[0])) != words[1]


def _pid_namespace() -> str:
    """Return the name of this process's PID namespace, or an empty text if it is unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot, or an empty text if it does not run."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if words[0] in "ZX" else words[_START_TIME_FIELD]
