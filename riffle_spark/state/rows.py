"""Rows on their way into a local copy. Knows no file and no codec."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for a copy: local keys, values (``None``: deleted) and, where some key is too long for the file, whole
    keys. ``size_bytes`` are those of keys and values together, 0 where nobody counted.
    """

    keys: list[bytes]
    values: list[bytes | None]
    longs: list[bytes | None] | None = None
    size_bytes: int = 0

    def slice(self, start: int, stop: int) -> Rows:
        """Return rows ``start`` to ``stop``."""
        return Rows(self.keys[start:stop], self.values[start:stop], self.longs[start:stop] if self.longs else None)
