"""A store that fails on purpose, by a script.

   store = FaultyStore(MemoryStore(), [Fault("answer_lost", name="log/", skip=1)])

The second put below ``log/`` succeeds but raises ``UnavailableError``. All other calls succeed.
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
    """One line of the script: a kind of fault and the calls that it affects.

    - ``answer_lost``: The call succeeds, and then raises ``UnavailableError``.
    - ``request_lost`` and ``unavailable``: The call raises ``UnavailableError`` and has no effect.
    - ``late``: A put raises ``UnavailableError``. The object is written when ``FaultyStore.land`` is called.
    - ``slow``: The call succeeds after ``seconds``.
    - ``truncated``: A get returns the first half of the bytes.
    - ``flipped``: A get returns bytes with one changed bit in the middle.
    - ``missing``: A get finds nothing.
    - ``overwrites``: A put replaces an existing object.
    """

    kind: Kind
    method: str = ""
    """The affected method: ``put get head list delete``. An empty text stands for all methods that it can affect."""
    name: str = ""
    """A prefix of the affected object's name. For a delete one name must match, for a list its prefix."""
    skip: int = 0
    """The number of matching calls that succeed first."""
    times: int | None = 1
    """The number of calls that fail afterwards. ``None`` stands for all."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.method and self.method not in _METHODS[self.kind]:
            raise ConfigError(f"{self.kind!r} cannot befall a {self.method!r}", remedy=f"use {_METHODS[self.kind]}")

    def fits(self, method: str, names: Sequence[str]) -> bool:
        """Return whether this fault affects a call."""
        methods = (self.method,) if self.method else _METHODS[self.kind]
        return method in methods and any(name.startswith(self.name) for name in names)


class FaultyStore:
    """A store that forwards calls to ``inner``, except for the scripted faults.

    If several faults are due for one call, the first takes effect. ``calls`` lists every call as (method, name).
    ``sleep`` is the function with which slow calls wait. The same calls in the same order fail in the same way.
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
        """The counts of requests that the inner store received."""
        return self.inner.requests

    def script(self, *faults: Fault) -> None:
        """Add faults to the script. Each counts the calls from now on."""
        with self._lock:
            self._script += faults
            self._seen += [0] * len(faults)

    def heal(self) -> None:
        """Drop the rest of the script. Late puts still wait for ``land``."""
        with self._lock:
            self._script, self._seen = [], []

    def land(self) -> list[bool]:
        """Write the late puts in their order, and return the results of these puts."""
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
        """See ``ObjectStore.replace_if_unchanged``. It has the faults of a ``put``, except ``late``."""
        fault = self._due("put", (name,))
        return self._do(fault, name, lambda: self.inner.replace_if_unchanged(name, data, tag))

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """See ``ObjectStore.get_if_changed``. It has the faults of a ``get`` that raise, and ``missing``."""
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
        """See ``ObjectStore.copy_to``. It has the faults of a ``get``."""
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
        """Record a call and return the fault that takes effect. Every matching fault counts the call."""
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
        """Execute a call with its fault, if there is one."""
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
