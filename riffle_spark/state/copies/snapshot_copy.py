"""A copy that was begun from a snapshot's file. Knows which of the two holds a key. Does not know stores or chains.

Theory of operation. To fill a copy is what costs most of a restore, and a batch touches few of its keys. So a large
snapshot is not loaded: its file lies beside the copy, which holds only what changed since. A key is looked up in the
copy first and then in the file; a key that was deleted since stays in the copy as an empty value, which no row has.
``settle`` moves the file's rows into the copy, some at a time, and leaves out what the copy has; with the last of them
the file goes. How far that came is kept in the copy, in the same transaction.

Another process may end the settling at any moment, and with it go the marks of deleted keys. So every read learns in
the transaction in which it reads values and marks whether the file counts: once all is moved, the copy alone does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import lmdb

from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.copies.lmdb_file import DamagedCopy, damaged
from riffle_spark.state.copies.snapshot_file import FILE, Base
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["BasedCopy", "begun", "open_copy", "settle"]

_BASE = b"base"
_GONE = b"gone/"
_SCAN_ROWS = 20_000


def open_copy(folder: Path, schema: StoreSchema) -> Copy:
    """Return the open copy of a folder, with the file it was begun from if that is still needed.

    Raises ``DamagedCopy`` if that file is gone or has another length, or if the copy is of other columns.
    """
    columns = schema.file_columns if (folder / FILE).exists() else None
    copy = Copy(folder) if columns is None else BasedCopy(folder, columns)
    try:
        copy.check_layout(schema.copy_layout)
        if columns is None and copy.knows(_BASE):
            raise damaged(folder, FileNotFoundError(FILE))
    except DamagedCopy:
        copy.close()
        raise
    return copy


def begun(copy: Copy, head: Head, schema: StoreSchema) -> Copy:
    """Begin a new, empty copy at the head of the snapshot whose readable file lies in its folder; return it opened
    anew.
    """
    columns = schema.file_columns
    assert columns is not None, "no other store's snapshots are read as files"
    copy.close()
    return BasedCopy(copy.folder, columns, begin_at=head)


def settle(copies: Iterable[Copy], size_bytes: int) -> None:
    """Move about so many bytes of files into their copies, one copy after the other."""
    for copy in copies:
        if size_bytes <= 0:
            return
        if isinstance(copy, BasedCopy):
            size_bytes -= copy.settle_bytes(size_bytes)


class BasedCopy(Copy):
    """An open copy with a base file, or what is left of one; ``begin_at`` makes a new, empty copy one with a base."""

    def __init__(self, folder: Path, schema: PlainColumns, begin_at: Head | None = None) -> None:
        super().__init__(folder)
        self._base: Base | None = None
        if begin_at is not None:
            self._growing(lambda: self._begin(begin_at))
        try:
            self._base = self._needed_base(schema)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise damaged(folder, error) from error
        if self._base is None:
            (folder / FILE).unlink(missing_ok=True)

    def _needed_base(self, schema: PlainColumns) -> Base | None:
        """Open the file, unless all of it was moved: if it is gone, another process may just have moved the last."""
        pending = self._growing(self._read_pending)
        try:
            return Base(self.folder / FILE, pending[0], schema) if pending is not None else None
        except FileNotFoundError:
            if self._growing(self._read_pending) is None:
                return None
            raise

    def _begin(self, head: Head) -> None:
        size_bytes = (self.folder / FILE).stat().st_size
        with self._environment.begin(write=True, db=self._meta) as transaction:
            self._expect(transaction, EMPTY_HEAD)
            transaction.put(_BASE, json.dumps([size_bytes, 0]).encode())
            self._write_head(transaction, head)

    def _read_pending(self) -> tuple[int, int] | None:
        with self._environment.begin(db=self._meta) as transaction:
            return self._pending(transaction)

    def _pending(self, transaction: lmdb.Transaction) -> tuple[int, int] | None:
        """Return the file's bytes and how many of its rows were moved; ``None`` if all were."""
        stored = transaction.get(_BASE, db=self._meta)
        if stored is None:
            return None
        size_bytes, moved = json.loads(bytes(stored))
        return size_bytes, moved

    def _found(self, transaction: lmdb.Transaction[bytes], keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        held = super()._found(transaction, keys)
        if self._pending(transaction) is None:
            return held
        assert self._base is not None, "a copy never begins to need a file while it is open"
        values = dict(held)
        lacking = [key for key in keys if key not in values]
        values |= self._base.find(lacking) if lacking else {}
        return [(key, values[key]) for key in keys if values.get(key)]

    def _remove(self, transaction: lmdb.Transaction, keys: list[bytes]) -> None:
        super()._remove(transaction, keys)
        if self._pending(transaction) is not None:
            for key in keys:
                transaction.put(key, b"", db=self._state)
                transaction.put(_GONE + key, b"", db=self._meta)

    def settle_bytes(self, size_bytes: int) -> int:
        """Move about so many bytes of the file into the copy; return about how many were moved."""
        if self._base is None:
            return 0
        rows = len(self._base) * size_bytes // self._base.size_bytes + 1
        row_bytes = self._base.size_bytes / len(self._base)
        self.settle(rows)
        return int(rows * row_bytes)

    def settle(self, rows: int) -> int:
        """Move so many rows of the file into the copy; return how many are left."""
        if self._base is None:
            return 0
        left = self._growing(lambda: self._settle(rows))
        if not left:
            self._base = None
            (self.folder / FILE).unlink(missing_ok=True)
        return left

    def _settle(self, rows: int) -> int:
        assert self._base is not None
        with self._environment.begin(write=True, db=self._state) as transaction:
            pending = self._pending(transaction)
            if pending is None:
                return 0
            size_bytes, moved = pending
            chunk = self._base.rows(moved, rows)
            with transaction.cursor() as cursor:
                pairs = [(key, value) for key, value in zip(chunk.keys, chunk.values, strict=True) if value]
                cursor.putmulti(pairs, overwrite=False)
            self._put_long(transaction, chunk)
            moved += len(chunk.keys)
            if moved < len(self._base):
                transaction.put(_BASE, json.dumps([size_bytes, moved]).encode(), db=self._meta)
                return len(self._base) - moved
            self._forget_gone(transaction)
            transaction.delete(_BASE, db=self._meta)
            return 0

    def _forget_gone(self, transaction: lmdb.Transaction) -> None:
        """Remove the empty values that hid rows of the file."""
        with transaction.cursor(db=self._meta) as cursor:
            found = cursor.set_range(_GONE)
            names = map(bytes, cursor.iternext(values=False)) if found else ()
            marks = list(takewhile(lambda name: name.startswith(_GONE), names))
        for mark in marks:
            if transaction.get(mark[len(_GONE) :], db=self._state) == b"":
                super()._remove(transaction, [mark[len(_GONE) :]])
            transaction.delete(mark, db=self._meta)

    def scan(self) -> tuple[Head, list[tuple[bytes, bytes]], dict[bytes, bytes]]:
        """See ``Copy.scan``; what is left of the file is moved into the copy first."""
        self._settle_all()
        return super().scan()

    def _begun_reading(self, at: Head) -> lmdb.Transaction[bytes]:
        self._settle_all()
        return super()._begun_reading(at)

    def __len__(self) -> int:
        """Return the number of keys; what is left of the file is moved into the copy first."""
        self._settle_all()
        return super().__len__()

    def _settle_all(self) -> None:
        while self.settle(_SCAN_ROWS):
            pass
