"""Values with a checksum of key and value behind them. Knows bytes. Does not know where they are kept."""

from collections.abc import Iterable

from xxhash import xxh3_64_digest

__all__ = ["DamagedValue", "checked", "checked_pairs", "with_sum", "with_sums"]

_SUM_BYTES = 8


class DamagedValue(ValueError):
    """A key or its value is not what was stored."""


def with_sum(key: bytes, value: bytes) -> bytes:
    """Return a value as it is stored under a key."""
    return value + xxh3_64_digest(key + value, len(key))


def with_sums(pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return (key, value) with values as they are stored."""
    return [(key, value + xxh3_64_digest(key + value, len(key))) for key, value in pairs]


def checked(key: bytes, stored: bytes) -> bytes:
    """Return the value that was stored under a key. Raises ``DamagedValue``."""
    value = stored[:-_SUM_BYTES]
    if stored[-_SUM_BYTES:] != xxh3_64_digest(key + value, len(key)):
        _raise()
    return value


def checked_pairs(stored: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return (key, value) of pairs that were stored. Raises ``DamagedValue``."""
    return [
        (key, value)
        for key, whole in stored  # a call a pair would double the time
        if whole[-_SUM_BYTES:] == xxh3_64_digest(key + (value := whole[:-_SUM_BYTES]), len(key)) or _raise()
    ]


def _raise() -> bool:
    raise DamagedValue("a key or its value was altered: they have another checksum")
