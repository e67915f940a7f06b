"""An object store in which each call is a step, with the faults that a real object store can have."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from riffle_spark.errors import UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.state.objects.store import ObjectStore, TaggedObject, write_all
from tests.dst.scheduler import Process, Scheduler

__all__ = ["SteppedStore", "damaged", "kind_of"]

STRETCH_BYTES = 64
LATE_SECONDS = (0.01, 1.0, 100.0)
UNANSWERED_SECONDS = (0.0, 0.0, 60.0)
"""Possible durations of a call that fails, in seconds."""
LASTS = (0, 0, 0, 2, 12)
"""Possible numbers of calls that fail after the first one."""


def damaged(data: bytes, position: int, chance: random.Random) -> bytes:
    """Return bytes with one flipped bit, or with an inverted range from the position on."""
    if chance.random() < 0.5:
        return data[:position] + bytes([data[position] ^ (1 << chance.randrange(8))]) + data[position + 1 :]
    stretch = data[position : position + STRETCH_BYTES]
    return data[:position] + bytes(255 - byte for byte in stretch) + data[position + len(stretch) :]


def kind_of(name: str) -> str:
    """Return the kind of object that a name belongs to."""
    parsed = paths.parse_object_name(name)
    if parsed is not None:
        return parsed.kind
    if name == paths.MAILBOX:
        return "mailbox"
    return "record" if name.startswith(paths.LOG) else "everything"


class SteppedStore:
    """A store whose calls are steps and go to ``inner``.

    ``changed`` is called with each name that was put, and with an empty name after a delete.
    """

    def __init__(self, inner: ObjectStore, scheduler: Scheduler, changed: Callable[[str], None]) -> None:
        self.inner = inner
        self._scheduler = scheduler
        self._changed = changed
        self._outside = Process("object store")
        self.read: Callable[[int], object] = lambda _: None
        """Called with the number of each record that an actor has read."""
        self.damages: Callable[[str], object] = lambda _: None
        """Called with each object whose bytes are damaged."""
        self.deletes: Callable[[Sequence[str]], object] = lambda _: None
        """Called with the names of each delete before it is done."""

    def __repr__(self) -> str:
        return f"SteppedStore({self.inner!r})"

    @property
    def requests(self) -> dict[str, int]:
        """The requests that reached the inner store."""
        return self.inner.requests

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``."""
        befalls = self._step("put", name)
        if befalls == "late effect":
            self._later(name, bytes(data))
            raise self._unavailable(befalls, name)
        done = self.inner.put_if_absent(name, data)
        self._changed(name)
        self._lose(befalls, name)
        return done

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """See ``ObjectStore.replace_if_unchanged``.

        It has no late effect: only operators replace, and they read again.
        """
        befalls = self._step("put", name)
        done = self.inner.replace_if_unchanged(name, data, tag)
        self._changed(name)
        self._lose(befalls, name)
        return done

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """See ``ObjectStore.get_if_changed``."""
        befalls = self._step("get", name)
        tagged = self.inner.get_if_changed(name, tag)
        self._lose(befalls, name)
        return tagged

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``."""
        befalls = self._step("get", name)
        data = self.inner.get(name, start, length)
        self._lose(befalls, name)
        if befalls == "missing":
            self._damages(name)
            return None
        if not data:
            return data
        if (sequence := paths.parse_record_name(name)) is not None:
            self.read(sequence)
        position = self._scheduler.chance.randrange(len(data)) if befalls in {"flipped byte", "truncated"} else 0
        if befalls in {"flipped byte", "truncated"}:
            self._damages(name)
        if befalls == "truncated":
            return data[:position]
        return damaged(data, position, self._scheduler.chance) if befalls == "flipped byte" else data

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``."""
        return write_all(self.get(name, start, length), write)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``."""
        befalls = self._step("head", name)
        exists = self.inner.exists(name)
        self._lose(befalls, name)
        actor = self._scheduler.mine()
        if actor is not None and not exists and paths.parse_record_name(name) is not None:
            actor.saw_free = self._scheduler.count
        return exists

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``."""
        befalls = self._step("list", prefix)
        names = self.inner.list(prefix)
        self._lose(befalls, prefix)
        return names

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """See ``ObjectStore.list_folders``."""
        befalls = self._step("list", prefix)
        folders = self.inner.list_folders(prefix)
        self._lose(befalls, prefix)
        return folders

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``. If it fails, some of the objects may be deleted."""
        befalls = self._step("delete", names[0] if names else "")
        self.deletes(names)
        deleted = names[: self._scheduler.chance.randrange(len(names) + 1)] if befalls == "error after" else names
        self.inner.delete(deleted)
        self._changed("")
        self._lose(befalls, ", ".join(names))

    def _step(self, method: str, name: str) -> str | None:
        befalls = self._lasting(self._scheduler.step(f"{method} {kind_of(name)}"))
        if befalls == "error before":
            raise self._unavailable(befalls, name)
        return befalls

    def _lasting(self, befalls: str | None) -> str | None:
        """Return the fault of a call. After a failed call, the next calls of the same actor may fail too."""
        actor = self._scheduler.mine()
        if actor is None:
            return befalls
        kind, details = actor.unanswered
        if befalls in {"error before", "error after"}:
            actor.unanswered = (befalls, self._scheduler.chance.choice(LASTS))
        elif befalls is None and details:
            actor.unanswered = (kind, details - 1)
            return kind
        return befalls

    def _lose(self, befalls: str | None, name: str) -> None:
        if befalls == "error after":
            raise self._unavailable(befalls, name)

    def _damages(self, name: str) -> None:
        self.damages(name)
        self._note(name)

    def _note(self, name: str) -> None:
        actor = self._scheduler.mine()
        if actor is not None:
            actor.met.add(name)

    def _later(self, name: str, data: bytes) -> None:
        def land() -> None:
            self._scheduler.sleep(self._scheduler.chance.choice(LATE_SECONDS))
            self.inner.put_if_absent(name, data)
            self._changed(name)

        self._scheduler.spawn(f"late {name}", "late put", self._outside, land)

    def _unavailable(self, befalls: str, name: str) -> UnavailableError:
        self._note(name)
        self._scheduler.sleep(self._scheduler.chance.choice(UNANSWERED_SECONDS))
        return UnavailableError(f"the store failed: {befalls}", remedy="none: it is simulated", where=name)
