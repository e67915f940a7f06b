"""A store whose LIST shows changes late, as in eventually consistent stores.

   store = LaggingStore(MemoryStore(), lags=lambda name: name.startswith("log/"))

Every other call sees a put or deleted object at once. ``list`` shows the change only after ``catch_up``.
"""

from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import ObjectStore
from tests.kit.state.faulty_store import FaultyStore

__all__ = ["LaggingStore"]


def _always(_: str) -> bool:
    return True


class LaggingStore(FaultyStore):
    """A store that forwards calls to ``inner``, but whose ``list`` lags behind for names for which ``lags`` is true.

    ``list`` shows changes of such names after ``catch_up``. It shows changes that are made to ``inner`` itself at once.
    """

    def __init__(self, inner: ObjectStore, lags: Callable[[str], bool] = _always) -> None:
        super().__init__(inner)
        self.lags = lags
        self._hidden: set[str] = set()
        self._ghosts: set[str] = set()

    def catch_up(self, shows: Callable[[str], bool] = _always) -> None:
        """Let LIST show the changes so far of all names for which ``shows`` is true.

        ``shows`` gets the names in order.
        """
        with self._lock:
            self._hidden = {name for name in sorted(self._hidden) if not shows(name)}
            self._ghosts = {name for name in sorted(self._ghosts) if not shows(name)}

    def hide(self, *names: str) -> None:
        """Hide these objects from LIST, as if they had just been put."""
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
        """Return the names with ``prefix`` as of the last ``catch_up``: without new objects, with deleted ones."""
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
