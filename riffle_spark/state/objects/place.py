"""The identity of an encrypted part."""

from typing import NamedTuple


class Place(NamedTuple):
    """The identity of an encrypted part. A frame authenticates it, so a part decrypts in its own place only.

    ``text`` is authenticated by frames of version 2, ``text_1`` by frames of version 1 (docs/formats.md).
    """

    text: str
    text_1: str
