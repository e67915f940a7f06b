"""The log of one query: the only source of truth about its state.

Theory of operation:

1. A record is committed by putting the next number if it is absent. The driver that succeeds has committed. All others
   find another commit id there and are fenced.
2. If the answer is lost, the record is read. The driver's own commit id means committed. Another commit id means
   fenced. If the record is absent, the same bytes are put again. Until the outcome is known nothing else is appended.
3. Each record contains the digest of the record before it, so the log is linear.

A sweep deletes old records. So a driver that was suspended for long may find its next number free again, although other
drivers have continued. Then its own newest record is deleted, unless a late put restored it, and later records exist.
If the root was restored from a backup, another driver's record may have the number of its newest record. So if the last
check is ``SURE_SECONDS`` ago, the driver also reads its newest record, before the sink and after the put. A sweep keeps
records that are younger than twice ``SURE_SECONDS``. Clocks must differ by less than ``SURE_SECONDS``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub

from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError, FencedError, UnavailableError, command
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Kind, Record, decode, digest, encode, is_record
from riffle_spark.state.log.record_commits import FetchedRecord, RecordCommits, check_folder_has_log
from riffle_spark.state.log.record_manifests import RecordManifests, manifest_of_record
from riffle_spark.state.log.recorded_moves import RecordedMoves
from riffle_spark.state.objects.store import ObjectStore

FULL_EVERY = 64
"""At least every 64th record is full. The others have changes since earlier records (``record_manifests``)."""
SURE_SECONDS = 60.0
"""A driver assumes for this time after a check that no other driver has continued and swept records."""
_Clocks = Callable[[], tuple[float, ...]]
_ONE_BACKUP = "Restore the log's objects from one backup, or roll back (riffle rollback)."
_UNLISTED_MAX = paths.FAR
"""The maximal number of records after the listed ones that are requested one by one."""


@dataclass(frozen=True, slots=True)
class _Append:
    """A record whose put after the tail was sent. It may not exist. ``started`` is the time before the put."""

    record: Record
    data: bytes
    manifest: Manifest
    started: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Tail:
    """The newest known record, with its manifest, its full record, and the digest of its bytes. The next record refers
    to them.
    """

    record: Record
    manifest: Manifest
    full: Record
    digest: str


class Log:
    """The log below a root, for one driver.

    ``first`` is the number of the first record. ``clocks`` returns the seconds of several clocks, because a monotonic
    clock may stop with its machine, and a wall clock may be set.
    """

    def __init__(self, store: ObjectStore, root: str, clocks: _Clocks = lambda: (0.0,)) -> None:
        """Create the log of a root without reading it. Call ``open`` before anything else."""
        self._store = store
        self._root = root
        self._commits = RecordCommits(store, root)
        self._clocks = clocks
        self._checked_at = clocks()
        self._manifests = RecordManifests(self._read_all)
        self._tail: _Tail | None = None
        self._unclear: _Append | None = None
        self.first = 0

    @property
    def tail(self) -> Record | None:
        """The newest known record, ``None`` if the log is empty."""
        return self._tail.record if self._tail else None

    @property
    def manifest(self) -> Manifest:
        """The manifest of ``tail``."""
        return self._tail.manifest if self._tail else Manifest()

    def open(self, *, broken: bool = False) -> Record | None:
        """Read and return the newest record, ``None`` if the log is empty.

        Sends one LIST, which may lag, a HEAD, and a GET for the newest record, the one before, and each base. With
        ``broken``, which rollbacks use, unreadable records at the end are skipped. Raises ``ConflictError`` if a record
        is missing, ``CorruptStateError`` if one is damaged or does not follow the one before, ``UnavailableError`` if
        the query commits batches at the same time, and ``ConfigError`` if the root has foreign objects.
        """
        self._checked_at = self._clocks()
        sequences, foreign = self._list_records()
        if not sequences and not foreign and (names := {*self._store.list("")} - paths.REPLACED):
            # Another driver may have started the log between the two requests.
            sequences, foreign = self._list_records()
            if not sequences and any(map(paths.is_of_shared_root, names)):
                raise paths.shared_root(self._root)
            foreign = foreign or ("" if sequences else self._root)
        if foreign:
            raise paths.no_log_error(self._root, foreign if sequences else None)
        self._tail = None
        if not sequences:
            return None
        try:
            record, data = (self._open_broken(sequences), b"") if broken else self._read_newest(sequences)
            self.first = first_sequence(self._store, sequences, min(record.full, record.promised))
            if not broken:
                self._check_complete(sequences, record)
                self._check_follows(record)
                self._set_tail(record, data)
        except (ConflictError, CorruptStateError) as error:
            newest = sequences[-1]
            if not self._has_later(newest):
                raise
            # Cause: The query is running, and committed or deleted records in between.
            raise UnavailableError(
                "The query committed batches while its log was read.",
                remedy="Run the command, or start the query, again. If that fails too, run riffle verify.",
                where=paths.record_name(newest + 1),
                id="RIFFLE-0402",
            ) from error
        return record

    def is_started(self) -> bool:
        """Return whether the root has a log. If so, open it.

        A crash may have left snapshots of a first version, which is committed by the first record of a log. The next
        try ignores them, and scans of later drivers delete them. Raises the errors of ``open``.
        """
        try:
            return self.open() is not None
        except ConfigError:
            names = {*self._store.list("")} - paths.REPLACED
            if all(map(paths.is_of_first_version, names)):
                return False
            raise

    def _has_later(self, newest: int) -> bool:
        """Return whether there are records after ``newest``. The next records may already be deleted."""
        if self._store.exists(paths.record_name(newest + 1)):
            return True
        return any(name > paths.record_name(newest) for name in self._store.list(paths.LOG))

    def _list_records(self) -> tuple[list[int], str]:
        """Return the numbers of all records, and the name of a foreign object among them."""
        names = self._store.list(paths.LOG)
        sequences = [s for s in map(paths.parse_record_name, names) if s is not None]
        foreign = next((name for name in names if paths.parse_record_name(name) is None), "")
        first_unlisted = sequences[-1] + 1 if sequences else 0
        for sequence in range(first_unlisted, first_unlisted + _UNLISTED_MAX):  # a LIST may lag
            if not self._store.exists(paths.record_name(sequence)):
                return sequences, foreign
            sequences.append(sequence)
        raise _endless_log_error(first_unlisted)

    def _open_broken(self, sequences: list[int]) -> Record:
        """Set the newest readable record as the tail, with the number of the newest existing record.

        Each unreadable record after it may be a claim, so the epoch of the tail grows by their number.
        """
        last = sequences[-1]
        last_data = self._get_twice(last)
        for sequence in reversed(sequences):
            try:
                data = last_data if sequence == last else self._get_twice(sequence)
                record = decode(data, paths.record_name(sequence))
                bases = [decode(self._get_twice(base), paths.record_name(base)) for base in record.bases]
                manifest = manifest_of_record(record, bases)
            except CorruptStateError:
                continue
            if last - sequence > _UNLISTED_MAX:
                raise paths.far_beyond_error(last)
            renumbered = replace(record, sequence=last, epoch=record.epoch + last - sequence)
            self._tail = _Tail(renumbered, manifest, bases[0] if bases else record, digest(last_data))
            return renumbered
        raise CorruptStateError(
            "No record of the log can be read.",
            remedy="Restore the log's objects from a backup, or use another root and replay the input.",
            where=self._root,
            id="RIFFLE-0403",
        )

    def _get_twice(self, sequence: int) -> bytes:
        """Return a record's bytes, read twice, because a record that was only damaged in transit must not be skipped.

        Raises ``UnavailableError`` if the two reads differ.
        """
        name = paths.record_name(sequence)
        data = self._commits.get(name)
        if data != self._commits.get(name):
            # Cause: The network, a proxy or the store altered the bytes of one answer.
            raise UnavailableError(
                "Two reads of a log record returned different bytes.",
                remedy="Run the command again. If that fails too, check the network and proxies between this machine "
                "and the store.",
                where=name,
                id="RIFFLE-0404",
            )
        return data or b""

    def _read_newest(self, sequences: list[int]) -> FetchedRecord:
        """Return the newest listed record."""
        name = paths.record_name(sequences[-1])
        fetched = self._commits.fetch(name)
        if fetched is None:
            # Cause: The store's LIST lags behind, or another driver deletes old records.
            raise UnavailableError(
                "A LIST of the log shows a newest record that does not exist.",
                remedy="Run the command, or start the query, again.",
                where=name,
                id="RIFFLE-0405",
            )
        return fetched

    def _check_complete(self, sequences: list[int], newest: Record) -> None:
        """Raise ``ConflictError`` if a record between the newest full record and the newest record is missing."""
        present = set(sequences)
        if newest.sequence - self.first > len(present) + _UNLISTED_MAX:
            raise paths.far_beyond_error(newest.sequence)
        unlisted = [s for s in range(max(newest.full, self.first), sequences[-1]) if s not in present]
        lost = [s for s in unlisted if not self._store.exists(paths.record_name(s))]
        if lost:
            further = len(lost) - 1
            more_text = f" and {further} more" if further else ""
            target = "BATCH" if {*newest.bases} & {*lost} else newest.version
            # Cause: A person or a lifecycle rule deleted objects of the log.
            raise ConflictError(
                f"{self._root} has lost record {lost[0]}{more_text} of its log.",
                remedy="Restore the objects from a backup, or roll back to a batch that riffle verify finds undamaged: "
                + command("rollback", "--execute", root=self._root, to=target, checkpoint="CHECKPOINT"),
                where=paths.record_name(lost[0]),
                id="RIFFLE-0406",
            )

    def _check_follows(self, newest: Record) -> None:
        """Raise ``CorruptStateError`` if the digest in the newest record is not that of the record before it."""
        if newest.sequence <= self.first:
            return
        name = paths.record_name(newest.sequence - 1)
        # A second GET, because the bytes of the first one may have been damaged in transit.
        previous = (self._commits.get(name) for _ in range(2))
        if all(data is not None and digest(data) != newest.previous for data in previous):
            raise CorruptStateError(
                "The newest record does not follow the one before it: one of them was changed.",
                remedy=_ONE_BACKUP,
                where=paths.record_name(newest.sequence),
                id="RIFFLE-0407",
            )

    def _set_tail(self, record: Record, data: bytes) -> None:
        """Make a record the tail, and read its manifest. ``data`` are the record's bytes."""
        bases = self._read_all(record.bases)
        self._manifests = RecordManifests(lambda _: bases)
        self._tail = _Tail(record, self._manifests.of(record), bases[0] if bases else record, digest(data))

    def read(self, sequence: int) -> Record:
        """Return the record with this number. Raises ``CorruptStateError`` if it is missing or damaged."""
        record = self.find(sequence)
        if record is None:
            # Cause: A person or a lifecycle rule deleted the object, or objects of two backups were mixed.
            raise CorruptStateError(
                "A record of the log is missing.",
                remedy=_ONE_BACKUP,
                where=paths.record_name(sequence),
                id="RIFFLE-0408",
            )
        return record

    def find(self, sequence: int) -> Record | None:
        """Return the record with this number, or ``None`` if it does not exist.

        Damaged bytes are fetched once more. Raises ``CorruptStateError`` if they are damaged again.
        """
        fetched = self._commits.fetch(paths.record_name(sequence))
        return None if fetched is None else fetched.record

    def records_after(self, sequence: int) -> Iterator[Record]:
        """Yield the records with higher numbers than ``sequence``, in order.

        Raises ``CorruptStateError`` at a damaged record, and ``UnavailableError`` if they do not end.
        """
        for later in range(sequence + 1, sequence + 1 + _UNLISTED_MAX):
            record = self.find(later)
            if record is None:
                return
            yield record
        raise _endless_log_error(sequence + 1)

    def manifest_of(self, record: Record) -> Manifest:
        """Read the bases of a record; return its manifest."""
        return manifest_of_record(record, self._read_all(record.bases))

    def _read_all(self, sequences: Sequence[int]) -> list[Record]:
        """Return the records with these numbers. Raises ``CorruptStateError`` if one is missing or damaged."""
        return list(map(self.read, sequences))

    def listed_objects(self, records: Iterable[Record], first: int) -> Iterator[set[str]]:
        """Yield sets of object names whose union is all objects that the records list.

        Records with a full record before ``first``, the log's first record, are skipped. Raises ``CorruptStateError``
        if another base is missing.
        """
        manifests = RecordManifests(self._read_all)
        listed = set[int]()
        for record in records:
            if record.full < first:
                continue
            manifest = manifests.of(record)
            if listed.issuperset(record.bases):
                manifest = Manifest(record.entries)  # the rest is listed
            listed = {*listed.intersection(record.bases), record.sequence}
            yield manifest.object_names() | {link.object for _, link in record.outputs}

    def next_is_absent(self) -> bool:
        """Return whether no driver has appended after ``tail``. Sends one request, or three after ``SURE_SECONDS``."""
        started = self._clocks()
        is_free = not self._store.exists(paths.record_name(self._next_sequence())) and not self._is_left_behind()
        if is_free:
            self._checked_at = started
        return is_free

    def _is_left_behind(self, own_digest: str = "") -> bool:
        """Return whether other drivers have continued for so long that ``tail`` was swept.

        Sends requests only if the last check is ``SURE_SECONDS`` ago. A late put may have restored ``tail``, so the
        result is also true if there are records after the next number. ``own_digest`` is the digest of the record that
        was put after ``tail``.
        """
        # The clock may have been set back, so the absolute difference is used.
        if max(map(abs, map(sub, self._clocks(), self._checked_at))) < SURE_SECONDS:
            return False
        if self._tail is not None and not self._is_stored(self._tail):
            return True
        is_last = self._store.list(paths.LOG)[-1:] <= [paths.record_name(self._next_sequence())]
        return not is_last and not (own_digest and self._is_followed(own_digest))

    def _is_stored(self, tail: _Tail) -> bool:
        """Return whether the log has this record. A root that was restored from a backup may have another one."""
        name = paths.record_name(tail.record.sequence)
        data = self._commits.get(name)
        return data is not None and (digest(data) == tail.digest or not is_record(data, name))

    def _is_followed(self, own_digest: str) -> bool:
        """Return whether another driver has continued from the record with this digest, put after ``tail``."""
        later = self.find(self._next_sequence() + 1)
        return later is not None and later.previous == own_digest

    def append(self, draft: Record, manifest: Manifest, moves: Sequence[RecordedMoves] = ()) -> Record:
        """Append ``draft`` with ``manifest`` and ``moves``, and return the record as written.

        Sets ``sequence``, ``previous``, ``full``, ``between``, ``entries``, ``weights`` and ``members``. Raises
        ``FencedError`` if another driver appended first, ``UnavailableError`` if the outcome is unknown (call
        ``settle_append`` first) or the folder of the log has vanished. Records other than batches and operator requests
        also check that the store refuses a second put.
        """
        assert self._unclear is None, "an earlier append is unclear; settle it first"
        if self._tail is not None:
            check_folder_has_log(self._root, self._tail.record.sequence)
        edit = draft.edit if draft.kind == "state" else {}
        record = self._complete_draft(replace(draft, moves=tuple(moves), edit=edit), manifest)
        takes_over = draft.kind not in ("batch", "orders")
        data = encode(record)
        assert not takes_over or is_record(data, paths.record_name(record.sequence)), "the record cannot be read"
        self._unclear = _Append(record, data, manifest, self._clocks())
        self.settle_append()
        if takes_over:
            self._commits.check_store_refuses(record, data)
        return record

    def settle_append(self) -> Record:
        """Put the record of an unclear append until it is known which driver's record has the number. Return it.

        Raises ``FencedError`` if another driver's record has the number, ``UnavailableError`` if it stays unknown.
        """
        if self._unclear is None:
            assert self.tail is not None, "nothing was ever appended"
            return self.tail
        append = self._unclear
        record = append.record
        own_digest = digest(append.data)
        try:
            self._commits.put(record, append.data)
            if self._is_left_behind(own_digest):
                # An earlier try of this put may have succeeded. Other drivers may have continued from it.
                if not self._is_followed(own_digest):
                    self._store.delete([paths.record_name(record.sequence)])
                raise self._commits.fenced_error(record)
        except FencedError:
            self._unclear = None
            raise
        self._unclear = None
        self._checked_at = append.started
        self._manifests.add(record, append.manifest)
        full = self._tail.full if self._tail and record.full != record.sequence else record
        self._tail = _Tail(record, append.manifest, full, own_digest)
        return record

    @property
    def weights(self) -> Mapping[str, object]:
        """The measured load of the key-groups, from the newest record and its full record."""
        return {**self._tail.full.weights, **self._tail.record.weights} if self._tail else {}

    @property
    def is_unclear(self) -> bool:
        """Whether the outcome of the last append is unknown."""
        return self._unclear is not None

    def _next_sequence(self) -> int:
        return self.tail.sequence + 1 if self.tail else 0

    def is_full_due(self, kind: Kind) -> bool:
        """Return whether a next record of this kind is full."""
        return (
            self.tail is None
            or kind in ("rollback", "adopt", "dispatch", "state")
            or self._next_sequence() - self.tail.full >= FULL_EVERY
        )

    def _complete_draft(self, draft: Record, manifest: Manifest) -> Record:
        """Return a draft as the next record, with its number, the digest of the tail, and its entries."""
        sequence = self._next_sequence()
        is_full = self.is_full_due(draft.kind)
        full_members = self._tail.full.members if self._tail else ()
        members = draft.members or full_members
        bases = () if is_full else self._manifests.bases_of_next(sequence)
        return replace(
            draft,
            sequence=sequence,
            previous=self._tail.digest if self._tail else "",
            full=bases[0] if bases else sequence,
            between=bases[1:],
            entries=self._manifests.changes_since(bases[-1], manifest) if bases else manifest.entries,
            weights=self._weights_to_store(draft, is_full=is_full),
            members=members if is_full or members != full_members else (),
        )

    def _weights_to_store(self, draft: Record, *, is_full: bool) -> Mapping[str, object]:
        """Return the weights that a record stores.

        A full record stores all weights. Other records store those that differ from the full record, but never the
        measured ones.
        """
        if draft.kind in ("rollback", "dispatch"):  # the tasks may have changed
            return draft.weights
        weights = {**self.weights, **draft.weights}
        full_weights = self._tail.full.weights if self._tail and not is_full else {}
        return {
            name: values
            for name, values in weights.items()
            if values != full_weights.get(name, {}) and (is_full or name != "measured")
        }


def first_sequence(store: ObjectStore, listed: Collection[int], needed: int) -> int:
    """Return the number of a log's first record: the one after the last number below ``needed`` that is not ``listed``.

    Late puts may have restored records below it.
    """
    present = set(listed)
    smallest = min(listed)
    while needed > smallest and (needed - 1 in present or store.exists(paths.record_name(needed - 1))):
        needed -= 1
    return max(needed, smallest)


def _endless_log_error(first: int) -> UnavailableError:
    """Return the error for a log that grows faster than it is read."""
    return UnavailableError(
        f"The log has more than {_UNLISTED_MAX} records from {first} on, and grows faster than it is read.",
        remedy="Try again. If that fails too, find out which driver writes to the log.",
        where=paths.record_name(first),
        id="RIFFLE-0409",
    )
