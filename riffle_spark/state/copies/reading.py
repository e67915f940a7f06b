"""What may be asked of one copy at one moment, and what is not there answers. Knows bytes. Does not know LMDB."""

from collections.abc import Iterator, Sequence
from typing import Protocol

__all__ = ["EMPTY_READING", "Reading"]


class Reading(Protocol):
    """What may be asked of a copy as of one head. Keys are stored keys, values local values, as bytes."""

    def one(self, key: bytes) -> bytes | None:
        """Return the value of a key, ``None`` if it is not there."""
        ...

    def many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of those keys that are there, in key order."""
        ...

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of all keys that begin so, in key order."""
        ...

    def last_under(self, prefix: bytes) -> bytes | None:
        """Return the last key that begins so."""
        ...

    def due_until(self, time_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield (due time, key) of all that is due at or before this time, in order of time, then of key."""
        ...

    def longs(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the whole keys of those that were cut."""
        ...


class _Empty:
    """The reading of a key-group that has no copy."""

    def one(self, key: bytes) -> bytes | None:  # noqa: ARG002 - a Reading
        return None

    def many(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:  # noqa: ARG002 - a Reading
        return []

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002 - a Reading
        return iter(())

    def last_under(self, prefix: bytes) -> bytes | None:  # noqa: ARG002 - a Reading
        return None

    def due_until(self, time_ms: int) -> Iterator[tuple[int, bytes]]:  # noqa: ARG002 - a Reading
        return iter(())

    def longs(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:  # noqa: ARG002 - a Reading
        return {}


EMPTY_READING: Reading = _Empty()
