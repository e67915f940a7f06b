"""A store whose LIST lags behind its objects, as eventually consistent ones do.

    store = LaggingStore(MemoryStore(), lags=lambda name: name.startswith("log/"))

What is put or deleted through it is there, or gone, at once for every call but ``list``, which shows it only after
``catch_up``.
"""

import threading
from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import ObjectStore, TaggedObject

__all__ = ["LaggingStore"]


def _always(_: str) -> bool:
    return True


class LaggingStore:
    """Do what ``inner`` does, but let ``list`` show a change of a name that ``lags`` only after ``catch_up``.

    Changes that are made to ``inner`` itself show at once.
    """

    def __init__(self, inner: ObjectStore, lags: Callable[[str], bool] = _always) -> None:
        self.inner = inner
        self.lags = lags
        self._lock = threading.Lock()
        self._hidden: set[str] = set()
        self._ghosts: set[str] = set()

    def __repr__(self) -> str:
        return f"LaggingStore({self.inner!r})"

    @property
    def requests(self) -> dict[str, int]:
        """What reached the inner store."""
        return self.inner.requests

    def catch_up(self, shows: Callable[[str], bool] = _always) -> None:
        """Let LIST show the changes so far of all names, or of those that ``shows`` picks; they are asked in order."""
        with self._lock:
            self._hidden = {name for name in sorted(self._hidden) if not shows(name)}
            self._ghosts = {name for name in sorted(self._ghosts) if not shows(name)}

    def hide(self, *names: str) -> None:
        """Let LIST not show these objects, as if they had been put just now."""
        with self._lock:
            self._hidden.update(names)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``."""
        written = self.inner.put_if_absent(name, data)
        with self._lock:
            if written and name in self._ghosts:
                self._ghosts.discard(name)
            elif written and self.lags(name):
                self._hidden.add(name)
        return written

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """See ``ObjectStore.replace_if_unchanged``."""
        return self.inner.replace_if_unchanged(name, data, tag)

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """See ``ObjectStore.get_if_changed``."""
        return self.inner.get_if_changed(name, tag)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``."""
        return self.inner.get(name, start, length)

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``."""
        return self.inner.copy_to(name, start, length, write)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``."""
        return self.inner.exists(name)

    def list(self, prefix: str) -> list[str]:
        """Return the names that begin with ``prefix`` as they were: without the newest, with those just deleted."""
        found = self.inner.list(prefix)
        with self._lock:
            return sorted(({*found} - self._hidden) | {name for name in self._ghosts if name.startswith(prefix)})

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        there = {*names} & {*self.inner.list("")} if any(map(self.lags, names)) else set()
        self.inner.delete(names)
        with self._lock:
            self._ghosts |= {name for name in there - self._hidden if self.lags(name)}
            self._hidden -= {*names}
