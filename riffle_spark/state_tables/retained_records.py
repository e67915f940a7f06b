"""The records of a log that a reader may use: those whose objects are retained.

Theory of operation.

1. ``tail.promised`` is the oldest record whose objects are retained. Older records are not offered.
2. A rollback discards the records between its target and itself, and after an adopt batch ids start at those of
   another checkpoint. So the history is a list of *stretches*: ranges of record numbers without a rollback or another
   query in between. A stretch's start is found by bisection.
3. Within a stretch a record's batch id is at most one above that of the record before. So the record of a batch is
   found by a jump of as many records as batches lie between. Only records without a batch (claims, operator requests)
   make further steps necessary.
4. Records are in the order of their times.

Opening the log as a driver does would send more requests, because a driver also checks the records before the newest.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from riffle_spark.errors import ConfigError
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.record_commits import fetch_record
from riffle_spark.state.log.record_manifests import RecordManifests
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_READ_TRIES = 3
_READ_AHEAD = 16
"""Records that are read and held at once: a full record of many key-groups has megabytes."""


class _Stretch(NamedTuple):
    """The numbers ``first`` to ``last`` of records without a rollback or an adopt by another query after ``first``."""

    first: int
    last: int


class RetainedRecords:
    """The retained records of a root. ``tail`` is the newest record."""

    def __init__(self, objects: ObjectStore, root: str) -> None:
        """Read the newest record, with one LIST and one GET.

        Raises ``ConfigError`` if the root has no log, ``CorruptStateError`` if the record is damaged.
        """
        self._log = Log(objects, root)
        self._root = root
        self.tail, first = _read_newest(objects, root)
        self._oldest = max(self.tail.promised, first)
        self._manifests = RecordManifests(lambda sequences: in_parallel(self._read, sequences))

    def manifest_of(self, record: Record) -> Manifest:
        """Return the manifest of a record. Reads its bases, except those of the record that this call was last for."""
        return self._manifests.of(record)

    def find_batch(self, version: int) -> Record:
        """Return the newest retained record of batch ``version``. Reads a few records.

        Raises ``ConfigError`` if the batch is not retained, ``CorruptStateError`` if a record on the way is missing or
        damaged.
        """
        oldest = self.tail
        for stretch in self._iterate_stretches():
            sequence = stretch.last
            while sequence >= stretch.first:
                record = self._read(sequence)
                if record.version == version:
                    return record
                sequence -= max(1, record.version - version)
            oldest = self._read(stretch.first)
        # Cause: Retention deleted the records of this batch, or the query has not run it.
        raise ConfigError(
            f"Batch {version} is not retained. The retained batches are {oldest.version} to {self.tail.version}.",
            remedy="Choose one of these batches. Raise retained_versions to keep more in future.",
            where=self._root,
            id="RIFFLE-1552",
        )

    def find_time(self, time_ms: int) -> Record:
        """Return the newest retained record that was written at ``time_ms`` or before. Reads a few records.

        Raises ``ConfigError`` if all retained records are newer, ``CorruptStateError`` if a record on the way is
        missing or damaged.
        """
        oldest = self.tail
        for first, last in self._iterate_stretches():
            low = first
            high = last + 1
            while low < high:
                middle = (low + high) // 2
                if self._read(middle).written_ms <= time_ms:
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                return self._read(low - 1)
            oldest = self._read(first)
        # Cause: Retention deleted the older records, or the query started later.
        raise ConfigError(
            f"No state of {_show_time(time_ms)} is retained. The oldest is of {_show_time(oldest.written_ms)}.",
            remedy="Choose a later time. Raise retained_versions to keep more in future.",
            where=self._root,
            id="RIFFLE-1553",
        )

    def iterate(self) -> Iterator[Record]:
        """Yield the retained records of the present history, newest first. Several are read at once."""
        for first, last in self._iterate_stretches():
            for start in range(last, first - 1, -_READ_AHEAD):
                yield from in_parallel(self._read, range(start, max(start - _READ_AHEAD, first - 1), -1))

    def _iterate_stretches(self) -> Iterator[_Stretch]:
        """Yield the stretches of the retained history, newest first."""
        record = self.tail
        while True:
            first = self._find_stretch_start(record)
            yield _Stretch(first, record.sequence)
            target = self._read(first).target
            previous = first - 1 if target is None else min(target, first - 1)
            if previous < self._oldest:
                return
            record = self._read(previous)

    def _find_stretch_start(self, last: Record) -> int:
        """Return the number of the first retained record that has the query and as many rollbacks as ``last``."""
        low = self._oldest
        if low >= last.sequence or _stretch_of(self._read(low)) == _stretch_of(last):
            return min(low, last.sequence)
        high = last.sequence
        while high - low > 1:
            middle = (low + high) // 2
            if _stretch_of(self._read(middle)) == _stretch_of(last):
                high = middle
            else:
                low = middle
        return high

    def _read(self, sequence: int) -> Record:
        return self.tail if sequence == self.tail.sequence else self._log.read(sequence)


def _stretch_of(record: Record) -> tuple[int, str]:
    """Return what all records of a stretch have in common."""
    return record.rollbacks, record.query_id


def _read_newest(objects: ObjectStore, root: str) -> tuple[Record, int]:
    """Return the newest record, and the number of the first record that the store lists."""
    for _ in range(_READ_TRIES):  # a running query may delete old records between the two requests
        sequences = [s for s in map(paths.parse_record_name, objects.list(paths.LOG)) if s is not None]
        if not sequences:
            break
        fetched = fetch_record(objects, paths.record_name(sequences[-1]))
        if fetched is not None:
            return fetched.record, sequences[0]
    # Cause: The root is wrong, or the query has not committed a batch yet.
    raise ConfigError(
        f"{root} holds no state.", remedy="Name the root of a query that has run.", where=root, id="RIFFLE-1560"
    )


def parse_time_ms(time: datetime | str) -> int:
    """Return a time in milliseconds since the epoch.

    Raises ``ConfigError`` for text that is not a time of ISO 8601, and for a time without a zone.
    """
    moment: datetime | None = None
    if isinstance(time, datetime):
        moment = time
    else:
        with suppress(ValueError):
            moment = datetime.fromisoformat(time.strip().replace("Z", "+00:00"))
    if moment is None or moment.tzinfo is None:
        # Cause: Without a zone the time depends on the machine that reads it.
        raise ConfigError(
            f"{str(time)!r} is not a time with a zone.",
            remedy="Give a time of ISO 8601 with its zone, such as 2026-11-26T14:00:00Z.",
            where="time",
            id="RIFFLE-1554",
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _show_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
