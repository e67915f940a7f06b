"""Scan a root for leftovers of earlier drivers: records that are too old, and objects that no record lists."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from riffle_spark.errors import FencedError, UnavailableError
from riffle_spark.protocol.upkeep.claim_work import ClaimWork, Steps
from riffle_spark.protocol.upkeep.retention import Deletes, Retention, find_orphans
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log, first_sequence
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

_OLD_RECORDS_PER_SCAN = 1_000
"""One scan reads at most this many records that turn out to be too old."""
_RETRY_SECONDS = 60.0
"""A scan that did not finish is retried after this time."""
_LOST_SECONDS = 600.0
"""After ``_LOST_SNAPSHOTS`` lost snapshots the next scan starts this long after the last one."""
_LOST_SNAPSHOTS = 16
_BEHIND_RECORDS = 1_000
"""A scan that failed is retried with the same record, unless the log is this many records further."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The numbers of the ``oldest`` retained record and of the first record that it needs (``kept_from``).

    Earlier records are deleted. ``is_complete`` means that the scan also deleted orphans.
    """

    oldest: int
    kept_from: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class OldestRetained:
    """The number of the ``oldest`` retained record, as a search found it."""

    oldest: int


def find_oldest_retained(
    objects: ObjectStore, first: int, tail: Record, versions: int, for_ms: int
) -> Steps[OldestRetained]:
    """Return the steps that find the oldest retained record of a log from record ``first`` to ``tail``.

    Retained are the newest ``versions`` records, and those that are at most ``for_ms`` older than ``tail``. The next
    record may promise it.
    """
    oldest, _ = yield from _oldest_retained(Log(objects, ""), first, tail, versions, tail.written_ms - for_ms)
    return OldestRetained(oldest.sequence)


def scan(
    objects: ObjectStore,
    tail: Record,
    versions: int,
    for_ms: int,
    *,
    first: int | None = None,
    own_snapshots: Callable[[], Collection[str] | None] = lambda: None,
) -> Steps[ScanResult]:
    """Delete objects that no retained record needs and no living driver may still list.

    Retained are the newest ``versions`` records, all records that are at most ``for_ms`` older than ``tail``, those
    that ``tail`` promises, and savepoints. ``tail`` is the driver's newest record, ``first`` the first record it knows.
    ``own_snapshots`` returns the driver's snapshots that it may still list; ``None`` keeps all of them.

    Nothing that a record lists is deleted, whatever happens between two steps:

    1. An object that is put later is not in the LIST.
    2. A snapshot that is in the LIST was reported before the LIST, or is never listed by a record.
    3. A new record takes its other links from the record before.
    4. The same driver's deletes wait, so they delete no record that the scan still reads.

    Raises ``UnavailableError`` if LIST lags, ``FencedError`` if a newer driver has appended or the log was replaced,
    and ``CorruptStateError`` if a retained record is missing. Then nothing more is deleted.
    """
    deletes = Deletes(objects, tail)

    def delete(names: Sequence[str]) -> Steps[None]:
        if not (yield from deletes.run(names)):
            raise _fenced_error(tail.sequence, "is no longer the newest of its driver")

    names = objects.list("")
    may_be_listed = own_snapshots()  # after the LIST, which has no later snapshot
    log = Log(objects, "")
    begin = _first_record(objects, names, tail, first)
    oldest, is_complete = yield from _oldest_retained(log, begin, tail, versions, tail.written_ms - for_ms)
    oldest_kept = log.read(max(begin, tail.promised)) if tail.promised < oldest.sequence else oldest
    listed = set[str]()
    if is_complete:
        retained_records = (log.read(sequence) for sequence in range(oldest_kept.sequence, tail.sequence + 1))
        for record_names in log.listed_objects(chain(retained_records, _records_after(log, tail, deletes)), begin):
            listed |= record_names
            yield
    yield from delete([paths.record_name(sequence) for sequence in range(begin, oldest_kept.full)])
    if is_complete:
        yield from delete(find_orphans(names, listed, tail.epoch, tail.version, may_be_listed))
        yield from delete([name for name in names if name.startswith(paths.LOG) and name < paths.record_name(begin)])
    # Records that only the promise retains are left to another scan, which is due soon.
    return ScanResult(oldest.sequence, oldest_kept.full, is_complete and oldest_kept is oldest)


def _first_record(objects: ObjectStore, names: Sequence[str], tail: Record, first: int | None) -> int:
    """Return the number of the log's first record, given the ``names`` of a LIST.

    LIST may not show it yet, or still show deleted records. A record before a gap and before all promised records is
    not the first: its put was applied very late. Raises an error if the LIST does not show ``tail``.
    """
    record_names = (name for name in names if name.startswith(paths.LOG))
    listed = [sequence for sequence in map(paths.parse_record_name, record_names) if sequence is not None]
    if tail.sequence not in listed:
        raise _tail_not_listed_error(objects, tail, max(listed, default=0))
    begin = min(listed if first is None else [first, *listed])
    while begin > 0 and objects.exists(paths.record_name(begin - 1)):
        begin -= 1
    while begin < tail.sequence and not objects.exists(paths.record_name(begin)):
        begin += 1
    if tail.promised - begin <= len(listed) and {*range(begin, tail.promised)} <= {*listed}:
        return begin
    promised_record = Log(objects, "").find(tail.promised)
    if promised_record is None or not objects.exists(paths.record_name(promised_record.full)):
        return begin  # the log is damaged; reading it raises the error
    return first_sequence(objects, [begin, *listed], promised_record.full) if begin < promised_record.full else begin


def _tail_not_listed_error(objects: ObjectStore, tail: Record, newest: int) -> UnavailableError | FencedError:
    """Return the error for a LIST that does not show ``tail``. ``newest`` is the last record in it."""
    name = paths.record_name(tail.sequence)
    if objects.exists(name):
        # Cause: The store's LIST lags behind its writes.
        return UnavailableError(
            f"A LIST of the log does not show record {tail.sequence}, which exists.",
            remedy="Wait until the store's LIST is up to date. Until then nothing is deleted from the root.",
            where=name,
            id="RIFFLE-0244",
        )
    later = Log(objects, "").find(newest) if newest > tail.sequence else None
    if later is None or later.epoch != tail.epoch:
        return _fenced_error(tail.sequence, "was deleted by another driver")
    # Cause: Retention of this driver deleted the record before the scan had its turn.
    return UnavailableError(
        f"A clean-up of the root waited so long that its record {tail.sequence} was deleted.",
        remedy="Do nothing. The next clean-up uses a newer record.",
        where=name,
        id="RIFFLE-0245",
    )


def _oldest_retained(log: Log, begin: int, tail: Record, versions: int, since_ms: int) -> Steps[tuple[Record, bool]]:
    """Return the steps that find the first record that is recent or among the newest.

    Their result also has whether the search was complete. The times of records that were written after ``tail`` by
    their own clock are unreliable. Such a record is retained if the next reliable one is and ``tail`` promises it.
    """
    newest = max(begin, tail.sequence - versions + 1)
    end = min(newest, begin + _OLD_RECORDS_PER_SCAN)
    unreliable: Record | None = None
    for sequence in range(begin, end):
        record = log.find(sequence)
        yield
        if record is None:
            continue
        if record.written_ms > tail.written_ms:
            if sequence >= tail.promised:  # otherwise a clock that was set back would retain all older records
                unreliable = unreliable or record
        elif record.written_ms >= since_ms:
            return unreliable or record, True
        else:
            unreliable = None
    last_record = log.read(end)
    return unreliable if unreliable and last_record.written_ms >= since_ms else last_record, end == newest


def _records_after(log: Log, tail: Record, deletes: Deletes) -> Iterator[Record]:
    """Yield the records after ``tail``, and pass each to ``deletes``. Raises ``FencedError`` at another epoch."""
    for record in log.records_after(tail.sequence):
        if record.epoch != tail.epoch:
            raise _fenced_error(record.sequence, "was appended by another driver")
        deletes.set_tail(record)
        yield record


def _fenced_error(sequence: int, reason: str) -> FencedError:
    """Return the error that another driver has taken over. ``reason`` is what happened to record ``sequence``."""
    # Cause: A second driver was started on this root, or a rollback ran on it.
    return FencedError(
        f"Record {sequence} {reason}.",
        remedy="Stop this query, because a newer driver owns its state.",
        where=paths.record_name(sequence),
        id="RIFFLE-0246",
    )


class Scans:
    """Submits the scans of a driver when they are due. Times are seconds of a monotonic clock."""

    def __init__(self, objects: ObjectStore, work: ClaimWork, taken_snapshots: TakenSnapshots) -> None:
        """Create the scans of a root. ``work`` runs them, ``taken_snapshots`` has the driver's own snapshots."""
        self._objects = objects
        self._work = work
        self._taken_snapshots = taken_snapshots
        self._next = 0.0
        self._started_at = 0.0
        self._lost_at_start = 0
        self._follows_claim = False
        self._failed_tail: Record | None = None
        self._is_running = False
        self._is_hastened = False

    def start(self, *, follows_claim: bool) -> None:
        """Forget the scans before a claim. ``follows_claim`` means that the driver before committed nothing."""
        self._next = 0.0
        self._follows_claim = follows_claim
        self._failed_tail = None
        self._is_running = False

    def submit_before_first_batch(
        self, tail: Record, retention: Retention, clock_seconds: float, interval: float
    ) -> None:
        """Submit a scan during the first batch if the driver before did not scan. ``interval`` is that of scans."""
        if self._follows_claim:
            self._follows_claim = False
            self._submit(tail, retention, clock_seconds, interval)

    def submit_if_due(self, tail: Record, retention: Retention, clock_seconds: float, interval: float) -> None:
        """Submit a scan if one is due and none is running. ``interval`` is the seconds between two scans."""
        lost_many = self._taken_snapshots.lost - self._lost_at_start >= _LOST_SNAPSHOTS
        is_due = clock_seconds >= self._next or (lost_many and clock_seconds >= self._started_at + _LOST_SECONDS)
        if is_due and not self._is_running:
            self._submit(tail, retention, clock_seconds, interval)

    def _submit(self, tail: Record, retention: Retention, clock_seconds: float, interval: float) -> None:
        """Submit a scan with the newest record, or again with the record of a failed scan."""
        self._started_at = clock_seconds
        self._next = clock_seconds + min(_RETRY_SECONDS, interval)
        self._lost_at_start = self._taken_snapshots.lost
        self._is_hastened = False
        oldest = max(tail.sequence - _BEHIND_RECORDS, retention.first)
        if self._failed_tail is not None and self._failed_tail.sequence >= oldest:
            tail = self._failed_tail
        self._failed_tail = tail
        self._is_running = True
        self._work.submit(partial(self._scan, tail, retention.first, *retention.limits))

    def _scan(self, tail: Record, first: int, versions: int, for_ms: int) -> Steps[ScanResult]:
        own_snapshots = self._taken_snapshots.listable_names
        try:
            return (yield from scan(self._objects, tail, versions, for_ms, first=first, own_snapshots=own_snapshots))
        finally:
            self._is_running = False

    def hasten_after(self, deleted_savepoints: Sequence[str]) -> None:
        """If savepoints were deleted, let a scan be due now, or once the present one has ended."""
        if deleted_savepoints:
            self._next = 0.0
            self._is_hastened = True

    def record_result(self, result: ScanResult, retention: Retention, interval: float) -> None:
        """Record the result of a scan, and set the time of the next one."""
        self._failed_tail = None
        retention.record_scan(result.oldest, result.kept_from)
        if result.is_complete and not self._is_hastened:
            self._next = self._started_at + interval
