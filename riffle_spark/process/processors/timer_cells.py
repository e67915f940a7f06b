"""Timers of one key-group in one batch. Knows what was registered and deleted. Does not know when timers fire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from riffle_spark.process.processors.cells import DeltaRows, Scope
from riffle_spark.state.schemas.variable_keys import due_of
from riffle_spark.state.schemas.variables import TIMER

__all__ = ["Timers"]

_DUE_BYTES = 8


class Timers:
    """Times of the key where the scope is at, each at most once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._changed: dict[int, dict[int, bool]] = {}

    def register(self, due_ms: int) -> None:
        """Register a timer; one that is there already stays."""
        self._changed.setdefault(self._scope.at, {})[due_ms] = True

    def delete(self, due_ms: int) -> None:
        """Delete a timer, if it is there."""
        self._changed.setdefault(self._scope.at, {})[due_ms] = False

    def list(self) -> Iterator[int]:
        """Return an iterator over the timers that there are now, in order of time."""
        at = self._scope.at
        stored = self._scope.reading.under(self._scope.prefix(TIMER, at))
        dues = {due_of(key[-_DUE_BYTES:]) for key, _ in stored}
        for due_ms, is_registered in self._changed.get(at, {}).items():
            (dues.add if is_registered else dues.discard)(due_ms)
        return iter(sorted(dues))

    def is_changed(self, number: int, due_ms: int) -> bool:
        """Tell whether the timer of this key was registered or deleted."""
        return due_ms in self._changed.get(number, ())

    def registered(self) -> Iterator[tuple[int, int]]:
        """Yield due time and key's number of what was registered and not deleted since."""
        for number, changed in self._changed.items():
            for due_ms, is_registered in changed.items():
                if is_registered:
                    yield due_ms, number

    def earliest_ms(self) -> int | None:
        """Return when the first of what was registered is due."""
        return min((due_ms for due_ms, _ in self.registered()), default=None)

    def changes(self) -> Iterable[DeltaRows]:
        """Return what was registered and deleted."""
        rows = [
            (number, due_ms, not is_registered)
            for number, changed in sorted(self._changed.items())
            for due_ms, is_registered in changed.items()
        ]
        if not rows:
            return []
        numbers, dues, deleted = zip(*rows, strict=True)
        return [DeltaRows(TIMER, numbers, np.array(deleted), dues=pa.array(dues, pa.int64()))]
