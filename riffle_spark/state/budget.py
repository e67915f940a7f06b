"""How much one piece of work may still begin. Knows a time and a number of bytes. Does not know what is done."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Budget"]

_GRANT_BYTES_MIN = 64 * 1024
"""Less is not asked for, lest the last bytes of a budget become many small requests."""


class Budget:
    """A piece's bounds: it begins things for so many seconds, but one in any case, and fetches so many bytes."""

    def __init__(self, seconds: float, fetch_bytes: int | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._bytes_left = fetch_bytes
        self._begun = False

    def allows(self) -> bool:
        """Tell whether one more thing may begin, and take it as begun."""
        allowed = not self._begun or self._clock() < self._until
        self._begun = True
        return allowed

    def grant(self, length: int, *, part: bool = False) -> int:
        """Return how many of ``length`` bytes may be fetched now: all or none, or with ``part`` some.

        The last grant may go beyond the budget: by one run of a delta, or to the least that is worth a request.
        """
        if not length or self._bytes_left is None:
            return length if self.allows() else 0
        if self._bytes_left <= 0 or not self.allows():
            return 0
        granted = min(length, max(self._bytes_left, _GRANT_BYTES_MIN)) if part else length
        self._bytes_left -= granted
        return granted
