"""A member's folder on the local disk: its owner, its locks, and the paths of its copies.

    <local_dir>/<root id>/<member>/owner                     the owning executor: "<application>/<executor>"
                                  /stacks/<store>/*.journal  the lists of the parts of all copies
                                  /stacks/<store>/<0042>.*   parts of a copy: snapshots and merged parts
                                  /sealed/<version>-<attempt>.block deltas, and merged deltas, of this member
                                  /fetched/<version>-<attempt>.* parts of deltas that others sealed
                                  /fetched/<version>-<attempt>.*.merged parts of merged deltas
                                  /fetched/<version>-<attempt>.*.block merged parts of several copies
                                  /incoming/<store>/...      partly fetched snapshots

Theory of operation.

1. A folder outlives its executor. A new executor takes over the folder of a dead owner. It writes its own id to the
   ``owner`` file under an exclusive, non-blocking lock.
2. Every use holds a shared lock and first checks that ``owner`` names the user. So two executors never use one folder,
   and a late task of a dead executor stops before it does anything.
3. Claims on one host are made one at a time.
4. Every use updates the time of the ``owner`` file. So a new executor finds the most recently used folder, and unused
   folders can be deleted.
5. Folders have mode 0700, because they hold rows. A folder of another user or a symbolic link is not used, because its
   files may be forged.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from riffle_spark.errors import LocalDiskError, OutOfDate
from riffle_spark.private_folders import PRIVATE, ForeignFolder, make_private, narrow
from riffle_spark.state.copies.abandoned import (
    is_owner_dead,
    lock_claims,
    lock_exclusively,
    owner_files,
    remove_leftovers,
)
from riffle_spark.state.copies.disk import (
    MERGED,
    STORED,
    SealedFile,
    disk_refused_error,
    list_fetched_files,
    list_sealed_files,
    refuse_network,
)
from riffle_spark.state.copies.stack import PART, STACKS
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log import paths

_CLAIM_TRIES: Final = 60
_CLAIM_PAUSE_SECONDS: Final = 0.05
_SPARE_FILES_MAX: Final = 256
_SPARE_BYTES_MIN: Final = 256 << 10
_SPARE_SHARE: Final = 0.1
"""Deltas that no stack uses may be kept for stacks that lag, up to this share of the bytes that stacks use."""
_PROBE_BYTES: Final = 1 << 20
_ADVANCING: Final = "advancing"


class Folder:
    """The folder of a member. ``member`` is the name of the folder and of the member."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.member = path.name
        self._owner = owner
        self.sealed = path / "sealed"
        self.fetched = path / "fetched"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the folder for its owner during the block.

        Raises ``OutOfDate`` if another executor has taken it over or if it does not exist. The next attempt claims a
        folder again.
        """
        with self._convert_disk_errors():
            file = (self.path / "owner").open("r", errors="replace")
        with file:
            with self._convert_disk_errors():
                fcntl.flock(file, fcntl.LOCK_SH)
                owner = file.read()
            if owner != self._owner:
                # Cause: The other executor started while this one seemed to have ended.
                raise OutOfDate(
                    "Another executor has taken over this executor's folder.",
                    remedy="Do nothing. The batch runs again.",
                    where=str(self.path),
                    id="RIFFLE-0386",
                )
            with self._convert_disk_errors():
                os.utime(file.fileno())
            yield

    @contextmanager
    def _convert_disk_errors(self) -> Iterator[None]:
        """Raise ``OutOfDate`` for errors of a removed folder, and ``LocalDiskError`` if the disk refuses."""
        try:
            yield
        except OSError as error:
            if not (self.path / "owner").exists():
                # Cause: A person or a tool deleted the folder below `local_dir`.
                raise OutOfDate(
                    "This executor's folder is gone from its disk.",
                    remedy="Do nothing. The batch runs again, and the copies are rebuilt in a new folder.",
                    where=str(self.path),
                    id="RIFFLE-0387",
                ) from error
            raise disk_refused_error(f"Cannot keep local copies: {error}", self.path) from error

    @contextmanager
    def lock_for_upkeep(self) -> Iterator[None]:
        """Hold the folder's upkeep lock during the block. Raises ``OutOfDate`` if another upkeep task holds it."""
        with self._convert_disk_errors():
            file = (self.path / "upkeep").open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Cause: The task has not ended by its deadline, and its Python worker could not be killed.
                raise OutOfDate(
                    "Another upkeep task still runs in this folder.",
                    remedy="Do nothing. The next upkeep of this executor continues.",
                    where=str(self.path),
                    id="RIFFLE-0388",
                ) from None
            yield

    def remove_unfinished(self, added_before: float) -> bool:
        """Remove unfinished files of dead processes of this owner. Return ``False``, and remove nothing, if the folder
        is in use.

        Partly fetched snapshots are kept if they got bytes since ``added_before`` (Unix time, seconds).
        """
        with self._convert_disk_errors(), lock_exclusively(self.path / "owner") as is_locked:
            if is_locked and self.belongs_to_owner():
                remove_leftovers(self.path, added_before)
            return is_locked

    @contextmanager
    def protect_deltas(self) -> Iterator[None]:
        """Protect files of deltas from deletion during the block, whether or not a stack lists them yet.

        The lock does not wait. It has no effect while another process is choosing files to delete.
        """
        with self._convert_disk_errors():
            file = (self.path / _ADVANCING).open("a")
        with file:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield

    def belongs_to_owner(self) -> bool:
        """Return whether the folder exists and still belongs to its owner."""
        try:
            return (self.path / "owner").read_text(errors="replace") == self._owner
        except OSError:
            return False

    def stacks(self, store: str) -> Stacks:
        """Return the stacks of a store in this folder.

        Reuse the result for many key-groups: it reads the journal once.
        """
        return Stacks(self.path, store)

    def stores(self) -> list[str]:
        """Return the stores that have stacks here, sorted."""
        return sorted(path.name for path in self.path.glob("stacks/*"))

    def key_groups(self, store: str) -> set[int]:
        """Return the key-groups of a store that have a copy."""
        return set(self.stacks(store).key_groups())

    def copies(self) -> list[tuple[str, int]]:
        """Return (store, key-group) of every copy, sorted."""
        return [(store, key_group) for store in self.stores() for key_group in self.stacks(store).key_groups()]

    def drop(self, store: str, key_group: int, stacks: Stacks | None = None) -> None:
        """Delete a key-group's copy, if it exists.

        ``stacks`` are the stacks of the store, if they were listed before. Raises ``LocalDiskError`` if the disk
        refuses, or if another process holds the lock of the store's copies.
        """
        with self._convert_disk_errors():
            is_dropped = (stacks or self.stacks(store)).drop(key_group)
        if not is_dropped:
            raise LocalDiskError(
                "Another process on this host has held the lock of the local copies for some seconds.",
                remedy="End the Python worker that hangs. Batches continue without the lock, but restore copies again.",
                where=f"{self.path}, {store}",
                id="RIFFLE-1730",
            )

    def wipe(self) -> None:
        """Delete everything but the files that claim the folder: copies, sealed deltas and partly fetched snapshots."""
        for path in [path for path in self.path.iterdir() if path.is_dir()]:
            shutil.rmtree(path, ignore_errors=True)

    def write_sealed_file(self, version: int, attempt: str, data: bytes, *, is_block: bool = False) -> bool:
        """Write the delta that an attempt of this member sealed to a local file: its block, or its parts.

        Return ``False`` if the disk refuses. This is harmless.
        """
        path = self.sealed / (paths.sealed_block_name(version, attempt) if is_block else f"{version}-{attempt}")
        part = path.with_suffix(".part")
        try:
            self.sealed.mkdir(PRIVATE, exist_ok=True)
            part.write_bytes(data)
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            return False
        return True

    def probe_disk(self) -> None:
        """Write some bytes here and remove them. Raises ``LocalDiskError`` if the disk refuses."""
        probe = self.path / "probe"
        with self._convert_disk_errors():
            try:
                probe.write_bytes(bytes(_PROBE_BYTES))
            finally:
                with suppress(FileNotFoundError):
                    probe.unlink()

    def sealed_path(self, version: int, attempt: str) -> Path:
        """Return the path of the file with an attempt's sealed delta: its block, else its parts. It may not exist."""
        block = self.sealed / paths.sealed_block_name(version, attempt)
        return block if block.exists() else self.sealed / f"{version}-{attempt}"

    def new_fetched_path(self, version: int, attempt: str, *, is_merged: bool = False, is_block: bool = False) -> Path:
        """Return a new path for a file with fetched parts of a delta, or with its block.

        ``is_merged``: of a merged delta, with this version and attempt in its id.
        """
        self.fetched.mkdir(PRIVATE, exist_ok=True)
        ending = f"{STORED}{paths.BLOCK}" if is_block else MERGED if is_merged else ""
        return self.fetched / f"{version}-{attempt}.{uuid.uuid4().hex}{ending}"

    def new_block_path(self, version: int, attempt: str) -> Path:
        """Return a new path for a block of merged parts of several copies, none newer than this attempt.

        Blocks are deleted as fetched parts are: when no stack uses them.
        """
        path = self.new_fetched_path(version, attempt)
        return path.with_name(path.name + paths.BLOCK)

    def sealed_attempts(self) -> tuple[str, ...]:
        """Return the attempts whose sealed delta is in the folder, sorted."""
        return tuple(sorted(file.attempt for file in list_sealed_files(self.sealed)))

    def remove_unused_deltas(self) -> None:
        """Delete files of deltas that no stack uses, except a few that a lagging stack may still need.

        A lagging stack can also get them from the store. Files as new as the newest stack (as the newest delta, if
        there is no stack) stay, because a task may be about to put them on a stack. While a task holds
        ``protect_deltas``, nothing is deleted. Files are ordered by epoch, then version, because batches that a
        rollback discarded may have left stacks with higher versions.
        """
        deltas = self._list_deltas()
        if not deltas or not self._can_remove_deltas():
            return
        listings = [self.stacks(store).listing() for store in self.stores()]
        heads = {head for listing in listings for head in listing.heads}
        newest = max(((head.epoch, head.version) for head in heads), default=_delta_age(deltas[0]))
        spare_bytes = max(sum(listing.size_bytes for listing in listings) * _SPARE_SHARE, _SPARE_BYTES_MIN)
        used = {name for listing in listings for name in listing.files}
        prefix = len(str(self.path)) + 1
        unused = [file for file in deltas if _delta_age(file) < newest and file.path[prefix:] not in used]
        fetched = f"{self.fetched}/"
        for number, file in enumerate(unused):
            with suppress(OSError):
                spare_bytes -= os.stat(file.path).st_size  # noqa: PTH116 - half the time of Path.stat
                if number >= _SPARE_FILES_MAX or spare_bytes < 0 or file.path.startswith(fetched):
                    Path(file.path).unlink(missing_ok=True)

    def remove_undecryptable(
        self, can_decrypt: Callable[[bytes], bool], header_bytes: int
    ) -> list[tuple[str, int]] | None:
        """Delete the part files whose header ``can_decrypt`` rejects, and the copies that use them. ``header_bytes`` is
        the length of a header.

        Return (store, key-group) of the deleted copies. Return ``None``, and delete nothing, if a task holds
        ``protect_deltas``.
        """
        files = [*(Path(file.path) for file in self._list_deltas()), *self.path.glob(f"{STACKS}/*/*{PART}")]
        rejected = {path for path in files if not can_decrypt(_read_header(path, header_bytes))}
        if rejected and not self._can_remove_deltas():
            return None
        names = {str(path.relative_to(self.path)) for path in rejected}
        dropped = [copy for copy in self.copies() if self._drop_if_using(*copy, names)] if rejected else []
        for path in rejected:
            path.unlink(missing_ok=True)
        return dropped

    def _drop_if_using(self, store: str, key_group: int, files: Collection[str]) -> bool:
        """Delete a key-group's copy if its stack uses one of the files. Return whether it did."""
        stacks = self.stacks(store)
        stack = stacks.read(key_group)
        if stack is None or not any(part.file in files for part in stack.parts):
            return False
        self.drop(store, key_group, stacks)
        return True

    def _list_deltas(self) -> list[SealedFile]:
        """Return the files of deltas, sealed and fetched, newest first."""
        files = [*list_sealed_files(self.sealed), *list_fetched_files(self.fetched)]
        return sorted(files, key=_delta_age, reverse=True)

    def _can_remove_deltas(self) -> bool:
        """Return whether no task holds ``protect_deltas``. Files that tasks write after this call are new."""
        try:
            with (self.path / _ADVANCING).open("rb") as file:  # not created here, so a full disk does not matter
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _delta_age(file: SealedFile) -> tuple[int, int]:
    """Return (epoch, version), the sort key of deltas."""
    return int(file.attempt.partition("-")[0]), file.version


def _read_header(path: Path, size_bytes: int) -> bytes:
    """Return the first bytes of a file, or no bytes if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size_bytes)
    except OSError:
        return b""


def claim_folder(base: Path, owner: str, live: Collection[str], process: str = "") -> Folder:
    """Return the folder of ``owner`` below ``base``: its own, else the most recently used free one, else a new folder.

    A folder is free if its owner is not among the ``live`` owners that the driver sees, or if the owner's process has
    ended on this machine. No free folder is taken while another process holds the lock of all claims. ``process`` is
    the owner's process, as ``abandoned.process_name`` returns it. Raises ``ConfigError`` on a network file system,
    ``LocalDiskError`` if the disk refuses or if ``base`` belongs to another user or is a symbolic link.
    """
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        make_private(base)
        _make_private(base)
        refuse_network(base)
        try:
            folder = _claim_locked(base, owner, live, process)
        except TimeoutError:  # without the lock only the owner's own folder or a new folder is safe to use
            folder = _find_own_folder(owner_files(base), owner, process) or _create_folder(base, owner, process)
        _make_private(folder.path)
    except OSError as error:
        raise disk_refused_error(f"Cannot create a folder for local copies: {error}", base) from error
    return folder


def _make_private(folder: Path) -> None:
    """Remove other users' rights to a folder.

    Raises ``LocalDiskError`` if another user owns it or it is not a folder.
    """
    try:
        narrow(folder)
    except ForeignFolder as foreign:
        raise LocalDiskError(
            f"Cannot use the folder for local copies, because it {foreign}.",
            remedy="Remove it, or set `local_dir` (spark.riffle.local_dir) to a folder that this user owns.",
            where=str(folder),
            id="RIFFLE-0389",
        ) from foreign


def _claim_locked(base: Path, owner: str, live: Collection[str], process: str) -> Folder:
    """Return the folder of ``owner``, a free one, or a new one, under the lock of all claims.

    Raises ``TimeoutError`` if another process holds the lock.
    """
    tries = 0
    while True:
        with lock_claims(base) as owners:
            own = _find_own_folder(owners, owner, process)
            free = [path for path in owners if own is None and is_owner_dead(path, live)]
            taken_over = (Folder(path.parent, owner) for path in free if _take_over_folder(path, owner, live, process))
            folder = own or next(taken_over, None)
            if folder is not None or not free or tries == _CLAIM_TRIES:
                return folder or _create_folder(base, owner, process)
        # A dead executor's Python worker still uses the free folder. A short wait costs less than restoring its copies.
        tries += 1
        time.sleep(_CLAIM_PAUSE_SECONDS)


def _find_own_folder(owners: Iterable[Path], owner: str, process: str) -> Folder | None:
    """Return the folder that belongs to ``owner``, and record its process there; ``None`` if there is none."""
    for path in owners:
        if path.read_text(errors="replace") == owner:
            (path.parent / "process").write_text(process)
            return Folder(path.parent, owner)
    return None


def _create_folder(base: Path, owner: str, process: str) -> Folder:
    """Create a folder for ``owner``."""
    folder = base / f"m{uuid.uuid4().hex[:12]}"
    folder.mkdir(PRIVATE)
    return _write_owner(folder, owner, process)


def _write_owner(folder: Path, owner: str, process: str) -> Folder:
    """Write the owner's process and then the owner into a folder.

    With the ended process of the old owner the folder would be free at once.
    """
    (folder / "process").write_text(process)
    (folder / "owner").write_text(owner)
    return Folder(folder, owner)


def _take_over_folder(path: Path, owner: str, live: Collection[str], process: str) -> bool:
    """Write ``owner`` into a free folder and delete unfinished files of its last owner.

    Return ``False`` if the folder is in use.
    """
    with lock_exclusively(path) as is_locked:
        if not is_locked or not is_owner_dead(path, live):
            return False
        remove_leftovers(path.parent)
        _write_owner(path.parent, owner, process)
        return True
