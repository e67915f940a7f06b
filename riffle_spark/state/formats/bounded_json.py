"""JSON that is stored compressed, parsed in bounded memory.

A few packed bytes can hold millions of empty lists, each of which takes 72 bytes as a Python object. So the memory that
the parsed objects take is estimated from counts of bytes before anything is parsed.
"""

import json
from typing import Final

__all__ = ["allowed_bytes", "check_size", "parse"]

_ALLOWED_BYTES: Final = 64 << 20
_ALLOWED_TIMES: Final = 256
"""Maps of owners and standbys take most: 160 times their packed bytes with 32 768 key-groups in three groups."""
_TAKES: Final = ((b"[", 96), (b"{", 240), (b",", 48), (b'"', 30))
"""The bytes that Python takes for each mark: a list, an object, an element, one quote of a text."""


def allowed_bytes(packed: int) -> int:
    """Return how many bytes of memory JSON may take, as text and parsed, that is stored in ``packed`` bytes."""
    return max(_ALLOWED_BYTES, _ALLOWED_TIMES * packed)


def check_size(text: bytes, packed: int) -> None:
    """Raise ``ValueError`` for JSON that would take more memory than its compressed bytes allow."""
    wide = 1 if text.isascii() and b"\\u" not in text else 4
    taken = 2 * wide * len(text) + sum(text.count(mark) * size for mark, size in _TAKES)
    if taken > allowed_bytes(packed):
        raise ValueError(f"{packed} packed bytes that would take {taken} bytes of memory")


def parse(text: bytes, packed: int) -> object:
    """Return the parsed JSON. Raises ``ValueError`` as ``check_size`` does, and for text that is not JSON."""
    check_size(text, packed)
    return json.loads(text)
