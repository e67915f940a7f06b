"""A store that calls a function before a chosen request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import ObjectStore

__all__ = ["InterruptedStore"]


class InterruptedStore:
    """A store that calls ``at_call`` once, before request number ``stop_at``. It deletes one object at a time.

    ``calls`` counts the requests.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.requests = objects.requests
        self.calls = 0
        self.stop_at = -1
        self.at_call: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> object:
        def call_counted(*args: object, **named: object) -> object:
            self._count()
            return getattr(self._objects, name)(*args, **named)

        return call_counted

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects one after the other."""
        for name in names:
            self._count()
            self._objects.delete([name])

    def _count(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.stop_at:
            self.stop_at = -1
            self.at_call()
