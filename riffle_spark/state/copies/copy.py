"""One local copy: one key-group's committed state in an embedded key-value file. Knows its databases, and how it moves.
Does not know what is in a row.

Theory of operation. A copy holds committed effects only. It advances in one write transaction, which first
checks the head that it starts from and last writes the head that it reaches, so a crash, a second process or a stale
caller cannot leave it half way. Nothing is synced to disk: a copy carries the kernel's boot id, and one from another
boot is not trusted. Nor is a file that was changed by nobody of ours (`lmdb_file`), and each value has a checksum, as
a disk may give back what nobody wrote. Opening is cheap (0.1 ms), so copies are opened for a task and closed at its
end; several processes may have one open.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import cast

import lmdb

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies import lmdb_reading
from riffle_spark.state.copies.disk import DamagedCopy, damaged
from riffle_spark.state.copies.lmdb_file import INITIAL_MAP_BYTES, CopyInUse, LmdbFile, trouble
from riffle_spark.state.copies.reading import Reading
from riffle_spark.state.copies.value_sums import DamagedValue, checked, checked_pairs, with_sum, with_sums
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from riffle_spark.state.schemas.copy_rows import CopyRows

__all__ = ["Copy", "CopyInUse", "DamagedCopy", "boot_id"]

_NODE_BYTES = 32
_FILL_FACTOR = 2
"""A page of sorted rows may be half empty, and a row has some bytes beside its own."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_META = b"meta"
_STATE = b"state"
_LONG = b"long"
_DUE = b"due"
_LAYOUT = b"layout"
_HEAD = b"head"


@functools.cache
def boot_id() -> str:
    """Return the kernel's boot id ('' where there is none, as outside Linux)."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Copy(LmdbFile):
    """An open copy; a context manager. Not for use after a fork, nor twice in one process at a time."""

    def __init__(self, folder: Path, *, new: bool = False, layout: bytes = b"") -> None:
        super().__init__(folder, (_STATE, _META, _LONG, _DUE), new=new)
        self._state, self._meta, self._long, self._due = self._databases
        if new:
            self._growing(lambda: self._note(_LAYOUT, layout))
        self._layout = layout if new else self._growing(self._read_layout)

    def _read_layout(self) -> bytes | None:
        with self._environment.begin(db=self._meta) as transaction:
            return transaction.get(_LAYOUT)

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, fact: bytes, value: bytes) -> None:
        with self._environment.begin(write=True, db=self._meta) as transaction:
            transaction.put(fact, value)

    @classmethod
    def of_layout(cls, folder: Path, layout: bytes) -> Copy:
        """Open a copy whose rows are laid out in this way. Raises ``DamagedCopy`` if they are not, too."""
        copy = cls(folder)
        if copy._layout != layout:
            copy.close()
            raise damaged("it holds rows of other columns", folder)
        return copy

    def head(self) -> Head | None:
        """Return the head this copy is at, or ``None`` if it was written under another boot of the machine."""
        return self._growing(self._read_head)

    def _read_head(self) -> Head | None:
        with self._environment.begin(db=self._meta) as transaction:
            stored = transaction.get(_HEAD)
            if stored is None:
                return EMPTY_HEAD
            head, boot = self._parsed(stored)
            return head if boot == boot_id() else None

    @contextmanager
    def reading(self, at: Head) -> Iterator[Reading]:
        """Give what the copy holds as of ``at``, to be read bit by bit while nothing of this process writes to it.

        Raises ``OutOfDate`` if the copy is elsewhere by now.
        """
        with self._growing(lambda: self._begun_reading(at)) as transaction:
            told = functools.partial(trouble, self.folder)
            reading = lmdb_reading.CopyReading(transaction, self._state, self._due, self._long, told)
            try:
                yield reading
            except lmdb.Error as error:
                raise trouble(self.folder, error) from error
            except Exception as error:
                if reading.damage is not None:
                    raise reading.damage from error
                raise
            if reading.damage is not None:
                raise reading.damage

    def _begun_reading(self, at: Head) -> lmdb.Transaction[bytes]:
        transaction = self._environment.begin(db=self._state)
        try:
            self._expect(transaction, at)
        except BaseException:
            transaction.abort()
            raise
        return transaction

    def fold(self, base: Head, head: Head, rows: CopyRows, later: Collection[Head] = ()) -> None:
        """Apply one committed delta in one transaction: from ``base`` to ``head``.

        Does nothing if the copy is at ``head`` already, or at one of the ``later`` ones on the way to where the caller
        brings it: then another process was quicker. Raises ``OutOfDate`` if the copy is anywhere else than at ``base``,
        and ``LocalDiskError`` if the disk is full; the copy is then as it was.
        """
        self._fold([base, head], [rows], later)

    def fold_all(self, way: Sequence[Head], deltas: Sequence[CopyRows]) -> None:
        """Apply deltas in one transaction, the first from the first head on the way to the second, and so on; raises
        as ``fold``. What another process was quicker with is left out.
        """
        self._fold(way, deltas, ())

    def _fold(self, way: Sequence[Head], deltas: Sequence[CopyRows], later: Collection[Head]) -> None:
        needed = sum(map(_needed, deltas))
        if needed > INITIAL_MAP_BYTES:
            self._growing(lambda: self._reserve(needed))
        self._growing(lambda: self._advance(way, deltas, later))

    def _advance(self, way: Sequence[Head], deltas: Sequence[CopyRows], later: Collection[Head]) -> None:
        with self._environment.begin(write=True, db=self._state) as transaction:
            found = self._stored(transaction)
            if found in later:
                return
            if found not in way:
                self._expect(transaction, way[0])
            missing = deltas[way.index(found) :]
            for rows in missing:
                self._apply(transaction, rows)
            if missing:
                self._write_head(transaction, way[-1])

    def _apply(self, transaction: lmdb.Transaction[bytes], rows: CopyRows) -> None:
        prefixes = [rows.keys[place] for place in rows.cleared]
        cleared = [key for prefix in prefixes for key in lmdb_reading.keys_under(transaction, self._state, prefix)]
        if rows.indexed:
            lmdb_reading.follow(transaction, self._state, self._due, cleared, rows)
        self._remove(transaction, cleared)
        kept, deleted = rows.split()
        with transaction.cursor() as cursor:
            cursor.putmulti(with_sums(kept))
        self._remove(transaction, deleted)
        self._put_long(transaction, rows)

    def _remove(self, transaction: lmdb.Transaction, keys: list[bytes]) -> None:
        has_longs = keys and transaction.stat(self._long)["entries"]
        for key in keys:
            transaction.delete(key)
            if has_longs:
                transaction.delete(key, db=self._long)

    def _put_long(self, transaction: lmdb.Transaction, rows: CopyRows) -> None:
        if rows.longs:
            all_rows = zip(rows.keys, rows.values, rows.longs, strict=True)
            longs = [(k, whole) for k, value, whole in all_rows if whole is not None and value is not None]
            with transaction.cursor(db=self._long) as cursor:
                cursor.putmulti(with_sums(longs))

    def load(self, head: Head, rows: CopyRows) -> None:
        """Fill a new, empty copy with a snapshot's rows, sorted by key, in one transaction."""
        self._growing(lambda: self._reserve(_needed(rows)))
        self._growing(lambda: self._load(head, rows))

    def _load(self, head: Head, rows: CopyRows) -> None:
        with self._environment.begin(write=True, db=self._state) as transaction:
            self._expect(transaction, EMPTY_HEAD)
            with transaction.cursor() as cursor:
                values = cast("list[bytes]", rows.values)  # nothing is deleted in a snapshot
                pairs = with_sums(zip(rows.keys, values, strict=True))
                _, added = cursor.putmulti(pairs, append=True)
                assert added == len(rows.keys), "a snapshot is sorted by key, each key once"
            if rows.indexed:
                lmdb_reading.fill(transaction, self._due, rows)
            self._put_long(transaction, rows)
            self._write_head(transaction, head)

    def scan(self) -> tuple[Head, list[tuple[bytes, bytes]], dict[bytes, bytes]]:
        """Return the head, all (local key, value) in key order, and the whole keys of cut ones, as of one moment."""
        return self._growing(self._scan)

    def _scan(self) -> tuple[Head, list[tuple[bytes, bytes]], dict[bytes, bytes]]:
        with (
            self._environment.begin(db=self._state) as transaction,
            transaction.cursor() as cursor,
            transaction.cursor(db=self._long) as longs,
        ):
            head, pairs, whole = self._stored(transaction), checked_pairs(cursor), dict(checked_pairs(longs))
            keys = [key for key, _ in pairs]
            if len(keys) != transaction.stat(self._state)["entries"] or keys != sorted(keys):
                raise DamagedValue("it does not hold the keys that were stored, in their order")
            return head, pairs, whole

    def __len__(self) -> int:
        """Return the number of keys."""
        with self._environment.begin() as transaction:
            return int(transaction.stat(self._state)["entries"])

    def _stored(self, transaction: lmdb.Transaction) -> Head:
        stored = transaction.get(_HEAD, db=self._meta)
        if stored is None:
            return EMPTY_HEAD
        return self._parsed(stored)[0]

    def _parsed(self, stored: bytes | memoryview) -> tuple[Head, str]:
        try:
            version, attempt, boot = json.loads(checked(_HEAD, bytes(stored)))
        except (ValueError, TypeError) as error:
            raise damaged(error, self.folder) from error
        return Head(version, attempt), boot

    def _expect(self, transaction: lmdb.Transaction, base: Head) -> None:
        found = self._stored(transaction)
        if found != base:
            raise OutOfDate(f"the copy is at {found}, not at {base}", where=str(self.folder))

    def _write_head(self, transaction: lmdb.Transaction, head: Head) -> None:
        text = json.dumps([head.version, head.attempt, boot_id()]).encode()
        transaction.put(_HEAD, with_sum(_HEAD, text), db=self._meta)


def _needed(rows: CopyRows) -> int:
    return _FILL_FACTOR * (rows.size_bytes + _NODE_BYTES * len(rows.keys))
