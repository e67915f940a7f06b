"""The log of one query: the truth about its state. Knows how records follow each other. Does not know batches.

Theory of operation. A record is committed by putting the next number if it is absent. Whoever puts it wins; everyone
else finds another commit id there and is fenced. An unclear answer (a time-out, an error after the bytes arrived) is
settled by reading: our own commit id means committed, another's means fenced, absent means put the same bytes again.
Until it is settled nothing else is appended. Each record names the digest of the one before, so the log is one line.

Old records go, so that a driver which stood still for as long may find its next number free again. Its own newest
record is gone then, too, unless a late put brought it back, and others lie further on. So who has not looked for
``SURE_SECONDS`` looks for that as well, after a put once more; and whoever sweeps, with whatever settings, keeps what
is younger than twice that, by clocks less than that apart.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import sub

from riffle_spark.errors import ConflictError, CorruptStateError, FencedError, UnavailableError, command
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Manifest
from riffle_spark.state.log.record import Record, decode, digest, encode, is_record, joined
from riffle_spark.state.log.record_commits import RecordCommits
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["FULL_EVERY", "SURE_SECONDS", "Log", "beginning"]

FULL_EVERY = 16
"""A record is full at least this often; between, it holds the entries changed since the last full one."""
SURE_SECONDS = 60.0
"""For so long after it looked a driver trusts that nobody has gone on from its number and swept it since."""
_Clocks = Callable[[], tuple[float, ...]]
_ONE_BACKUP = "restore the log's objects from one backup, or roll back (riffle rollback)"
_LATER_MAX = paths.FAR
"""So many records beyond those known are looked for at most: a log that grows faster has no end to be found."""


class Log:
    """The log below one root, as one driver sees it.

    ``tail`` is the newest record known (``None``: empty), ``manifest`` what it and its full record say together.
    ``seconds`` are clocks: one that never goes back may stand still with its machine, and one of the day may be set.
    """

    def __init__(self, store: ObjectStore, root: str, seconds: _Clocks = lambda: (0.0,)) -> None:
        self._store, self._root, self._digest = store, root, ""
        self._commits = RecordCommits(store, root)
        self._base: Mapping[Address, Entry] = {}
        self._full: Record | None = None
        self._unclear: tuple[Record, bytes, Manifest, tuple[float, ...]] | None = None
        self.tail: Record | None = None
        self.manifest, self.first = Manifest(), 0
        self._seconds, self._looked = seconds, seconds()

    def open(self, *, broken: bool = False) -> Record | None:
        """Read the newest record (and the full one it changes); return it, or ``None`` if the log is empty.

        One list, which may lag, a head and at most three gets. Raises ``ConflictError`` if a record is missing in
        between, ``CorruptStateError`` if one is damaged or does not follow the one before, ``UnavailableError`` instead
        if the query went on meanwhile, ``ConfigError`` if the root holds objects that are not ours. ``broken``: take
        the newest record that can be read instead, for a rollback.
        """
        self._looked = self._seconds()
        sequences, foreign = self._listed()
        if not sequences and not foreign and self._store.list(""):
            sequences, foreign = self._listed()  # another driver may have begun the log between the two
            foreign = foreign or ("" if sequences else self._root)
        if foreign:
            raise paths.no_log(self._root, foreign if sequences else None)
        self.tail, self.manifest, self._digest = None, Manifest(), ""
        if not sequences:
            return None
        try:
            record, data = (self._open_broken(sequences), b"") if broken else self._read_newest(sequences)
            self.first = beginning(self._store, sequences, min(record.full, record.promised))
            if not broken:
                self._check_whole(sequences, record)
                self._check_follows(record)
                self._adopt_tail(record, data)
        except (ConflictError, CorruptStateError) as error:
            if not self._has_gone_on(newest := sequences[-1]):
                raise
            problem, remedy = "the query went on while its log was read", "start again; else see riffle verify"
            raise UnavailableError(problem, remedy=remedy, where=paths.record(newest + 1), id="RIFFLE-0402") from error
        return record

    def _has_gone_on(self, newest: int) -> bool:
        """Tell whether there are records after what was the newest; after long the next ones may be swept, as it is."""
        newer = paths.record(newest + 1)
        return self._store.exists(newer) or any(name > paths.record(newest) for name in self._store.list(paths.LOG))

    def _listed(self) -> tuple[list[int], str]:
        """Return the numbers of the records that there are, and something else that lies among them."""
        names = self._store.list(paths.LOG)
        sequences = [s for s in map(paths.record_sequence, names) if s is not None]
        foreign = next((name for name in names if paths.record_sequence(name) is None), "")
        self._find_newer(sequences)
        return sequences, foreign

    def _find_newer(self, sequences: list[int]) -> None:
        """Add the records that a LIST which lags does not show yet: those after the newest that it shows."""
        first = sequences[-1] + 1 if sequences else 0
        for newer in range(first, first + _LATER_MAX):
            if not self._store.exists(paths.record(newer)):
                return
            sequences.append(newer)
        raise _no_end(first)

    def _open_broken(self, sequences: list[int]) -> Record:
        """Take the newest record that can be read, to be followed by one after the newest there is. Each record in
        between may have been a claim: the epoch counts on for it.
        """
        last = sequences[-1]
        raw = self._lies_there(last)
        for sequence in reversed(sequences):
            try:
                record = decode(raw if sequence == last else self._lies_there(sequence), paths.record(sequence))
                full = record if record.full == sequence else decode(self._lies_there(record.full), "")
                manifest = joined(record, full.entries)
            except CorruptStateError:
                continue
            if last - sequence > _LATER_MAX:
                raise paths.far_beyond(last)
            self.tail = replace(record, sequence=last, epoch=record.epoch + last - sequence)
            self.manifest, self._base, self._full, self._digest = manifest, manifest.entries, full, digest(raw)
            return self.tail
        remedy = "restore the log's objects from a backup, or use another root and replay the input"
        raise CorruptStateError("no record of the log can be read", remedy=remedy, where=self._root, id="RIFFLE-0403")

    def _lies_there(self, sequence: int) -> bytes:
        """Return a record's bytes as they come twice: what was damaged on its way only is nothing to pass over."""
        name = paths.record(sequence)
        if (data := self._commits.got(name)) != self._commits.got(name):
            raise UnavailableError(
                "a record comes with other bytes each time", remedy="run this again", where=name, id="RIFFLE-0404"
            )
        return data or b""

    def _read_newest(self, sequences: list[int]) -> tuple[Record, bytes]:
        data = self._commits.got(name := paths.record(sequences[-1]))
        if data is None:
            remedy = "start again: the store's LIST lags far behind, or another driver is sweeping the log"
            raise UnavailableError(
                "a LIST of the log shows a newest record that is gone", remedy=remedy, where=name, id="RIFFLE-0405"
            )
        return decode(data, name), data

    def _check_whole(self, sequences: list[int], newest: Record) -> None:
        present = set(sequences)
        if newest.sequence - self.first > len(present) + _LATER_MAX:
            raise paths.far_beyond(newest.sequence)
        unseen = [s for s in range(max(newest.full, self.first), sequences[-1]) if s not in present]
        lost = [s for s in unseen if not self._store.exists(paths.record(s))]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            to = newest.version if newest.full not in lost else "BATCH"
            remedy = "restore the objects from a backup, or roll back to a batch that `riffle verify` finds whole: "
            remedy += command("rollback", "--execute", root=self._root, to=to, checkpoint="CHECKPOINT")
            problem = f"{self._root} has lost record {lost[0]} of its log{more}"
            raise ConflictError(problem, remedy=remedy, where=paths.record(lost[0]), id="RIFFLE-0406")

    def _check_follows(self, newest: Record) -> None:
        before = self._commits.got(paths.record(newest.sequence - 1)) if newest.sequence > self.first else None
        if before is not None and digest(before) != newest.previous:
            problem = "the newest record does not follow the one before it: one of them is not what was written there"
            raise CorruptStateError(problem, remedy=_ONE_BACKUP, where=paths.record(newest.sequence), id="RIFFLE-0407")

    def _adopt_tail(self, record: Record, data: bytes) -> None:
        full = record if record.full == record.sequence else self.read(record.full)
        self._base, self._full = full.entries, full
        self.tail, self.manifest, self._digest = record, joined(record, self._base), digest(data)

    def read(self, sequence: int) -> Record:
        """Return one record. Raises ``CorruptStateError`` if it is missing or damaged."""
        record = self.find(sequence)
        if record is None:
            raise CorruptStateError(
                "a record of the log is missing", remedy=_ONE_BACKUP, where=paths.record(sequence), id="RIFFLE-0408"
            )
        return record

    def find(self, sequence: int) -> Record | None:
        """Return one record, or ``None`` if it is not there. Raises ``CorruptStateError`` if it is damaged."""
        data = self._commits.got(name := paths.record(sequence))
        return None if data is None else decode(data, name)

    def after(self, sequence: int) -> Iterator[Record]:
        """Yield the records that follow this one, to the newest. Raises ``CorruptStateError`` at a damaged one, and
        ``UnavailableError`` where they do not end.
        """
        for later in range(sequence + 1, sequence + 1 + _LATER_MAX):
            record = self.find(later)
            if record is None:
                return
            yield record
        raise _no_end(sequence + 1)

    def manifest_of(self, record: Record) -> Manifest:
        """Return what ``record`` and the full record it changes say together."""
        if record.full == record.sequence:
            return Manifest(record.entries)
        return joined(record, self.read(record.full).entries)

    def listed_in(self, records: Iterable[Record], first: int) -> Iterator[set[str]]:
        """Yield the names of objects that these records list, some with each: all together are all; for scans.

        A record at the old end whose full record is before ``first``, where the log begins, says nothing any more, and
        is passed over. Raises ``CorruptStateError`` where another's is missing.
        """
        base: Record | None = None
        base_told = False
        for record in (one for one in records if one.full >= first):
            if record.full == record.sequence:
                base, base_told = record, True
            elif base is None or base.sequence != record.full:
                base, base_told = self.read(record.full), False
            whole = joined(record, base.entries)
            told = Manifest(record.entries) if base_told else whole
            yield told.objects() | {link.object for _, link in record.outputs}

    def next_is_absent(self) -> bool:
        """Tell whether nobody has appended after ``tail``: the check before a sink. One request, later three."""
        began = self._seconds()
        is_free = not self._store.exists(paths.record(self._next_sequence())) and not self._is_left_behind()
        self._looked = began if is_free else self._looked
        return is_free

    def _is_left_behind(self, put: str = "") -> bool:
        """Tell whether others have gone on for so long that ``tail`` is gone, if nobody has looked for a while. ``put``
        is the digest of what was put after it.

        A put of ours that took effect much later may have brought it back, so records after the next one tell it, too.
        """
        if max(map(abs, map(sub, self._seconds(), self._looked))) < SURE_SECONDS:  # set back, it tells nothing
            return False
        if self.tail is not None and not self._store.exists(paths.record(self.tail.sequence)):
            return True
        is_last = self._store.list(paths.LOG)[-1:] <= [paths.record(self._next_sequence())]
        return not is_last and not (put and self._is_followed(put))

    def _is_followed(self, put: str) -> bool:
        """Tell whether others have gone on from a record of that digest, which was put after ``tail``."""
        later = self.find(self._next_sequence() + 1)
        return later is not None and later.previous == put

    def append(self, draft: Record, manifest: Manifest) -> Record:
        """Append ``draft`` with ``manifest`` as what it says; return the record as written.

        ``sequence``, ``previous``, ``full`` and ``entries`` of the draft are filled in here. Measurements stay in full
        records, and members where they are as there; a full one tells those known where the draft names none. Raises
        ``FencedError`` if another driver appended first, ``UnavailableError`` if it stays unclear (``settle`` first).
        Whatever takes the log over, as all records but those of a driver that has it, finds a store that overwrites.
        """
        assert self._unclear is None, "an earlier append is unclear; settle it first"
        record, is_rare = self._completed(draft, manifest), draft.kind not in ("batch", "orders")
        data = encode(record)
        assert not is_rare or is_record(data, paths.record(record.sequence)), "nobody could read this record"
        self._unclear = record, data, manifest, self._seconds()
        self.settle()
        if is_rare:
            self._commits.check_refused(record, data)
        return record

    def settle(self) -> Record:
        """Settle an unclear append: put the same bytes until the record is known to be ours or another's."""
        if self._unclear is None:
            assert self.tail is not None, "nothing was ever appended"
            return self.tail
        record, data, manifest, began = self._unclear  # it may have come through at once, and others have gone on since
        put = digest(data)
        try:
            self._commits.put(record, data)
            if self._is_left_behind(put):
                if not self._is_followed(put):
                    self._store.delete([paths.record(record.sequence)])
                raise self._commits.fenced(record)
        except FencedError:
            self._unclear = None
            raise
        self._unclear, self._looked = None, began
        if record.full == record.sequence:
            self._base, self._full = manifest.entries, record
        self.tail, self.manifest, self._digest = record, manifest, put
        return record

    @property
    def weights(self) -> Mapping[str, object]:
        """What the newest record and the full one that it changes tell of load."""
        return {**(self._full.weights if self._full else {}), **(self.tail.weights if self.tail else {})}

    @property
    def unclear(self) -> bool:
        """Whether the fate of the last append is not known."""
        return self._unclear is not None

    def _next_sequence(self) -> int:
        return self.tail.sequence + 1 if self.tail else 0

    def _completed(self, draft: Record, manifest: Manifest) -> Record:
        sequence = self._next_sequence()
        tail, base, known = self.tail, self._base, self._full.members if self._full else ()
        told = draft.members or known
        full = tail is None or draft.kind in ("rollback", "adopt", "dispatch") or sequence - tail.full >= FULL_EVERY
        changed = {a: e.since(base.get(a, EMPTY)) for a, e in manifest.entries.items() if base.get(a) is not e}
        return replace(
            draft, sequence=sequence, previous=self._digest, full=sequence if full or tail is None else tail.full,
            entries=manifest.entries if full else changed, weights=self._weights(draft, full=full),
            members=told if full or told != known else (),
        )  # fmt: skip

    def _weights(self, draft: Record, *, full: bool) -> Mapping[str, object]:
        """Return what a record tells of load: all if it is full, else what is not measurement and has changed."""
        if draft.kind in ("rollback", "dispatch"):  # numbers of key-groups may stand for others
            return draft.weights
        told, known = {**self.weights, **draft.weights}, self._full.weights if self._full and not full else {}
        return {name: by for name, by in told.items() if by != known.get(name, {}) and (full or name != "measured")}


def beginning(store: ObjectStore, listed: Collection[int], needed: int) -> int:
    """Return where a log begins: after the last free number below one that is needed. Late puts may lie below that."""
    present, least = set(listed), min(listed)
    while needed > least and (needed - 1 in present or store.exists(paths.record(needed - 1))):
        needed -= 1
    return max(needed, least)


def _no_end(first: int) -> UnavailableError:
    problem = f"the log has more than {_LATER_MAX} records from {first} on, and grows faster than it is read"
    remedy = "none if a later try finds its end; else look which driver writes to it"
    return UnavailableError(problem, remedy=remedy, where=paths.record(first), id="RIFFLE-0409")
