"""Checksums of fetched ranges: they show whether the store or the disk altered a snapshot's file."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from riffle_spark.state.formats import part_codec

_PIECE_BYTES = 1 << 20


class FetchedRange(NamedTuple):
    """A range of a snapshot as it arrived: start, bytes and checksum."""

    start: int
    length: int
    checksum: int


def are_stored(path: Path, ranges: Iterable[FetchedRange]) -> bool:
    """Return whether a file has all ranges as they arrived. Stops at the first that differs."""
    return all(_is_stored(path, fetched) for fetched in ranges)


def _is_stored(path: Path, fetched: FetchedRange) -> bool:
    """Return whether a file has the bytes of a range, by their checksum."""
    checksum = part_codec.Checksum()
    remaining = fetched.length
    try:
        with path.open("rb") as file:
            file.seek(fetched.start)
            while piece := file.read(min(remaining, _PIECE_BYTES)):
                checksum.update(piece)
                remaining -= len(piece)
    except OSError:
        return False
    return checksum.intdigest() == fetched.checksum
