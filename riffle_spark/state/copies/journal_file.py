"""The journal of a store in a member's folder: one file that lists the parts of all its key-groups.

    stacks/<store>/<number>.<unique>.journal

Theory of operation.

1. A journal only grows, by one entry per change of any number of key-groups. A reader takes the valid entries, so it
   sees all of an entry or nothing of it. It does not wait, and it reads only the bytes that were appended since its
   last read.
2. A writer holds an exclusive lock on the store's folder. Under the lock it reads the newest entries, compares, and
   appends. A writer that cannot get the lock for some seconds gives up. So a process that hangs does not stop others.
3. A journal that is more than twice as long as needed is followed by the journal with the next number. Its first entry
   has all stacks. A reader takes the journal with the highest number whose first entry is valid. So a crash leaves the
   former journal, or the new one, and the next writer removes the other.
4. The entries after a torn or damaged entry do not count. The next writer starts a new journal with the entries before
   it, so no process can take other bytes for the continuation of what it has read.
5. A stack may be older than a process left it, after damage or a crash of the machine. This is harmless: every state of
   a stack holds only committed changes, and every part is checked before it is read.
6. Nothing is synced, and no file is renamed over an existing one. After such a rename file systems write the file out
   at once, which takes 4 ms.
"""

import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from riffle_spark.private_folders import make_private
from riffle_spark.state.copies.journal import Change, Listing, encode_entry, first_seed, read_entries

JOURNAL: Final = ".journal"
_NAME: Final = re.compile(r"([0-9]{10,200})(\.[0-9a-f]{8}\.journal)\Z")
_TRIES: Final = 3
_LOCK_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 0.02
_SPARE_BYTES: Final = 64 << 10
"""Shorter journals are not replaced: a new file costs more than a few entries."""
_STATES_MAX: Final = 256


class JournalLocked(TimeoutError):
    """Another process has held the lock of a store's folder for some seconds."""


@dataclass(frozen=True, slots=True)
class _State:
    """The content of a store's journal, as far as this process has read it.

    ``name`` is empty if there is no journal. ``end`` is the position after the last valid entry, and ``seed`` the
    checksum of this entry. ``is_sound`` is false if the next change must go into a new journal. ``leftovers`` are older
    journals.
    """

    name: str
    inode: int
    end: int
    seed: int
    listing: Listing
    is_sound: bool
    leftovers: tuple[str, ...] = ()


_states: dict[str, _State] = {}
"""The read state of each store's journal, by the store's folder."""


class JournalFile:
    """The journal of one store below ``path``, which ends with a slash."""

    def __init__(self, path: str, store: str) -> None:
        self._path = path
        self._store = store

    def read(self) -> Listing:
        """Return the store's stacks as they are on the disk now. Reads only what was appended since the last call."""
        return self._look().listing

    def change(self, decide: Callable[[Listing], Sequence[Change]]) -> tuple[Listing, Listing]:
        """Apply the changes that ``decide`` returns for the present stacks, all of them or none.

        Return the stacks before and after. Raises ``JournalLocked`` if another process holds the lock, and ``OSError``
        if the disk refuses; then nothing has changed.
        """
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError):  # another process has removed the folder
                return self._change_once(decide)
        return self._change_once(decide)

    def _change_once(self, decide: Callable[[Listing], Sequence[Change]]) -> tuple[Listing, Listing]:
        """Apply changes as ``change`` does. Raises ``FileNotFoundError`` if another process removes the folder."""
        with self._lock():
            state = self._look_locked()
            changes = decide(state.listing)
            new_state = self._write(state, changes) if changes else state
            _remember(self._path, new_state)
            return state.listing, new_state.listing

    def remove_leftovers(self) -> None:
        """Remove older journals that no longer count. Raises ``OSError`` if the disk refuses."""
        with self._lock():
            state = self._search()
            if state.inode:
                state = replace(state, leftovers=self._remove(state.leftovers))
            _remember(self._path, state)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the store's folder during the block, and create the folder if it is missing."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            make_private(Path(self._path))
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._acquire(descriptor)
            if not os.fstat(descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
            yield
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int) -> None:
        """Lock an open folder. Raises ``JournalLocked`` if another process holds the lock for too long."""
        waited = 0.0
        pause = 0.0002
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if waited >= _LOCK_SECONDS:
                raise JournalLocked(f"Another process has held the lock of {self._path} for {_LOCK_SECONDS:g} s.")
            time.sleep(pause)
            waited += pause
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _look(self) -> _State:
        """Return the present state, and keep it for the next call."""
        known = _states.get(self._path)
        state = None
        if known is not None and known.inode:
            state = self._read(known.name, known) or self._read(_next_name(known.name))
        if state is None:
            state = self._search()
        if state is not known:
            _remember(self._path, state)
        return state

    def _look_locked(self) -> _State:
        """Return the present state under the lock, after removing the leftovers of a dead writer."""
        state = self._look()
        if state.inode and os.path.exists(self._path + _next_name(state.name)):  # noqa: PTH110 - half the time
            state = self._search()  # its writer died before it removed the former journal
        if state.inode and state.leftovers:
            return replace(state, leftovers=self._remove(state.leftovers))
        return state

    def _read(self, name: str, known: _State | None = None) -> _State | None:
        """Return the state in a journal, or ``None`` if it cannot be read or its first entry is not valid.

        ``known`` is the last read state of this journal. It is returned if nothing was appended.
        """
        try:
            if known is not None:
                status = os.stat(self._path + name)  # noqa: PTH116 - half the time
                if known.is_sound and (status.st_ino, status.st_size) == (known.inode, known.end):
                    return known
            descriptor = os.open(self._path + name, os.O_RDONLY)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if known is not None and known.inode == status.st_ino:
                data = os.pread(descriptor, max(status.st_size - known.end, 0), known.end)
                listing, length, seed = read_entries(data, known.listing, known.seed)
                if length:
                    is_sound = length == len(data)
                    return _State(name, known.inode, known.end + length, seed, listing, is_sound, known.leftovers)
            data = os.pread(descriptor, status.st_size, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        listing, end, seed = read_entries(data, Listing(), first_seed(self._store))
        if not end:
            return None
        is_as_before = known is None or known.inode != status.st_ino or (known.is_sound and known.end == end)
        return _State(name, status.st_ino, end, seed, listing, end == len(data) and is_as_before)

    def _search(self) -> _State:
        """Return the state in the newest valid journal, else without stacks."""
        names: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            names = sorted(os.listdir(self._path))  # noqa: PTH208 - only names are needed
        journals = sorted((name for name in names if _NAME.match(name)), key=_number)
        for name in reversed(journals):
            state = self._read(name)
            if state is not None:
                leftovers = [other for other in journals if other != name]
                return replace(state, leftovers=tuple(leftovers))
        newest = journals[-1] if journals else ""
        return _State(newest, 0, 0, 0, Listing(), is_sound=False, leftovers=tuple(journals))

    def _write(self, state: _State, changes: Sequence[Change]) -> _State:
        """Write changes into the journal, or all stacks into a new one. Without stacks remove the journal.

        Return the new state.
        """
        listing = state.listing.with_changes(changes)
        if not listing.stacks and not self._remove((*state.leftovers, state.name)):
            return _State("", 0, 0, 0, listing, is_sound=False)
        entry, checksum = encode_entry(changes, state.seed)
        end = state.end + len(entry)
        if state.is_sound and end <= 2 * listing.entry_bytes() + _SPARE_BYTES:
            self._append(state, entry)
            return replace(state, end=end, seed=checksum, listing=listing)
        return self._create(state, listing)

    def _append(self, state: _State, entry: bytes) -> None:
        """Append an entry. If the disk refuses, truncate the partly written entry and raise ``OSError``."""
        path = self._path + state.name
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(descriptor, entry, path)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, state.end)
            raise
        finally:
            os.close(descriptor)

    def _create(self, state: _State, listing: Listing) -> _State:
        """Write a new journal with all stacks, and remove the former one. Return the new state."""
        name = _next_name(state.name) if state.name else f"{0:010d}.{uuid.uuid4().hex[:8]}{JOURNAL}"
        entry, checksum = encode_entry(listing.all_changes(), first_seed(self._store))
        path = self._path + name
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - half the time; a dead writer left it torn
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(descriptor, entry, path)
            inode = os.fstat(descriptor).st_ino
        except OSError:
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - as above
            raise
        finally:
            os.close(descriptor)
        former = (state.name, *state.leftovers) if state.inode else state.leftovers
        return _State(name, inode, len(entry), checksum, listing, True, self._remove(former))

    def _remove(self, names: Sequence[str]) -> tuple[str, ...]:
        """Remove files, and return the names of those that the disk did not remove. The next writer tries again."""
        refused = []
        for name in names:
            try:
                os.unlink(self._path + name)  # noqa: PTH108 - half the time
            except FileNotFoundError:
                pass
            except OSError:
                refused.append(name)
        return tuple(refused)


def _remember(path: str, state: _State) -> None:
    """Remember the state of a journal in this process. All states are forgotten if there are too many."""
    if len(_states) >= _STATES_MAX and path not in _states:
        _states.clear()
    _states[path] = state


def _number(name: str) -> int:
    """Return the number in a journal's name."""
    return int(name.partition(".")[0])


def _next_name(name: str) -> str:
    """Return the name of the journal that follows a journal."""
    match = _NAME.match(name)
    assert match is not None, "the names of journals are matched before"
    return f"{int(match[1]) + 1:010d}{match[2]}"


def _write_all(descriptor: int, data: bytes, path: str) -> None:
    """Write bytes to an open file with one call. Raises ``OSError`` if the disk takes only some of them."""
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
