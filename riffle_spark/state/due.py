"""A copy's rows in order of time. Knows how a local value tells its due time, and LMDB. Does not know who asks what is
due, nor what is in a row.

An entry is the 8 bytes of a time that a local value begins with and then the row's key, with nothing as its value. All
zero is no time, and has no entry. Entries are written in the transaction that writes the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import lmdb

from riffle_spark.state.rows import Rows

__all__ = ["fill", "follow"]

_TIME_BYTES = 8
_NEVER = bytes(_TIME_BYTES)
_KEYS_AT_ONCE = 4096
"""Old values are read whole to see their times, so not all of them at once."""


def follow(
    transaction: lmdb.Transaction[bytes], state: lmdb._Database, due: lmdb._Database,
    cleared: Sequence[bytes], rows: Rows,
) -> None:  # fmt: skip
    """Bring the entries from what the rows' keys, and the cleared ones, hold now to what they will hold."""
    coming = set(_entries((key, value) for key, value in zip(rows.keys, rows.values, strict=True) if value is not None))
    if not coming and not transaction.stat(due)["entries"]:
        return
    going: set[bytes] = set()
    with transaction.cursor(db=state) as cursor:
        for keys in (rows.keys, cleared):
            for at in range(0, len(keys), _KEYS_AT_ONCE):
                going.update(_entries(cursor.getmulti(keys[at : at + _KEYS_AT_ONCE])))
    for entry in sorted(going - coming):
        transaction.delete(entry, db=due)
    _put(transaction, due, coming - going)


def fill(transaction: lmdb.Transaction[bytes], due: lmdb._Database, rows: Rows) -> None:
    """Write the entries of rows of which none is deleted."""
    _put(transaction, due, _entries((key, value) for key, value in zip(rows.keys, rows.values, strict=True) if value))


def _entries(pairs: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [value[:_TIME_BYTES] + key for key, value in pairs if value[:_TIME_BYTES] != _NEVER]


def _put(transaction: lmdb.Transaction[bytes], due: lmdb._Database, entries: Iterable[bytes]) -> None:
    with transaction.cursor(db=due) as cursor:
        cursor.putmulti([(entry, b"") for entry in sorted(entries)])
