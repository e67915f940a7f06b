"""Where a variable's elements lie in a local copy. Knows the bytes of a stored key. Does not know values or files."""

from __future__ import annotations

import struct

__all__ = ["due_key", "due_of", "index_key", "index_of"]

_INDEX = struct.Struct(">Q")
_TURN = 1 << 63


def index_key(index: int) -> bytes:
    """Return what follows a list's prefix for its element of this number."""
    return _INDEX.pack(index)


def index_of(stored: bytes) -> int:
    """Return the number of a list's element from its stored key."""
    index: int = _INDEX.unpack(stored[-8:])[0]
    return index


def due_key(due_ms: int) -> bytes:
    """Return a time as bytes that sort as times do: what follows the timers' prefix, and what a value begins with."""
    return _INDEX.pack(due_ms + _TURN)


def due_of(data: bytes) -> int:
    """Return the time at the beginning of the bytes."""
    due: int = _INDEX.unpack_from(data)[0]
    return due - _TURN
