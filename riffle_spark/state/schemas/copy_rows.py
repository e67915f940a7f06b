"""Rows on their way into a local copy. Knows no file and no codec."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

__all__ = ["CopyRows", "joined"]


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Rows for a copy: local keys, values (``None``: deleted) and, where some key is too long for the file, whole
    keys. ``size_bytes`` are about those of keys and values together, 0 where nobody counted.

    ``cleared`` are the places, ascending, of deleted rows whose key is a prefix: all that begins so is removed before
    other rows are put. Values of ``indexed`` rows begin with the 8 bytes of a time, all zero for none, by which the
    copy lists them too.
    """

    keys: list[bytes]
    values: list[bytes | None]
    longs: list[bytes | None] | None = None
    size_bytes: int = 0
    cleared: tuple[int, ...] = ()
    indexed: bool = False

    def split(self) -> tuple[Iterable[tuple[bytes, bytes]], list[bytes]]:
        """Return the keys and values of rows that are not deleted, and the keys of those that are."""
        pairs = zip(self.keys, self.values, strict=True)
        if None not in self.values:
            return cast("Iterable[tuple[bytes, bytes]]", pairs), []
        deleted = [key for key, value in zip(self.keys, self.values, strict=True) if value is None]
        return [(key, value) for key, value in pairs if value is not None], deleted

    def slice(self, start: int, stop: int) -> "CopyRows":
        """Return rows ``start`` to ``stop``."""
        first, end = bisect_left(self.cleared, start), bisect_left(self.cleared, stop)
        return CopyRows(
            self.keys[start:stop],
            self.values[start:stop],
            self.longs[start:stop] if self.longs else None,
            self.size_bytes * (stop - start) // max(1, len(self.keys)),
            cleared=tuple(place - start for place in self.cleared[first:end]),
            indexed=self.indexed,
        )


def joined(pieces: Sequence[CopyRows]) -> CopyRows:
    """Return the rows of several one after the other."""
    starts = accumulate((len(piece.keys) for piece in pieces), initial=0)
    longs = [piece.longs or [None] * len(piece.keys) for piece in pieces] if any(p.longs for p in pieces) else None
    return CopyRows(
        [key for piece in pieces for key in piece.keys],
        [value for piece in pieces for value in piece.values],
        [whole for of_piece in longs for whole in of_piece] if longs else None,
        sum(piece.size_bytes for piece in pieces),
        tuple(start + place for start, piece in zip(starts, pieces, strict=False) for place in piece.cleared),
        any(piece.indexed for piece in pieces),
    )
