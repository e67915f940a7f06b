"""Deleting what is free, as long as its driver is the newest. Knows the log's next record. Does not know what is free.

Theory of operation. What may go is decided by a committed record: it promises how far back a rollback can go
(``Record.promised``), and only objects that nothing from there on lists are free. A rollback reads that promise in the
record that it follows, so whatever it goes back to is in no delete, not even in one that is on its way. That alone
makes deletes safe. That a driver looks for a newer one first is for order: one that is fenced touches nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark.state import paths
from riffle_spark.state.log import Log
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.record import Record

__all__ = ["Deletes"]

_AT_ONCE = 1_000
"""As many as S3 takes in one request."""


class Deletes:
    """One driver's deletes. ``run`` is for beside the batches, ``committed`` for the driver."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._tail = (0, -1)

    def committed(self, record: Record) -> None:
        """Take the driver's newest record: what follows it is looked for from there."""
        self._tail = (record.epoch, record.sequence)

    def run(self, names: Sequence[str]) -> None:
        """Delete, unless a newer driver has appended."""
        for start in range(0, len(names), _AT_ONCE):
            if self.are_fenced():
                return
            self._objects.delete(names[start : start + _AT_ONCE])

    def are_fenced(self) -> bool:
        """Tell whether the log has a record of another epoch after the driver's own. One request where it has none."""
        epoch, sequence = self._tail
        log = Log(self._objects, "")
        while self._objects.exists(paths.record(sequence + 1)):
            sequence += 1
            if log.read(sequence).epoch != epoch:
                return True
        return False
