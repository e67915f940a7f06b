"""A store that fails on purpose, by a script.

    store = FaultyStore(MemoryStore(), [Fault("answer_lost", name="log/", skip=1)])

The second put below ``log/`` succeeds but raises ``UnavailableError``. All other calls reach the inner store.
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
    """One line of the script: which calls fail, and how.

    - ``answer_lost``: the call takes effect, then raises ``UnavailableError``.
    - ``request_lost``: the call raises ``UnavailableError`` and has no effect.
    - ``late``: the call raises ``UnavailableError``. Its bytes are written only by ``FaultyStore.land``.
    - ``unavailable``: the call raises ``UnavailableError``.
    - ``slow``: the call takes ``seconds`` longer.
    - ``truncated``: a get returns only the first half.
    - ``flipped``: a get returns one changed bit, in its middle byte.
    - ``missing``: a get returns ``None``.
    - ``overwrites``: a put replaces an existing object.

    Attributes:
        kind: the kind of the fault.
        method: ``put get head list delete``; empty for all methods that the kind applies to.
        name: the start of the object's name. For a delete one of the names has it, for a list the prefix.
        skip: how many matching calls succeed first.
        times: how many matching calls fail after that; ``None`` for all.
        seconds: the delay of a ``slow`` call.
    """

    kind: Kind
    method: str = ""
    name: str = ""
    skip: int = 0
    times: int | None = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.method and self.method not in _METHODS[self.kind]:
            raise ConfigError(
                f"A fault {self.kind!r} does not apply to {self.method!r}.", remedy=f"Use {_METHODS[self.kind]}."
            )

    def matches(self, method: str, names: Sequence[str]) -> bool:
        """Return whether a call matches the method and the name of this fault."""
        methods = (self.method,) if self.method else _METHODS[self.kind]
        return method in methods and any(name.startswith(self.name) for name in names)


class FaultyStore:
    """Passes all calls to ``inner``, except those that a scripted fault changes.

    If several faults are due for one call, the first applies. The same calls in the same order fail in the same way.
    ``calls`` lists every call as (method, name). A slow call waits by ``sleep``.
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
        """The requests that reached the inner store."""
        return self.inner.requests

    def script(self, *faults: Fault) -> None:
        """Add faults. Each counts the calls from now on."""
        with self._lock:
            self._script += faults
            self._seen += [0] * len(faults)

    def heal(self) -> None:
        """Remove all faults. Late bytes still wait for ``land``."""
        with self._lock:
            self._script = []
            self._seen = []

    def land(self) -> list[bool]:
        """Perform the late puts in order. Return the result of each."""
        with self._lock:
            late = self._late
            self._late = []
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
        return self._perform(fault, name, lambda: self.inner.put_if_absent(name, data))

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """See ``ObjectStore.replace_if_unchanged``. The faults of a ``put`` apply, except ``late``."""
        fault = self._due("put", (name,))
        return self._perform(fault, name, lambda: self.inner.replace_if_unchanged(name, data, tag))

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """See ``ObjectStore.get_if_changed``. The faults of a ``get`` apply, except those that change bytes."""
        fault = self._due("get", (name,))
        tagged = self._perform(fault, name, lambda: self.inner.get_if_changed(name, tag))
        return None if fault and fault.kind == "missing" else tagged

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``."""
        fault = self._due("get", (name,))
        data = self._perform(fault, name, lambda: self.inner.get(name, start, length))
        if fault is None or data is None or fault.kind == "slow":
            return data
        middle = len(data) // 2
        if fault.kind == "truncated":
            return data[:middle]
        if fault.kind == "flipped" and data:
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return None if fault.kind == "missing" else data

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``. The faults of a ``get`` apply."""
        return write_all(self.get(name, start, length), write)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``."""
        return self._perform(self._due("head", (name,)), name, lambda: self.inner.exists(name))

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``."""
        return self._perform(self._due("list", (prefix,)), prefix, lambda: self.inner.list(prefix))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """See ``ObjectStore.list_folders``. The faults of a ``list`` apply."""
        return self._perform(self._due("list", (prefix,)), prefix, lambda: self.inner.list_folders(prefix))

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        return self._perform(self._due("delete", names), ", ".join(names), lambda: self.inner.delete(names))

    def _due(self, method: str, names: Sequence[str]) -> Fault | None:
        """Record the call, and return the fault that applies to it. Every matching fault counts the call."""
        due: Fault | None = None
        with self._lock:
            self.calls.append((method, ", ".join(names)))
            for number, fault in enumerate(self._script):
                if fault.matches(method, names):
                    calls_after_skip = self._seen[number] - fault.skip
                    self._seen[number] += 1
                    is_active = calls_after_skip >= 0 and (fault.times is None or calls_after_skip < fault.times)
                    if due is None and is_active:
                        due = fault
        return due

    def _perform(self, fault: Fault | None, name: str, call: Callable[[], Result]) -> Result:
        """Perform a call with the part of the fault that precedes or follows it."""
        if fault and fault.kind == "slow":
            self._sleep(fault.seconds)
        if fault and fault.kind in {"unavailable", "request_lost"}:
            raise _unavailable(fault, name)
        result = call()
        if fault and fault.kind == "answer_lost":
            raise _unavailable(fault, name)
        return result


def _unavailable(fault: Fault, name: str) -> UnavailableError:
    return UnavailableError(f"Scripted fault {fault.kind}.", remedy="Nothing: a test requested it.", where=name)
