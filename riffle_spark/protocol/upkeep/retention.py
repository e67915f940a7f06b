"""Choose the objects and records that may be deleted, and delete them while the driver is the newest."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from riffle_spark.protocol.upkeep.claim_work import Steps
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import FULL_EVERY, Log
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Link, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint
from riffle_spark.state.log.savepoints import read_savepoint, savepoint_objects
from riffle_spark.state.objects.store import ObjectStore

_DELETES_PER_REQUEST = 1_000
"""The most names that S3 accepts in one request."""


class Retention:
    """Records a driver's commits, and finds the objects and records that may be deleted.

    Retained are the newest ``versions`` records, and all that are at most ``for_ms`` milliseconds old.
    """

    def __init__(self, versions: int, for_ms: int) -> None:
        """Create a retention with these limits. ``start`` sets the records."""
        self._versions = versions
        self._for_ms = for_ms
        self._references: Counter[str] = Counter()
        """How many links of the newest record point to each object. An object with sealed output counts once more."""
        self._outputs: set[str] = set()
        """The newest record's objects with sealed output."""
        self._retired: deque[tuple[int, int, str]] = deque()
        """Objects by the first record that does not list them: its sequence, their number, and their names as lines.

        An hour may retire some 100,000 objects. As texts of their own they would take three times the memory.
        """
        self._records: deque[tuple[int, int, int]] = deque()
        """Each retained record: its sequence, when it was seen, and the oldest record that it needs."""
        self._first_kept = 0

    @property
    def limits(self) -> tuple[int, int]:
        """Return the number of retained records, and the milliseconds for which each is retained."""
        return self._versions, self._for_ms

    def set_limits(self, versions: int, for_ms: int) -> None:
        """Replace the number of retained records, and the milliseconds for which each is retained."""
        self._versions = versions
        self._for_ms = for_ms

    def start(self, first: int, tail: Record, manifest: Manifest, now_ms: int) -> None:
        """Start with the records ``first`` to ``tail`` of a log. ``now_ms`` is the time of a monotonic clock.

        Until a scan has read the records before ``tail`` (``record_scan``), they count as written now. They also count
        as needing all records that a record can need.
        """
        self._outputs = {link.object for _, link in tail.outputs}
        self._references = Counter(link.object for entry in manifest.entries.values() for link in entry.chain)
        self._references.update(self._outputs)
        earlier = range(first, tail.sequence)
        self._records = deque((sequence, now_ms, sequence - FULL_EVERY) for sequence in earlier)
        self._records.append((tail.sequence, now_ms, tail.full))
        self._retired.clear()
        self._first_kept = first

    def record_commit(self, record: Record, manifest: Manifest, changes: dict[Address, Entry], now_ms: int) -> None:
        """Record a new record and the objects that it no longer lists.

        ``manifest`` is the manifest before its ``changes``.
        """
        self._records.append((record.sequence, now_ms, record.full))
        outputs = {link.object for _, link in record.outputs}
        removed_links: list[Link] = []
        added_links: list[Link] = []
        replaced_snapshots: list[str] = []
        for address, entry in changes.items():
            previous = manifest.entries.get(address, EMPTY)
            before, after = entry.changed_links(previous)
            removed_links += before
            added_links += after
            if previous.snapshot is not None and previous.snapshot != entry.snapshot:
                replaced_snapshots.append(paths.snapshot_name(*address, previous.snapshot.id))
        added = _count_objects(added_links)
        removed = _count_objects(removed_links)
        added.update(outputs - self._outputs)
        removed.update(self._outputs - outputs)
        self._outputs = outputs
        self._references.update(added)
        self._references.subtract(removed)
        unlisted_names = [name for name in removed if self._references[name] <= 0]
        for name in unlisted_names:
            del self._references[name]
        self.retire(record.sequence, [*unlisted_names, *replaced_snapshots])

    def retire(self, sequence: int, names: Collection[str]) -> None:
        """Record names of this driver's objects that no record will list.

        They were put for record ``sequence`` or before.
        """
        if names:
            self._retired.append((sequence, len(names), "\n".join(names)))

    def record_scan(self, oldest: int, kept_from: int) -> None:
        """Record the result of a scan.

        Records before ``oldest`` are not retained, and records before ``kept_from`` are deleted.
        """
        while self._records and self._records[0][0] < oldest:
            self._records.popleft()
        self._first_kept = max(self._first_kept, kept_from)

    def oldest_after(self, sequence: int, now_ms: int) -> int:
        """Return the number of the oldest record that will be retained once record ``sequence`` is written."""
        newer_records = len(self._records) + 1
        for retained_sequence, seen_ms, _ in self._records:
            if newer_records <= self._versions or now_ms - seen_ms <= self._for_ms:
                return retained_sequence
            newer_records -= 1
        return sequence

    def has_retired(self, count: int, oldest: int) -> bool:
        """Return whether at least ``count`` objects could be deleted if ``oldest`` were the oldest retained record."""
        for sequence, number, _ in self._retired:
            if sequence > oldest:
                return False
            count -= number
            if count <= 0:
                return True
        return False

    def take_deletable(self, promised: int) -> list[str]:
        """Return the names that may be deleted after the commit of a record with this promise, each only once.

        ``promised`` is the number of the oldest record that a rollback may return to.
        """
        while self._records and self._records[0][0] < promised:
            self._records.popleft()
        oldest, _, first_needed = self._records[0] if self._records else (0, 0, 0)
        if promised < oldest:  # a scan has ended since the driver chose this promise
            first_needed = min(first_needed, promised - FULL_EVERY)
        deletable: list[str] = []
        while self._retired and self._retired[0][0] <= min(oldest, promised):
            deletable += self._retired.popleft()[2].split("\n")
        keep_from = max(self._first_kept, first_needed)
        deletable += [paths.record_name(sequence) for sequence in range(self._first_kept, keep_from)]
        self._first_kept = keep_from
        return deletable

    @property
    def first(self) -> int:
        """Return the number of the first record that was not returned for deletion."""
        return self._first_kept

    @property
    def oldest(self) -> int:
        """Return the number of the oldest retained record."""
        return self._records[0][0] if self._records else 0


def _count_objects(links: Iterable[Link]) -> Counter[str]:
    """Return how many of the links point to each object. Its name is made once."""
    deltas = Counter([link.head for link in links if link.merged is None])
    merged = Counter([link.merged.id for link in links if link.merged is not None])
    counts = Counter({paths.delta_name(*head): count for head, count in deltas.items()})
    counts.update({paths.merged_delta_name(id): count for id, count in merged.items()})
    return counts


def find_orphans(
    names: Iterable[str], listed: set[str], epoch: int, version: int, may_be_listed: Collection[str] | None = None
) -> list[str]:
    """Return the objects among ``names`` that a driver of ``epoch`` may delete, because no record will list them.

    ``listed`` are the names that retained records list. The result has:
    1. Objects of older epochs.
    2. Deltas of its own epoch for versions before ``version``: its batch is committed without them.
    3. Snapshots of its own epoch that are not in ``may_be_listed``. ``None`` means that any may still be listed.

    Savepoints are not in ``listed``. ``Deletes`` skips them and what they keep.

    Objects of newer epochs and unknown names are never returned.
    """
    deletable = []
    for name in names:
        object_name = paths.parse_object_name(name)
        if object_name is None or name in listed:
            continue
        if object_name.kind == "delta":
            is_abandoned = object_name.version < version
        elif object_name.kind == "savepoint":
            is_abandoned = False  # this driver may list it with its next record
        else:
            is_abandoned = may_be_listed is not None and name not in may_be_listed
        if object_name.epoch < epoch or (object_name.epoch == epoch and is_abandoned):
            deletable.append(name)
    return deletable


def _is_superseded(objects: ObjectStore, tail: Record) -> bool:
    """Return whether another epoch has appended after ``tail``, or ``tail`` is gone or replaced. Sends two requests."""
    log = Log(objects, "")
    if any(record.epoch != tail.epoch for record in log.records_after(tail.sequence)):
        return True
    stored = log.find(tail.sequence)
    return stored is None or stored.commit_id != tail.commit_id


class Deletes:
    """The deletes of one claim. They skip the savepoints of the driver's newest record, and all objects these list.

    The driver calls ``set_tail`` after each record, and the background runs the steps of ``run``.
    """

    def __init__(self, objects: ObjectStore, tail: Record | None = None) -> None:
        """Create the deletes of a claim. ``tail`` is the driver's newest record, ``None`` until it is set."""
        self._objects = objects
        self._tail = tail
        self._names_by_savepoint: dict[str, frozenset[str]] = {}
        """The objects of each savepoint by its id, once they were read."""

    @property
    def savepoints(self) -> tuple[RecordedSavepoint, ...]:
        """The savepoints in the driver's newest record."""
        return self._tail.savepoints if self._tail else ()

    def set_tail(self, record: Record) -> list[str]:
        """Set the driver's newest record. Return the names of the savepoints that it no longer lists.

        Deletes stop once another driver has appended after it.
        """
        deleted_names = [paths.savepoint_name(each.id) for each in self.savepoints if each not in record.savepoints]
        self._tail = record
        return deleted_names

    def run(self, names: Sequence[str]) -> Steps[bool]:
        """Return the steps that delete the objects.

        Their result is false if a newer driver has appended. Then they have stopped early. Raises
        ``CorruptStateError`` if a savepoint cannot be read, so it is unknown what it keeps.
        """
        assert self._tail is not None, "deletes follow a commit"
        for start in range(0, len(names), _DELETES_PER_REQUEST):
            if _is_superseded(self._objects, self._tail):
                return False
            kept_names = self._kept_by_savepoints()
            deletable = [name for name in names[start : start + _DELETES_PER_REQUEST] if name not in kept_names]
            if deletable:
                self._objects.delete(deletable)
            yield
        return True

    def _kept_by_savepoints(self) -> Collection[str]:
        """Return the names of all savepoints and of all objects that they list. Each savepoint is read once."""
        for savepoint in self.savepoints:
            if savepoint.id not in self._names_by_savepoint:
                listed = savepoint_objects(read_savepoint(self._objects, savepoint))
                self._names_by_savepoint[savepoint.id] = frozenset({*listed, paths.savepoint_name(savepoint.id)})
        ids = {savepoint.id for savepoint in self.savepoints}
        self._names_by_savepoint = {id: names for id, names in self._names_by_savepoint.items() if id in ids}
        return frozenset[str]().union(*self._names_by_savepoint.values())
