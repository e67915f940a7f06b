"""The manifests of records. A record has only the changes since its last *base*, an earlier record.

The first base of a record is the full record. Each further base has the changes since the one before. The bases are
chosen as in a binary indexed tree (Fenwick, 1994). With 64 records since the full one, a record has at most six bases,
and lists the changes of three batches on average. If each record listed all changes since the full one, these would be
32 batches on average. If each listed only its own changes, reading the state would take up to 64 records.
"""

from collections.abc import Callable, Mapping, Sequence

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Manifest
from riffle_spark.state.log.record import Record

_Entries = Mapping[Address, Entry]


class RecordManifests:
    """Reads the manifests of records. It caches those of the last record and its bases, which the next record needs."""

    def __init__(self, read: Callable[[Sequence[int]], Sequence[Record]]) -> None:
        """Create it with a function ``read``, which returns the records with the given numbers.

        ``read`` may raise ``CorruptStateError`` for a record that is missing or damaged.
        """
        self._read = read
        self._known: dict[int, _Entries] = {}

    def of(self, record: Record) -> Manifest:
        """Return the manifest of a record. Reads its bases that are not cached.

        Raises ``CorruptStateError`` if a base is missing or damaged, or if the record does not fit it.
        """
        known = {sequence: self._known[sequence] for sequence in record.bases if sequence in self._known}
        missing = [sequence for sequence in record.bases if sequence not in known]
        for base in self._read(missing) if missing else ():
            known[base.sequence] = _entries_of(base, known)
        entries = _entries_of(record, known)
        self._known = {**known, record.sequence: entries}
        return Manifest(entries)

    def add(self, record: Record, manifest: Manifest) -> None:
        """Cache the manifest of a new record. The manifests of its bases must be cached."""
        known = {sequence: self._known[sequence] for sequence in record.bases}
        self._known = {**known, record.sequence: manifest.entries}

    def bases_of_next(self, sequence: int) -> tuple[int, ...]:
        """Return the numbers of the bases of the next record, which is not full. A manifest must be cached."""
        known = sorted(self._known)
        full = known[0]
        number = sequence - full
        last = full + (number & (number - 1))
        return tuple(base for base in known if base <= last)

    def changes_since(self, base: int, manifest: Manifest) -> dict[Address, Entry]:
        """Return the entries that changed since the cached record ``base``, cut to their changes."""
        entries = self._known[base]
        return {
            address: entry.cut_to_changes(entries.get(address, EMPTY))
            for address, entry in manifest.entries.items()
            if entries.get(address) is not entry
        }


def manifest_of_record(record: Record, bases: Sequence[Record]) -> Manifest:
    """Return the manifest of a record, given its bases. Raises ``CorruptStateError`` if they do not fit together."""
    return RecordManifests(lambda _: bases).of(record)


def _entries_of(record: Record, known: Mapping[int, _Entries]) -> _Entries:
    """Return the entries of a record's manifest, given those of its last base.

    Raises ``CorruptStateError`` if the record does not fit it.
    """
    if not record.bases:
        return record.entries
    base = known[record.bases[-1]]
    for address, entry in record.entries.items():
        if entry.cut is not None and not _fits(entry, base.get(address, EMPTY)):
            # Cause: One of the two records was restored from another backup.
            raise CorruptStateError(
                f"Record {record.sequence} does not fit record {record.bases[-1]}, whose state it changes.",
                remedy="Restore both from one backup, or roll back (riffle rollback).",
                where=paths.record_name(record.bases[-1]),
                id="RIFFLE-0420",
            )
    changes = {address: entry.restore_whole(base.get(address, EMPTY)) for address, entry in record.entries.items()}
    return {**base, **changes}


def _fits(entry: Entry, base: Entry) -> bool:
    """Return whether a cut entry starts at the head of its base, or at an earlier head with a merged delta."""
    assert entry.cut is not None, "only cut entries have a base"
    if entry.cut == base.head:
        return True
    has_merged = bool(entry.chain) and entry.chain[0].merged is not None
    return has_merged and base.find_head(entry.cut) is not None
