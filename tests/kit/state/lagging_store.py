"""A store whose LIST lags behind its objects, as eventually consistent ones do.

    store = LaggingStore(MemoryStore(), lags=lambda name: name.startswith("log/"))

``list`` shows a put or a deletion only after ``catch_up``. All other calls show it at once.
"""

from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import ObjectStore
from tests.kit.state.faulty_store import FaultyStore

__all__ = ["LaggingStore"]


def _always(_: str) -> bool:
    return True


class LaggingStore(FaultyStore):
    """Passes all calls to ``inner``. ``list`` shows changes of the names that ``lags`` selects only after ``catch_up``.

    Changes that were made to ``inner`` directly show at once.
    """

    def __init__(self, inner: ObjectStore, lags: Callable[[str], bool] = _always) -> None:
        super().__init__(inner)
        self.lags = lags
        self._hidden: set[str] = set()
        self._ghosts: set[str] = set()

    def catch_up(self, shows: Callable[[str], bool] = _always) -> None:
        """Make LIST show the changes so far, of all names or of those that ``shows`` selects. It gets them in order."""
        with self._lock:
            self._hidden = {name for name in sorted(self._hidden) if not shows(name)}
            self._ghosts = {name for name in sorted(self._ghosts) if not shows(name)}

    def hide(self, *names: str) -> None:
        """Hide these objects from LIST, as if they had just been put."""
        with self._lock:
            self._hidden.update(names)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``."""
        was_written = super().put_if_absent(name, data)
        with self._lock:
            if was_written and name in self._ghosts:
                self._ghosts.discard(name)
            elif was_written and self.lags(name):
                self._hidden.add(name)
        return was_written

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix`` as they were before the changes that do not show yet."""
        names = super().list(prefix)
        with self._lock:
            return sorted(({*names} - self._hidden) | {name for name in self._ghosts if name.startswith(prefix)})

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        existing = {*names} & {*self.inner.list("")} if any(map(self.lags, names)) else set()
        super().delete(names)
        with self._lock:
            self._ghosts |= {name for name in existing - self._hidden if self.lags(name)}
            self._hidden -= {*names}
