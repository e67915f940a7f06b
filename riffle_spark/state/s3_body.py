"""The bytes of an S3 answer. Knows bodies that break off, and servers that know no ranges. Does not know requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import urllib3.exceptions
from botocore.exceptions import BotoCoreError
from botocore.response import StreamingBody

from riffle_spark.state.objects import PIECE_BYTES

__all__ = ["Body", "BrokenOff"]


class BrokenOff(Exception):
    """A body ended before its time; the text says how."""


class Body:
    """What was asked for from ``start``. ``is_whole``: the server knows no ranges, and gives the object."""

    def __init__(self, stream: StreamingBody, start: int, length: int | None, *, is_whole: bool) -> None:
        self._stream = stream
        self._wanted = slice(start, None if length is None else start + length) if is_whole else None

    def read(self) -> bytes:
        """Return all of it. Raises ``BrokenOff``."""
        with _told():
            data: bytes = self._stream.read()
        return data if self._wanted is None else data[self._wanted]

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces of ``PIECE_BYTES`` at most. Raises ``BrokenOff``, after what came."""
        if self._wanted is not None:
            yield from filter(None, [self.read()])
            return
        with closing(self._stream):
            while piece := self._piece():
                yield piece

    def _piece(self) -> bytes:
        with _told():
            piece: bytes = self._stream.read(PIECE_BYTES)
            return piece


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, urllib3.exceptions.HTTPError) as error:
        raise BrokenOff(f"the body broke off ({type(error).__name__})") from error
