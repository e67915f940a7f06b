"""A store that fails on purpose, by a script.

    store = FaultyStore(MemoryStore(), [Fault("answer_lost", name="log/", skip=1)])

The second put below ``log/`` succeeds but raises ``UnavailableError``; everything else goes through.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.state.objects.store import ObjectStore, TaggedObject, write_all

__all__ = ["Fault", "FaultyStore", "Kind"]

Kind = Literal[
    "answer_lost", "request_lost", "late", "unavailable", "slow", "truncated", "flipped", "missing", "overwrites"
]
_ALL = ("put", "get", "head", "list", "delete")
_METHODS: dict[Kind, tuple[str, ...]] = {
    "answer_lost": ("put", "delete"),
    "request_lost": ("put", "delete"),
    "late": ("put",),
    "unavailable": _ALL,
    "slow": _ALL,
    "truncated": ("get",),
    "flipped": ("get",),
    "missing": ("get",),
    "overwrites": ("put",),
}
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the script: what happens to which calls.

    ``answer_lost``: the call works, then raises ``UnavailableError``. ``request_lost``: it raises and nothing was done.
    ``late``: it raises, and the bytes arrive only when ``FaultyStore.land`` is called. ``unavailable``: it raises.
    ``slow``: ``seconds`` pass, then it works. ``truncated``: a get lacks its second half. ``flipped``: a get has one
    bit changed, in its middle byte. ``missing``: a get finds nothing. ``overwrites``: a put of a name that is taken
    replaces the object.
    """

    kind: Kind
    method: str = ""
    """``put get head list delete``; empty: every method that the kind can befall."""
    name: str = ""
    """What the object's name (of a delete: one of the names; of a list: the prefix) begins with."""
    skip: int = 0
    """So many fitting calls go well first."""
    times: int | None = 1
    """Then so many fail; ``None``: all."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.method and self.method not in _METHODS[self.kind]:
            raise ConfigError(f"{self.kind!r} cannot befall a {self.method!r}", remedy=f"use {_METHODS[self.kind]}")

    def fits(self, method: str, names: Sequence[str]) -> bool:
        """Tell whether a call is one that this fault is about."""
        methods = (self.method,) if self.method else _METHODS[self.kind]
        return method in methods and any(name.startswith(self.name) for name in names)


class FaultyStore:
    """Do what ``inner`` does, but for the scripted faults; where several are due for one call, the first is taken.

    ``calls`` lists every call as (method, name). ``sleep`` is what a slow call waits with. Deterministic: the same
    calls in the same order fail in the same way.
    """

    def __init__(
        self, inner: ObjectStore, faults: Iterable[Fault] = (), sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self._script: list[Fault] = []
        self._seen: list[int] = []
        self._late: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()
        self._sleep = sleep
        self.script(*faults)

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    @property
    def requests(self) -> dict[str, int]:
        """What reached the inner store."""
        return self.inner.requests

    def script(self, *faults: Fault) -> None:
        """Add faults; each counts the calls from here on."""
        with self._lock:
            self._script += faults
            self._seen += [0] * len(faults)

    def heal(self) -> None:
        """Forget the rest of the script. Late bytes still wait for ``land``."""
        with self._lock:
            self._script, self._seen = [], []

    def land(self) -> list[bool]:
        """Let the late puts arrive, in their order; return what each would have answered."""
        with self._lock:
            late, self._late = self._late, []
        return [self.inner.put_if_absent(name, data) for name, data in late]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``."""
        fault = self._due("put", (name,))
        if fault and fault.kind == "late":
            with self._lock:
                self._late.append((name, bytes(data)))
            raise _unavailable(fault, name)
        if fault and fault.kind == "overwrites":
            self.inner.delete([name])
        return self._do(fault, name, lambda: self.inner.put_if_absent(name, data))

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """See ``ObjectStore.replace_if_unchanged``; the faults of a ``put``, but none that is ``late``."""
        fault = self._due("put", (name,))
        return self._do(fault, name, lambda: self.inner.replace_if_unchanged(name, data, tag))

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """See ``ObjectStore.get_if_changed``; the faults of a ``get`` that raise."""
        fault = self._due("get", (name,))
        tagged = self._do(fault, name, lambda: self.inner.get_if_changed(name, tag))
        return None if fault and fault.kind == "missing" else tagged

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``."""
        fault = self._due("get", (name,))
        data = self._do(fault, name, lambda: self.inner.get(name, start, length))
        if fault is None or data is None or fault.kind == "slow":
            return data
        middle = len(data) // 2
        if fault.kind == "truncated":
            return data[:middle]
        if fault.kind == "flipped" and data:
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return None if fault.kind == "missing" else data

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``; the faults of a ``get``."""
        return write_all(self.get(name, start, length), write)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``."""
        return self._do(self._due("head", (name,)), name, lambda: self.inner.exists(name))

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``."""
        return self._do(self._due("list", (prefix,)), prefix, lambda: self.inner.list(prefix))

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        return self._do(self._due("delete", names), ", ".join(names), lambda: self.inner.delete(names))

    def _due(self, method: str, names: Sequence[str]) -> Fault | None:
        """Note the call; return the fault that befalls it. Every fault that fits counts it, taken or not."""
        due: Fault | None = None
        with self._lock:
            self.calls.append((method, ", ".join(names)))
            for place, fault in enumerate(self._script):
                if fault.fits(method, names):
                    turn = self._seen[place] - fault.skip
                    self._seen[place] += 1
                    if due is None and turn >= 0 and (fault.times is None or turn < fault.times):
                        due = fault
        return due

    def _do(self, fault: Fault | None, name: str, work: Callable[[], Result]) -> Result:
        """Do the work, before, after or without the fault."""
        if fault and fault.kind == "slow":
            self._sleep(fault.seconds)
        if fault and fault.kind in {"unavailable", "request_lost"}:
            raise _unavailable(fault, name)
        result = work()
        if fault and fault.kind == "answer_lost":
            raise _unavailable(fault, name)
        return result


def _unavailable(fault: Fault, name: str) -> UnavailableError:
    return UnavailableError(f"scripted fault: {fault.kind}", remedy="none: a test asked for it", where=name)
