"""Local files whose operations are steps, with the faults of a disk.

Python raises an audit event before each file operation, so no list of the product's operations is needed. The disk
refuses operations, flips bits, truncates files, and tears files in a crash.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from riffle_spark.state.copies import abandoned, folder, journal_file, part_files, stacks
from riffle_spark.state.copies.disk import is_member_name
from riffle_spark.state.restore import prefetch, reader
from riffle_spark.worker import census, member_folders, run_computation, slot
from tests.dst.scheduler import Actor, Killed, Scheduler
from tests.dst.stepped_store import damaged

__all__ = ["DATA", "SteppedFiles"]

DATA = ("list", "part", "sealed", "fetched", "incoming")
"""The kinds of files with bytes of state. Other files are locks and owners of folders."""
_OPERATIONS = {
    "os.remove": "remove",
    "os.rmdir": "remove",
    "shutil.rmtree": "remove all of",
    "os.rename": "move",
    "os.mkdir": "make",
    "os.listdir": "look into",
    "os.scandir": "look into",
}
POLLED = 8
"""An actor that waits for a file lock tries it once in this many steps."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_UNSYNCED_SECONDS = 60.0
_REFUSALS = (errno.ENOSPC, errno.EROFS, errno.EIO)


class SteppedFiles:
    """The files below one folder while ``watched`` is active. Only operations of actors are steps."""

    def __init__(self, base: Path, scheduler: Scheduler) -> None:
        self.base = base
        self._prefix = f"{base}/"
        self._scheduler = scheduler
        self._chance = scheduler.chance
        self._written: dict[str, float] = {}
        self._manifests = _KeptByProcess(scheduler)
        self.harmed: set[str] = set()
        """Files that the disk refused, damaged or tore, and folders that were lost."""

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Make file operations of actors steps, and use simulated clocks, names and thread pools."""
        clock = _SimulatedTime(self._scheduler)
        for module in (folder, abandoned, census, slot, run_computation, journal_file):
            patch.setattr(module, "time", clock)
        for module in (folder, abandoned, journal_file, stacks):
            patch.setattr(module, "uuid", _DrawnNames(self._scheduler))
        for pools in (reader, prefetch):
            patch.setattr(pools, "ThreadPoolExecutor", InlinePool)
        patch.setattr(slot, "ThreadPoolExecutor", partial(SteppedPool, self._scheduler))
        patch.setattr(folder, "os", _SimulatedTouch(self._scheduler))
        patch.setattr(member_folders, "_manifests", self._manifests)
        _watch(self)
        try:
            yield
        finally:
            _watch(None)
            self._forget(lambda name: name.startswith(self._prefix))
            folders = member_folders._folders  # private: the memory of files is deleted with them
            for key in [key for key, entry in folders.items() if entry.path.is_relative_to(self.base)]:
                del folders[key]

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event, which precedes its operation."""
        actor = self._scheduler.mine()
        if actor is None or actor.kind == "reader":  # its files are used by no other actor
            return
        if event == "fcntl.flock":
            self._lock(actor, *arguments[:2])
            return
        path = os.fspath(arguments[0]) if isinstance(arguments[0], (str, os.PathLike)) else ""
        if not path.startswith(self._prefix):
            return
        operation = _OPERATIONS.get(event, "read")
        writes = event != "open"
        if event == "open":
            mode, flags = arguments[1:3]
            writes = bool(flags & _WRITES) if mode is None else bool(set(mode) & set("wax+"))
            operation = "write" if writes else "read"
        befalls = self._scheduler.step(f"{operation} {_kind_of(path[len(self._prefix) :])}")
        if befalls == "refused disk":
            self.harmed.add(path)
            code = self._chance.choice(_REFUSALS)
            raise OSError(code, os.strerror(code), path)
        if event == "os.rename" and abandoned._REMOVED in os.fspath(arguments[1]):  # private: name of removed folders
            self.harmed.add(path)
            self._check_alone(Path(path))
        if befalls == "truncated" or (befalls == "flipped byte" and path not in actor.written):
            self.damage(Path(path), befalls)
        if actor.process.executor and path.count("/") > self._prefix.count("/"):
            self._check_owned(actor, path)
        if event == "open" and writes:
            actor.wrote = path
            actor.wrote_from = _journal_size(path)
            actor.written.add(path)
            self._written[path] = self._scheduler.now

    def _check_alone(self, folder: Path) -> None:
        """A member's folder is removed only by an actor that holds its lock alone."""
        with self._scheduler.quiet(), suppress(FileNotFoundError), (folder / "owner").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._scheduler.broke(AssertionError(f"{folder.name} is removed by an actor without its exclusive lock"))

    def _check_owned(self, actor: Actor, path: str) -> None:
        """A member's folder is used only by its owner, or under an exclusive lock.

        A task whose executor lost the folder is too late.
        """
        base, folder, *inside = path[len(self._prefix) :].rstrip("/").split("/")[:3]
        if not inside or inside[0] in {"owner", "process"} or not is_member_name(folder):
            return
        with self._scheduler.quiet(), suppress(OSError), (self.base / base / folder / "owner").open() as file:
            owner = file.read()
            if owner.rpartition("/")[2] != actor.process.executor:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._scheduler.broke(AssertionError(f"{actor.name} uses the folder of {owner}"))

    def _lock(self, actor: Actor, file: int, operation: int) -> None:
        """Wait for a lock while other actors continue."""
        if operation & fcntl.LOCK_NB or operation & fcntl.LOCK_UN:
            return
        self._scheduler.step("lock a folder")

        asked_at = -POLLED
        is_mine = False

        def is_free() -> bool:
            nonlocal asked_at, is_mine
            if is_mine or self._scheduler.count < asked_at + POLLED:
                return is_mine
            asked_at = self._scheduler.count
            actor.quiet += 1
            try:
                fcntl.flock(file, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            finally:
                actor.quiet -= 1
            is_mine = True
            return True

        self._scheduler.wait(is_free)

    def damage(self, path: Path, kind: str) -> None:
        """Damage a file: flip a bit or a range of bytes, or truncate it."""
        self.harmed.add(str(path))
        with self._scheduler.quiet(), suppress(FileNotFoundError, IsADirectoryError):
            data = path.read_bytes()
            if data:
                position = self._chance.randrange(len(data))
                path.write_bytes(damaged(data, position, self._chance) if kind == "flipped byte" else data[:position])
                # Set another time, because a change within one clock tick would not change the file's signature.
                os.utime(path, ns=(0, self._chance.randrange(1 << 60)))

    def tear(self, actor: Actor) -> None:
        """Keep a part of the bytes that a killed actor was writing. A journal keeps its earlier entries."""
        if actor.wrote is not None and self._chance.random() < 0.5:
            self.harmed.add(actor.wrote)
            with suppress(OSError):
                size = Path(actor.wrote).stat().st_size
                os.truncate(actor.wrote, self._chance.randrange(min(actor.wrote_from, size), size + 1))

    def reboot(self, folders: list[Path]) -> int:
        """Tear files that were not synced: truncate them, or replace pages or all of them with zeros.

        Return how many files were torn.
        """
        torn = 0
        since = self._scheduler.now - _UNSYNCED_SECONDS
        for name, written_at in sorted(self._written.items()):
            path = Path(name)
            if (
                written_at < since
                or not any(path.is_relative_to(folder) for folder in folders)
                or self._chance.random() < 0.5
            ):
                continue
            self.harmed.add(name)
            with self._scheduler.quiet(), suppress(OSError):
                size = path.stat().st_size
                damage_kind = self._chance.choice(["empty", "zeros", "short"])
                data = b"" if damage_kind == "empty" else path.read_bytes()[: self._chance.randrange(size + 1)]
                path.write_bytes(data.ljust(size, b"\0") if damage_kind == "zeros" else data)
                os.utime(path, ns=(0, self._chance.randrange(1 << 60)))
                torn += 1
        return torn

    def lose(self, owner: str) -> None:
        """Record that an owner's folders are lost with its disk."""
        owners = [path for path in self.base.glob("*/*/owner") if path.read_text() == owner]
        self.harmed.update(str(path.parent) for path in owners)

    def forget_process(self, owner: str) -> list[Path]:
        """Forget what an ended process had in memory about its folders. Return these folders."""
        folder_keys = [key for key in member_folders._folders if key[1] == owner]  # private: memory of the process
        paths = [member_folders._folders.pop(key).path for key in folder_keys]  # private: memory of the process
        self._manifests.by_process.pop(owner.rpartition("/")[2], None)
        self._forget(lambda name: any(name.startswith(str(path)) for path in paths))
        return paths

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        # private parts: caches and simulated time of the product
        for cache in (part_files._files, journal_file._states, part_files._next_address):
            for name in [name for name in cache if is_gone(name)]:
                cache.pop(name, None)


def _journal_size(path: str) -> int:
    """Return the size of a journal, 0 for other files."""
    if not path.endswith(journal_file.JOURNAL):
        return 0
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _kind_of(name: str) -> str:
    parts = [part for part in name.split("/") if part]
    inside = parts[2:]
    if not inside:
        return "claims" if parts[-1:] == [".claims"] else "folders"
    if inside[0] == "stacks":
        return "stacks" if len(inside) < 3 else ("list" if name.endswith(journal_file.JOURNAL) else "part")
    if inside[0] in {"sealed", "fetched", "incoming"}:
        return inside[0] if len(inside) > 1 else f"{inside[0]} files"
    return inside[0]


_watching: SteppedFiles | None = None
_hooked = False
_HEARD = {"open", "fcntl.flock", *_OPERATIONS}


def _watch(files: SteppedFiles | None) -> None:
    global _hooked, _watching  # noqa: PLW0603 - a hook can be added, once, and is never taken away
    _watching = files
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None and event in _HEARD:
        _watching.heard(event, arguments)


class InlinePool:
    """A replacement of a thread pool that runs submitted work immediately in the same thread."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        """Run the work. Return a completed future."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - as a pool does
            done.set_exception(error)
        return done

    def map(self, work: Any, items: Any) -> list[Any]:
        """Return the results of the work for each item."""
        return [work(item) for item in items]

    def shutdown(self, *, cancel_futures: bool = False) -> None:
        """Do nothing, because no work is pending."""


class SteppedPool:
    """A replacement of the thread pool for a slot's puts. Each put is an actor in the process of the slot."""

    def __init__(self, scheduler: Scheduler, _threads: int, _name: str) -> None:
        self._scheduler = scheduler
        self._puts: list[Actor] = []

    def __enter__(self) -> SteppedPool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not Killed:
            self._scheduler.wait(lambda: all(put.done for put in self._puts))

    def submit(self, work: Callable[[], None]) -> _Put:
        """Start a put."""
        outcome = _Put(self._scheduler)
        slot_actor = self._scheduler.mine()
        if slot_actor is None:
            outcome.run(work)
            return outcome
        name = f"a put of {slot_actor.name}"
        outcome.actor = self._scheduler.spawn(name, slot_actor.kind, slot_actor.process, lambda: outcome.run(work))
        self._puts.append(outcome.actor)
        return outcome


class _Put:
    """The outcome of a put. If the put dies, its slot dies too, because both are one Python worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._future: Future[None] = Future()
        self.actor: Actor | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Run the put and store its outcome."""
        try:
            work()
            self._future.set_result(None)
        except Exception as error:  # noqa: BLE001 - as a pool does
            self._future.set_exception(error)

    def result(self) -> None:
        """Wait for the put. Raises its error."""
        put = self.actor
        slot_actor = self._scheduler.mine()
        if put is not None:
            self._scheduler.wait(lambda: put.done)
            if not self._future.done() and slot_actor is not None:
                self._scheduler.kill(slot_actor)
        self._future.result(0)


class _KeptByProcess(MutableMapping[Any, Any]):
    """The memory of each executor's process. All executors are simulated in one process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.by_process: dict[str, dict[Any, Any]] = {}

    def _mine(self) -> dict[Any, Any]:
        actor = self._scheduler.mine()
        return self.by_process.setdefault(actor.process.executor if actor is not None else "", {})

    def __getitem__(self, name: Any) -> Any:
        return self._mine()[name]

    def __setitem__(self, name: Any, entry: Any) -> None:
        self._mine()[name] = entry

    def __delitem__(self, name: Any) -> None:
        del self._mine()[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())


class _DrawnNames:
    """A replacement of ``uuid`` with names from the seed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._chance = scheduler.chance

    def uuid4(self) -> UUID:
        """Return a random name."""
        return UUID(bytes=self._chance.randbytes(16))


class _SimulatedTime:
    """A replacement of ``time`` with simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def sleep(self, seconds: float) -> None:
        """Wait, and let other actors continue."""
        self._scheduler.sleep(max(seconds, 0.001))

    def time(self) -> float:
        """Return the simulated time."""
        return self._scheduler.now

    perf_counter = monotonic = time


class _SimulatedTouch:
    """A replacement of ``os`` that sets file times to simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def utime(self, file: int) -> None:
        """Set the file's times to now."""
        if self._scheduler.mine() is not None:
            self._scheduler.step("touch owner")
        mtime_ns = int(self._scheduler.now * 1000) * 1_000_000
        os.utime(file, ns=(mtime_ns, mtime_ns))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
