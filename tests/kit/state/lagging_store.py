"""A store whose LIST lags behind its objects, as eventually consistent ones do.

    store = LaggingStore(MemoryStore(), lags=lambda name: name.startswith("log/"))

What is put or deleted through it is there, or gone, at once for every call but ``list``, which shows it only after
``catch_up``.
"""

from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import ObjectStore
from tests.kit.state.faulty_store import FaultyStore

__all__ = ["LaggingStore"]


def _always(_: str) -> bool:
    return True


class LaggingStore(FaultyStore):
    """Do what ``inner`` does, but let ``list`` show a change of a name that ``lags`` only after ``catch_up``.

    Changes that are made to ``inner`` itself show at once.
    """

    def __init__(self, inner: ObjectStore, lags: Callable[[str], bool] = _always) -> None:
        super().__init__(inner)
        self.lags = lags
        self._hidden: set[str] = set()
        self._ghosts: set[str] = set()

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
        written = super().put_if_absent(name, data)
        with self._lock:
            if written and name in self._ghosts:
                self._ghosts.discard(name)
            elif written and self.lags(name):
                self._hidden.add(name)
        return written

    def list(self, prefix: str) -> list[str]:
        """Return the names that begin with ``prefix`` as they were: without the newest, with those just deleted."""
        found = super().list(prefix)
        with self._lock:
            return sorted(({*found} - self._hidden) | {name for name in self._ghosts if name.startswith(prefix)})

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        there = {*names} & {*self.inner.list("")} if any(map(self.lags, names)) else set()
        super().delete(names)
        with self._lock:
            self._ghosts |= {name for name in there - self._hidden if self.lags(name)}
            self._hidden -= {*names}
