"""Parse compressed JSON in bounded memory.

A few compressed bytes can hold millions of empty lists. Each takes 72 bytes as a Python object. So the memory
of the parsed objects is estimated from counts of bytes before anything is parsed.
"""

import json
from typing import Final

_ALLOWED_BYTES: Final = 256 << 20
_ALLOWED_TIMES: Final = 1024
"""Chains take the most memory: 190 MB for 32 768 key-groups with ten links each. If every batch changes equally many
rows of each key-group, that is 400 to 600 times their compressed bytes.
"""
_MARK_BYTES: Final = ((b"[", 96), (b"{", 240), (b",", 48), (b'"', 30))
"""The memory of each mark: a list, an object, an element, one quote of a text."""


def allowed_bytes(packed: int) -> int:
    """Return how many bytes of memory JSON of ``packed`` compressed bytes may take, as text and parsed."""
    return max(_ALLOWED_BYTES, _ALLOWED_TIMES * packed)


def check_size(text: bytes, packed: int) -> None:
    """Raise ``ValueError`` for JSON that would take more memory than its ``packed`` compressed bytes allow."""
    wide = 1 if text.isascii() and b"\\u" not in text else 4
    memory = 2 * wide * len(text) + sum(text.count(mark) * size for mark, size in _MARK_BYTES)
    if memory > allowed_bytes(packed):
        raise ValueError(f"{packed} compressed bytes of JSON need {memory} bytes of memory")


def parse_json(text: bytes, packed: int) -> object:
    """Return the parsed JSON.

    ``packed`` is the number of its compressed bytes. Raises ``ValueError`` as ``check_size`` does, and for text that is
    not JSON.
    """
    check_size(text, packed)
    return json.loads(text)
