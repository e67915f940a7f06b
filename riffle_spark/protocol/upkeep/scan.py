"""What earlier drivers left behind: records grown old, objects that nothing lists. Knows log, names and when a scan is
worth while.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from riffle_spark.errors import FencedError, UnavailableError
from riffle_spark.protocol.upkeep.claim_work import ClaimWork, Steps
from riffle_spark.protocol.upkeep.retention import Deletes, Retention, orphans
from riffle_spark.protocol.upkeep.snapshots import TakenSnapshots
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log, first_sequence
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["Looked", "Scanned", "Scans", "look", "scan"]

_OLD_AT_ONCE = 1_000
"""So many records one scan reads at most only to find that they are too old to be kept."""
_AGAIN_SECONDS = 60.0
"""How long after a scan that did not come to its end the next one begins."""
_LOST_SECONDS = 600.0
"""How long after a scan the next one begins where ``_LOST_MOST`` snapshots were lost since."""
_LOST_MOST = 16
_BEHIND_MOST = 1_000
"""So many records after the one that a scan was given up with, the next one begins with the newest."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan found: the ``oldest`` retained record, and from which one on it needs the log; those before are
    deleted. ``whole``: to the end, so that orphans are deleted too.
    """

    oldest: int
    kept_from: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """The ``oldest`` retained record; nothing was deleted."""

    oldest: int


def look(objects: ObjectStore, first: int, tail: Record, versions: int, for_ms: int) -> Steps[Looked]:
    """Find the oldest retained record of a log from ``first`` to ``tail``, to be promised by the next one."""
    oldest, _ = yield from _oldest_retained(Log(objects, ""), first, tail, versions, tail.written_ms - for_ms)
    return Looked(oldest.sequence)


def scan(
    objects: ObjectStore, tail: Record, versions: int, for_ms: int, *,
    first: int | None = None, named: Callable[[], Collection[str] | None] = lambda: None,
) -> Steps[Scanned]:  # fmt: skip
    """Delete what nothing retained needs and no living driver may still list; ``tail`` is its driver's last record.

    Retained are the newest ``versions`` records and, before them, all since the first that is not ``for_ms`` older than
    ``tail``, and whatever else ``tail`` promises. Reads the retained records and those that have grown old since the
    last scan. ``first`` is where the driver knows the log to begin; ``named`` tells which snapshots of its own it may
    still list (``None``: it cannot tell, and all stay). Raises ``UnavailableError`` where LIST lags, ``FencedError``
    where a newer driver has appended or it is another log by now, and ``CorruptStateError`` where a retained record is
    missing; in all these cases nothing more is deleted.

    Whatever happens between two steps, nothing that a record names is deleted: what is put is not in the LIST, what is
    named of it was so before or is never listed, and a record that comes has the rest from the one before. Deletes of
    the same driver wait, which would take records that are not read yet.
    """
    deletes = Deletes(objects, tail)

    def delete(gone: Sequence[str]) -> Steps[None]:
        if not (yield from deletes.run(gone)):
            raise _overtaken(tail.sequence, "is not the newest driver's any more: others have gone on")

    names = objects.list("")
    may_be_listed = named()  # after the LIST: what is put from here on is not in it
    log, begin = Log(objects, ""), _beginning(objects, names, tail, first)
    oldest, whole = yield from _oldest_retained(log, begin, tail, versions, tail.written_ms - for_ms)
    kept = log.read(max(begin, tail.promised)) if tail.promised < oldest.sequence else oldest
    retained = (log.read(sequence) for sequence in range(kept.sequence, tail.sequence + 1) if whole)
    listed = set[str]()
    for told in log.listed_objects(chain(retained, _later(log, tail, deletes)), begin):
        listed |= told
        yield
    yield from delete([paths.record(sequence) for sequence in range(begin, kept.full)])
    if whole:
        yield from delete(orphans(names, listed, tail.epoch, tail.version, may_be_listed))
        yield from delete([name for name in names if name.startswith(paths.LOG) and name < paths.record(begin)])
    whole = whole and kept is oldest  # what a promise keeps longer is for another scan soon
    return Scanned(oldest.sequence, kept.full, whole)


def _beginning(objects: ObjectStore, names: Sequence[str], tail: Record, known: int | None) -> int:
    """Return the number of the first record there is, which LIST may not show (yet), or still show. A number that came
    back, as a put landed very late, is below a gap, and below all that is promised.
    """
    records = (name for name in names if name.startswith(paths.LOG))
    present = [s for s in map(paths.record_sequence, records) if s is not None]
    if tail.sequence not in present:
        raise _unseen(objects, tail, max(present, default=0))
    begin = min(present if known is None else [known, *present])
    while begin > 0 and objects.exists(paths.record(begin - 1)):
        begin -= 1
    while begin < tail.sequence and not objects.exists(paths.record(begin)):
        begin += 1
    if tail.promised - begin <= len(present) and {*range(begin, tail.promised)} <= {*present}:
        return begin
    promised = Log(objects, "").find(tail.promised)
    if promised is None or not objects.exists(paths.record(promised.full)):
        return begin  # that is damage, which is told where it is read
    return first_sequence(objects, [begin, *present], promised.full) if begin < promised.full else begin


def _unseen(objects: ObjectStore, tail: Record, newest: int) -> UnavailableError | FencedError:
    """Return why a LIST, in which ``newest`` is the last record, does not show ``tail``."""
    name = paths.record(tail.sequence)
    if objects.exists(name):
        return UnavailableError(
            f"a LIST of the log does not show record {tail.sequence}, which is there",
            remedy="nothing to do if the store's LIST catches up; if this stays, the root is kept from being swept",
            where=name,
            id="RIFFLE-0244",
        )
    later = Log(objects, "").find(newest) if newest > tail.sequence else None
    if later is None or later.epoch != tail.epoch:
        return _overtaken(tail.sequence, "is gone: others have gone on for long")
    remedy = "nothing to do: the next scan goes by a newer record"
    return UnavailableError(
        f"record {tail.sequence} was swept while its scan waited", remedy=remedy, where=name, id="RIFFLE-0245"
    )


def _oldest_retained(log: Log, begin: int, tail: Record, versions: int, since_ms: int) -> Steps[tuple[Record, bool]]:
    """Find the first record that is young enough or one of the newest, and whether it was looked for to the end."""
    newest = max(begin, tail.sequence - versions + 1)
    end = min(newest, begin + _OLD_AT_ONCE)
    unsure: Record | None = None
    for sequence in range(begin, end):
        record = log.find(sequence)
        yield
        if record is None:
            continue
        if record.written_ms > tail.written_ms:
            unsure = unsure or record
        elif record.written_ms >= since_ms:
            return unsure or record, True
        else:
            unsure = None
    last = log.read(end)
    return unsure if unsure and last.written_ms >= since_ms else last, end == newest


def _later(log: Log, tail: Record, deletes: Deletes) -> Iterator[Record]:
    """Yield the records after ``tail``, and tell the deletes. Raises ``FencedError`` at one of another driver."""
    for record in log.after(tail.sequence):
        if record.epoch != tail.epoch:
            raise _overtaken(record.sequence, "was appended by another driver: it decides what is deleted now")
        deletes.committed(record)
        yield record


def _overtaken(sequence: int, how: str) -> FencedError:
    remedy = "stop this query: a newer driver owns its state"
    return FencedError(f"record {sequence} {how}", remedy=remedy, where=paths.record(sequence), id="RIFFLE-0246")


class Scans:
    """Submits one driver's scans. Times are seconds of a clock that never goes back."""

    def __init__(self, objects: ObjectStore, work: ClaimWork, taken: TakenSnapshots) -> None:
        self._objects = objects
        self._work = work
        self._taken = taken
        self._next = 0.0
        self._began = 0.0
        self._lost_before = 0
        self._after_claims = False
        self._given_up: Record | None = None
        self._under_way = False

    def start(self, *, after_claims: bool) -> None:
        """Begin anew after a claim; ``after_claims``: the driver before committed nothing."""
        self._next = 0.0
        self._after_claims = after_claims
        self._given_up = None
        self._under_way = False

    def before_first_batch(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        """Scan beside the first batch, if the driver before did not come to a scan."""
        if self._after_claims:
            self._after_claims = False
            self._begin(tail, retention, now, interval)

    def after_commit(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        """Scan if that is due and none is under way."""
        lost = self._taken.lost - self._lost_before >= _LOST_MOST and now >= self._began + _LOST_SECONDS
        if not self._under_way and (now >= self._next or lost):
            self._begin(tail, retention, now, interval)

    def _begin(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        self._began, self._next, self._lost_before = now, now + min(_AGAIN_SECONDS, interval), self._taken.lost
        oldest = max(tail.sequence - _BEHIND_MOST, retention.first)
        if self._given_up is not None and self._given_up.sequence >= oldest:
            tail = self._given_up
        self._given_up = tail
        self._under_way = True
        self._work.submit(partial(self._scan, tail, retention.first, *retention.kept))

    def _scan(self, tail: Record, first: int, versions: int, for_ms: int) -> Steps[Scanned]:
        try:
            return (yield from scan(self._objects, tail, versions, for_ms, first=first, named=self._taken.named))
        finally:
            self._under_way = False

    def came(self, scanned: Scanned, retention: Retention, interval: float) -> None:
        """Take what a scan found."""
        self._given_up = None
        retention.swept(scanned.oldest, scanned.kept_from)
        if scanned.whole:
            self._next = self._began + interval
