"""One copy at one moment, to be read bit by bit. Knows LMDB transactions. Does not know schemas or what is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import lmdb

from riffle_spark.errors import RiffleError
from riffle_spark.state.copies.value_sums import DamagedValue, checked, checked_pairs, with_sum
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.variable_keys import WORD_BYTES, due_key, due_of

__all__ = ["CopyReading", "fill", "follow", "keys_under"]

_TIME_BYTES = 8
_NEVER = bytes(_TIME_BYTES)
_KEYS_AT_ONCE = 4096
"""Old values are read whole to see their times, so not all of them at once."""


class CopyReading:
    """What a copy holds, as an open transaction sees it: of no use once that has ended.

    ``told`` makes an error of ours of what shows damage. The first is kept in ``damage``: a user's code may be between
    here and who has to know of it, and catch it.
    """

    def __init__(
        self, transaction: lmdb.Transaction[bytes], state: lmdb._Database, due: lmdb._Database, long: lmdb._Database,
        told: Callable[[Exception], RiffleError],
    ) -> None:  # fmt: skip
        self._transaction = transaction
        self._state = state
        self._due = due
        self._long = long
        self._told = told
        self._last: lmdb.Cursor[bytes] | None = None
        self.damage: RiffleError | None = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, DamagedValue) as error:
            self.damage = self.damage or self._told(error)
            raise self.damage from error

    def one(self, key: bytes) -> bytes | None:
        """See ``Reading``."""
        try:
            found = self._transaction.get(key, db=self._state)
            return None if found is None else checked(key, found)
        except (lmdb.Error, DamagedValue) as error:  # as ``_watched``, for who asks key by key
            self.damage = self.damage or self._told(error)
            raise self.damage from error

    def many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """See ``Reading``: sorted keys lie on pages next to each other."""
        with self._watched(), self._transaction.cursor(db=self._state) as cursor:
            return checked_pairs(cursor.getmulti(sorted(keys)))

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See ``Reading``."""
        try:
            with self._transaction.cursor(db=self._state) as cursor:
                if cursor.set_range(prefix):
                    for key, stored in cursor.iternext():
                        if not key.startswith(prefix):
                            return
                        yield key, checked(key, stored)
        except (lmdb.Error, DamagedValue) as error:  # as ``_watched``, for who asks key by key
            self.damage = self.damage or self._told(error)
            raise self.damage from error

    def last_under(self, prefix: bytes) -> bytes | None:
        """See ``Reading``."""
        try:
            if self._last is None:  # lists ask for many keys one after the other
                self._last = self._transaction.cursor(db=self._state)
            cursor, after = self._last, _after(prefix)
            found = cursor.prev() if after is not None and cursor.set_range(after) else cursor.last()
            key, stored = cursor.item()
            if not found or not key.startswith(prefix):
                return None
            checked(key, stored)
        except (lmdb.Error, DamagedValue) as error:  # as ``_watched``, for who asks key by key
            self.damage = self.damage or self._told(error)
            raise self.damage from error
        return key

    def due_until(self, time_ms: int) -> Iterator[tuple[int, bytes]]:
        """See ``Reading``."""
        last = due_key(time_ms)
        with self._watched(), self._transaction.cursor(db=self._due) as cursor:
            for entry, stored in cursor.iternext():
                if entry[:WORD_BYTES] > last:
                    return
                checked(entry, stored)
                yield due_of(entry), entry[WORD_BYTES:]

    def longs(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """See ``Reading``."""
        with self._watched():
            if not self._transaction.stat(self._long)["entries"]:
                return {}
            with self._transaction.cursor(db=self._long) as cursor:
                return dict(checked_pairs(cursor.getmulti(keys)))


def keys_under(transaction: lmdb.Transaction[bytes], database: lmdb._Database, prefix: bytes) -> list[bytes]:
    """Return all keys that begin so."""
    found: list[bytes] = []
    with transaction.cursor(db=database) as cursor:
        if cursor.set_range(prefix):
            for key in cursor.iternext(values=False):
                if not key.startswith(prefix):
                    break
                found.append(key)
    return found


def _after(prefix: bytes) -> bytes | None:
    """Return the first bytes that come after all that begins so; ``None`` if nothing does."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def follow(
    transaction: lmdb.Transaction[bytes], state: lmdb._Database, due: lmdb._Database,
    cleared: Sequence[bytes], rows: CopyRows,
) -> None:  # fmt: skip
    """Bring the entries from what the rows' keys, and the cleared ones, hold now to what they will hold."""
    coming = set(_entries((key, value) for key, value in zip(rows.keys, rows.values, strict=True) if value is not None))
    if not coming and not transaction.stat(due)["entries"]:
        return
    going: set[bytes] = set()
    with transaction.cursor(db=state) as cursor:
        for keys in (rows.keys, cleared):
            for at in range(0, len(keys), _KEYS_AT_ONCE):
                going.update(_entries(checked_pairs(cursor.getmulti(keys[at : at + _KEYS_AT_ONCE]))))
    for entry in sorted(going - coming):
        transaction.delete(entry, db=due)
    _put(transaction, due, coming - going)


def fill(transaction: lmdb.Transaction[bytes], due: lmdb._Database, rows: CopyRows) -> None:
    """Write the entries of rows of which none is deleted."""
    _put(transaction, due, _entries((key, value) for key, value in zip(rows.keys, rows.values, strict=True) if value))


def _entries(pairs: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [value[:_TIME_BYTES] + key for key, value in pairs if value[:_TIME_BYTES] != _NEVER]


def _put(transaction: lmdb.Transaction[bytes], due: lmdb._Database, entries: Iterable[bytes]) -> None:
    with transaction.cursor(db=due) as cursor:
        cursor.putmulti([(entry, with_sum(entry, b"")) for entry in sorted(entries)])
