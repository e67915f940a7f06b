"""Which objects may go, and their deletion as long as the driver is the newest. Knows records and what they list. Does
not know clocks.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from riffle_spark.protocol.upkeep.claim_work import Steps
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY, Log
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["Deletes", "Retention", "orphans"]

_AT_ONCE = 1_000
"""As many as S3 takes in one request."""


class Retention:
    """Follows one driver's commits and says what has become free."""

    def __init__(self, versions: int, for_ms: int) -> None:
        self._versions = versions
        self._for_ms = for_ms
        self._parts: Counter[str] = Counter()
        self._outputs: set[str] = set()
        """Objects with sealed output of the newest record: they count among parts, once."""
        self._retired: deque[tuple[int, str]] = deque()
        self._records: deque[tuple[int, int, int]] = deque()
        """Of each retained record: its sequence, when it was seen, and from which record on it needs others."""
        self._first_kept = 0

    @property
    def kept(self) -> tuple[int, int]:
        """How many of the newest records are retained, and for how many milliseconds all."""
        return self._versions, self._for_ms

    def keep(self, versions: int, for_ms: int) -> None:
        """Retain so many of the newest records, and all for so many milliseconds, from now on."""
        self._versions, self._for_ms = versions, for_ms

    def start(self, first: int, tail: Record, manifest: Manifest, now_ms: int) -> None:
        """Begin with a log whose records are ``first`` to ``tail``. ``now_ms`` is of a clock that never goes back, here
        and below.

        Until a scan has read them (``swept``), records of before count as written now, and as needing all that a
        record can need.
        """
        self._outputs = {link.object for _, link in tail.outputs}
        self._parts = Counter(link.object for entry in manifest.entries.values() for link in entry.chain)
        self._parts.update(self._outputs)
        before = range(first, tail.sequence)
        self._records = deque((sequence, now_ms, sequence - FULL_EVERY) for sequence in before)
        self._records.append((tail.sequence, now_ms, tail.full))
        self._retired.clear()
        self._first_kept = first

    def committed(self, record: Record, before: Manifest, changes: dict[Address, Entry], now_ms: int) -> None:
        """Note what a record replaced that was committed now."""
        self._records.append((record.sequence, now_ms, record.full))
        outputs = {link.object for _, link in record.outputs}
        added = Counter(link.object for entry in changes.values() for link in entry.chain)
        gone = Counter(link.object for a in changes for link in before.entries.get(a, EMPTY).chain)
        added.update(outputs - self._outputs)
        gone.update(self._outputs - outputs)
        self._outputs = outputs
        self._parts.update(added)
        self._parts.subtract(gone)
        for name in gone:
            if self._parts[name] <= 0:
                del self._parts[name]
                self._retired.append((record.sequence, name))
        for (store, key_group), entry in changes.items():
            old = before.entries.get((store, key_group), EMPTY).snapshot
            if old is not None and old != entry.snapshot:
                self._retired.append((record.sequence, paths.snapshot(store, key_group, old.id)))

    def unlisted(self, sequence: int, names: Iterable[str]) -> None:
        """Note objects of our own that were sealed for record ``sequence`` or before and that no record will ever
        list.
        """
        self._retired.extend((sequence, name) for name in names)

    def swept(self, oldest: int, kept_from: int) -> None:
        """Note that records before ``oldest`` are retained no more, and that those before ``kept_from`` are gone."""
        while self._records and self._records[0][0] < oldest:
            self._records.popleft()
        self._first_kept = max(self._first_kept, kept_from)

    def promise(self, sequence: int, now_ms: int) -> int:
        """Return the oldest record that is retained once record ``sequence`` is written: what that one may promise."""
        newer = len(self._records) + 1
        for known, seen_ms, _ in self._records:
            if newer <= self._versions or now_ms - seen_ms <= self._for_ms:
                return known
            newer -= 1
        return sequence

    def take_free(self, promised: int) -> list[str]:
        """Return names that may be deleted now that a record with this promise is committed; they are not returned
        again.
        """
        while self._records and self._records[0][0] < promised:
            self._records.popleft()
        oldest, _, needed = self._records[0] if self._records else (0, 0, 0)
        free: list[str] = []
        while self._retired and self._retired[0][0] <= min(oldest, promised):
            free.append(self._retired.popleft()[1])
        keep_from = max(self._first_kept, needed)
        free += [paths.record(sequence) for sequence in range(self._first_kept, keep_from)]
        self._first_kept = keep_from
        return free

    @property
    def first(self) -> int:
        """The sequence of the first record that was not given free yet."""
        return self._first_kept

    @property
    def oldest(self) -> int:
        """The sequence of the oldest retained record."""
        return self._records[0][0] if self._records else 0


def orphans(
    names: Iterable[str], listed: set[str], epoch: int, version: int, may_be_listed: Collection[str] | None = None
) -> list[str]:
    """Return the objects among ``names`` that nothing retained lists and that a driver of ``epoch`` may delete.

    Those are unlisted objects of older epochs and, of its own, deltas of versions before ``version``: their batch is
    committed without them; and snapshots but those that ``may_be_listed`` (``None``: any may). Never a newer epoch's,
    never what is not named as ours.
    """
    free = []
    for name in names:
        said = paths.parse(name)
        if said is None or name in listed:
            continue
        given_up = (
            said.version < version if said.kind == "delta" else may_be_listed is not None and name not in may_be_listed
        )
        if said.epoch < epoch or (said.epoch == epoch and given_up):
            free.append(name)
    return free


def _is_taken_over(objects: ObjectStore, tail: Record) -> bool:
    """Tell whether the log has a record of another epoch after a driver's newest one, or not even that any more: others
    have gone on for long, or it is another log. Two requests where the driver is the newest.
    """
    log = Log(objects, "")
    if any(record.epoch != tail.epoch for record in log.after(tail.sequence)):
        return True
    own = log.find(tail.sequence)
    return own is None or own.commit_id != tail.commit_id


class Deletes:
    """The deletes of one claim. ``run`` is for beside the batches, ``committed`` for the driver."""

    def __init__(self, objects: ObjectStore, tail: Record | None = None) -> None:
        self._objects = objects
        self._tail = tail

    def committed(self, record: Record) -> None:
        """Take the driver's newest record: what follows it is looked for from there."""
        self._tail = record

    def run(self, names: Sequence[str]) -> Steps[bool]:
        """Delete, unless a newer driver has appended; find whether that was done to the end."""
        assert self._tail is not None, "nothing is committed that deletes could follow"
        for start in range(0, len(names), _AT_ONCE):
            if _is_taken_over(self._objects, self._tail):
                return False
            self._objects.delete(names[start : start + _AT_ONCE])
            yield
        return True
