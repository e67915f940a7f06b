"""A member's folder on local disk. Knows who may use it and where copies lie in it. Does not know what copies hold.

    <local_dir>/<root id>/<member>/owner                     whose folder it is: "<application>/<executor>"
                                  /stacks/<store>/<0042>     which parts make up a copy
                                  /stacks/<store>/<0042>.*   parts of it: snapshots, and what was merged
                                  /sealed/<version>-<attempt> the deltas this member sealed, as bytes
                                  /fetched/<version>-<attempt>.* parts of deltas that others sealed
                                  /incoming/<store>/...      snapshots that are half fetched

Theory of operation. A folder outlives its executor. A new executor takes one whose owner is not alive, by writing its
own id under an exclusive, non-blocking lock; every use holds a shared lock and finds its own id first. So a folder is
never used by two executors, and a late task of a dead executor stops at the door. Claims on one host are taken one at
a time. Every use sets the ``owner`` file's time. So a new executor finds the warmest of several folders, and folders to
which no executor returns can be removed. Folders have mode 0700, because they hold rows. A folder of another user or a
symbolic link is not used: its files may be forged.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from riffle_spark.errors import LocalDiskError, OutOfDate
from riffle_spark.private_folders import PRIVATE, ForeignFolder, make_private, narrow
from riffle_spark.state.copies.abandoned import claims_of, is_free, owners_in, remove_strays, unless_used
from riffle_spark.state.copies.disk import SealedFile, disk_refused, fetched_files, refuse_network, sealed_files
from riffle_spark.state.copies.stack import PART, STACKS, Stacks

__all__ = ["Folder", "claim"]

_LOOKS = 60
_LOOK_SECONDS = 0.05
_SPARE_FILES_MAX = 256
_SPARE_BYTES_MIN = 256 << 10
_SPARE_SHARE = 0.1
"""Deltas that no stack has may be wanted by one that lags: as many bytes as this share of those that stacks have."""
_PROBE_BYTES = 1 << 20
_ADVANCING = "advancing"


class Folder:
    """One member's folder. ``member`` is its name, and the member's."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.member = path.name
        self._owner = owner
        self.sealed = path / "sealed"
        self.fetched = path / "fetched"

    @contextmanager
    def used(self) -> Iterator[None]:
        """Hold the folder for its owner.

        Raises ``OutOfDate`` if another executor has taken it over, or if it is gone: the next attempt claims anew.
        """
        with self._on_disk():
            file = (self.path / "owner").open("r", errors="replace")
        with file:
            with self._on_disk():
                fcntl.flock(file, fcntl.LOCK_SH)
                owner = file.read()
            if owner != self._owner:
                raise OutOfDate(
                    "this executor's folder was taken over by another one", where=str(self.path), id="RIFFLE-0386"
                )
            with self._on_disk():
                os.utime(file.fileno())
            yield

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Tell what the disk refuses in words of ours: the folder is gone, or it cannot be used."""
        try:
            yield
        except OSError as error:
            if not (self.path / "owner").exists():
                raise OutOfDate(
                    "this executor's folder is gone from its disk", where=str(self.path), id="RIFFLE-0387"
                ) from error
            raise disk_refused(f"a local copy cannot be kept: {error}", self.path) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold what one piece of upkeep at a time may do. Raises ``OutOfDate`` if another one is at work here."""
        with self._on_disk():
            file = (self.path / "upkeep").open("a")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutOfDate(
                    "another piece of upkeep is still at work", where=str(self.path), id="RIFFLE-0388"
                ) from None
            yield

    def tidy(self, added_before: float) -> bool:
        """Remove what processes of this owner that died left half done, but of half-fetched snapshots only those not
        added to since that time (seconds, Unix); return whether nobody was in, so that it was safe.
        """
        with self._on_disk(), unless_used(self.path / "owner") as free:
            if free and self.is_of_owner():
                remove_strays(self.path, added_before)
            return free

    @contextmanager
    def advancing(self) -> Iterator[None]:
        """Have files of deltas stay for the length of the block, be they on a stack or not yet. Nobody waits: at the
        moment that another process looks for those to remove, this does nothing.
        """
        with self._on_disk():
            file = (self.path / _ADVANCING).open("a")
        with file:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield

    def is_of_owner(self) -> bool:
        """Tell whether the folder is still there and its owner's."""
        try:
            return (self.path / "owner").read_text(errors="replace") == self._owner
        except OSError:
            return False

    def stacks(self, store: str) -> Stacks:
        """Return the stacks of a store. Whoever looks at many key-groups asks once."""
        return Stacks(self.path, store)

    def stores(self) -> list[str]:
        """Return the stores that have stacks here, sorted."""
        return sorted(path.name for path in self.path.glob("stacks/*"))

    def held(self, store: str) -> set[int]:
        """Return the key-groups of a store of which there is a copy, whatever it is worth."""
        return set(self.stacks(store).key_groups())

    def copies(self) -> list[tuple[str, int]]:
        """Return (store, key-group) of every current copy, sorted."""
        return [(store, key_group) for store in self.stores() for key_group in self.stacks(store).key_groups()]

    def drop(self, store: str, key_group: int, stacks: Stacks | None = None) -> None:
        """Remove the current copy of a key-group, if there is one; ``stacks`` are the store's where they were looked
        at already.
        """
        with self._on_disk():
            (stacks or self.stacks(store)).drop(key_group)

    def wipe(self) -> None:
        """Remove everything but the claim: all copies, sealed deltas and what was half fetched."""
        for path in [path for path in self.path.iterdir() if path.is_dir()]:
            shutil.rmtree(path, ignore_errors=True)

    def keep_sealed(self, version: int, attempt: str, data: bytes) -> bool:
        """Keep the bytes of a sealed delta; return whether the disk took them (a failure harms nothing)."""
        path = self.sealed / f"{version}-{attempt}"
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

    def try_disk(self) -> None:
        """Write some bytes here and remove them. Raises ``LocalDiskError`` if the disk refuses."""
        probe = self.path / "probe"
        with self._on_disk():
            try:
                probe.write_bytes(bytes(_PROBE_BYTES))
            finally:
                with suppress(FileNotFoundError):
                    probe.unlink()

    def sealed_file(self, version: int, attempt: str) -> Path:
        """Return where the sealed delta of an attempt lies, if it was kept."""
        return self.sealed / f"{version}-{attempt}"

    def fetched_file(self, version: int, attempt: str) -> Path:
        """Return a new path for parts of a delta that another member sealed."""
        self.fetched.mkdir(PRIVATE, exist_ok=True)
        return self.fetched / f"{version}-{attempt}.{uuid.uuid4().hex}"

    def sealed_attempts(self) -> tuple[str, ...]:
        """Return the attempts whose sealed deltas lie here, sorted."""
        return tuple(sorted(file.attempt for file in sealed_files(self.sealed)))

    def forget_deltas(self) -> None:
        """Remove files of deltas that no stack has any more, but for a few that a stack which lags may still want: they
        are in the store. What is as new as the newest stack (the newest delta, where there is none) may be about to
        be put on one, or folded, and stays; so does everything while somebody is about to.

        New is by epoch, then by version: stacks may be left of a line with higher versions that was rolled back.
        """
        deltas = self._deltas()
        if not deltas or not self._nobody_advances():
            return
        stores = [self.stacks(store) for store in self.stores()]
        read = [stacks.read(key_group) for stacks in stores for key_group in stacks.key_groups()]
        held = [stack for stack in read if stack is not None]
        parts = {part for stack in held for part in stack.parts}
        wanted = {part.file for part in parts}
        newest = max(((stack.head.epoch, stack.head.version) for stack in held), default=_age(deltas[0]))
        left = max(sum(part.length for part in parts) * _SPARE_SHARE, _SPARE_BYTES_MIN)
        spare = [file for file in deltas if f"{file.path.parent.name}/{file.path.name}" not in wanted]
        for number, file in enumerate(file for file in spare if _age(file) < newest):
            with suppress(OSError):
                left -= file.path.stat().st_size
                if number >= _SPARE_FILES_MAX or left < 0 or file.path.parent == self.fetched:
                    file.path.unlink(missing_ok=True)

    def forget_parts(self, reads: Callable[[bytes], bool], head_bytes: int) -> list[tuple[str, int]] | None:
        """Remove files of parts of which ``reads``, given so many of their first bytes, says that nobody can read them,
        and the copies that have such; return (store, key-group) of these. ``None`` while somebody is about to put parts
        on stacks: then nothing is done.
        """
        files = [*(file.path for file in self._deltas()), *self.path.glob(f"{STACKS}/*/*{PART}")]
        gone = {path for path in files if not reads(_head_of(path, head_bytes))}
        if gone and not self._nobody_advances():
            return None
        names = {str(path.relative_to(self.path)) for path in gone}
        dropped = [copy for copy in self.copies() if self._drop_if_of(*copy, names)] if gone else []
        for path in gone:
            path.unlink(missing_ok=True)
        return dropped

    def _drop_if_of(self, store: str, key_group: int, names: Collection[str]) -> bool:
        stacks = self.stacks(store)
        stack = stacks.read(key_group)
        if stack is None or not any(part.file in names for part in stack.parts):
            return False
        self.drop(store, key_group, stacks)
        return True

    def _deltas(self) -> list[SealedFile]:
        files = [*sealed_files(self.sealed), *fetched_files(self.fetched)]
        return sorted(files, key=_age, reverse=True)

    def _nobody_advances(self) -> bool:
        """Tell whether nobody is about to put files of deltas on stacks. Those that come from now on are new ones."""
        try:
            with (self.path / _ADVANCING).open("rb") as file:  # whoever advances has made it: a full disk is no matter
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _age(file: SealedFile) -> tuple[int, int]:
    """Return what deltas are older or newer by: the epoch, then the version."""
    return int(file.attempt.partition("-")[0]), file.version


def _head_of(path: Path, size_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size_bytes)
    except OSError:
        return b""


def claim(base: Path, owner: str, live: Collection[str], process: str = "") -> Folder:
    """Return the folder of ``owner`` below ``base``: its own, else a free one, else a new one.

    ``live`` are the owners the driver sees alive; a folder of any other is free, and so is one whose owner's process
    has ended on this machine, which is known here sooner than to the driver. Of several free ones the one used last is
    taken; none is where a process that hangs has the lock of all claims. ``process`` names the owner's (``abandoned``
    reads it), if that is known. Raises ``ConfigError`` on a network file system, ``LocalDiskError`` if the disk
    refuses, or if ``base`` belongs to another user or is a symbolic link.
    """
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        make_private(base)
        _narrow(base)
        refuse_network(base)
        try:
            folder = _claimed(base, owner, live, process)
        except TimeoutError:  # a process that hangs keeps all others from what is free, not from what is theirs
            folder = _its_own(owners_in(base), owner, process) or _begun(base, owner, process)
        _narrow(folder.path)
    except OSError as error:
        raise disk_refused(f"no folder for local copies can be made: {error}", base) from error
    return folder


def _narrow(folder: Path) -> None:
    """Remove other users' rights to a folder, whatever umask or version made it. Raises ``LocalDiskError`` if another
    user owns it.
    """
    try:
        narrow(folder)
    except ForeignFolder as foreign:
        raise LocalDiskError(
            f"a folder for local copies {foreign}",
            remedy="remove it, or set `local_dir` (spark.riffle.local_dir) to a folder of this user's own",
            where=str(folder),
            id="RIFFLE-0389",
        ) from foreign


def _claimed(base: Path, owner: str, live: Collection[str], process: str) -> Folder:
    looks = 0
    while True:
        with claims_of(base) as owners:
            own = _its_own(owners, owner, process)
            free = [path for path in owners if own is None and is_free(path, live)]
            taken = (Folder(path.parent, owner) for path in free if _take(path, owner, live, process))
            if (found := own or next(taken, None)) is not None or not free or looks == _LOOKS:
                return found or _begun(base, owner, process)
        # A dead executor's Python worker is in there and about to notice; its copies are worth the wait, not others'.
        looks += 1
        time.sleep(_LOOK_SECONDS)


def _its_own(owners: Iterable[Path], owner: str, process: str) -> Folder | None:
    for path in owners:
        if path.read_text(errors="replace") == owner:
            (path.parent / "process").write_text(process)
            return Folder(path.parent, owner)
    return None


def _begun(base: Path, owner: str, process: str) -> Folder:
    folder = base / _new_name()
    folder.mkdir(PRIVATE)
    return _signed(folder, owner, process)


def _signed(folder: Path, owner: str, process: str) -> Folder:
    """Say whose the folder is, its process first: with the one before, which has ended, it would be free at once."""
    (folder / "process").write_text(process)
    (folder / "owner").write_text(owner)
    return Folder(folder, owner)


def _new_name() -> str:
    return f"m{uuid.uuid4().hex[:12]}"


def _take(path: Path, owner: str, live: Collection[str], process: str) -> bool:
    """Write ``owner`` into a free folder; what the one before left half done goes while nobody can be in it."""
    with unless_used(path) as free:
        if not free or not is_free(path, live):
            return False
        remove_strays(path.parent)
        _signed(path.parent, owner, process)
        return True
