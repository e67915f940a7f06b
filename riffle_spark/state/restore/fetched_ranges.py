"""What came of a snapshot, range by range: where its file has other bytes than the log lists, they tell whether the
store gave these or the disk did not keep what it was given. Knows files. Does not know stores or stacks.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from riffle_spark.state.formats import part_codec

__all__ = ["FetchedRange", "are_kept"]

_PIECE_BYTES = 1 << 20


class FetchedRange(NamedTuple):
    """Some bytes of a snapshot as they came: where they begin, how many they are, their checksum."""

    start: int
    length: int
    checksum: int


def are_kept(path: Path, came: Iterable[FetchedRange]) -> bool:
    """Tell whether a file has all these ranges as they came. After one that it has not, none is asked for."""
    return all(_is_kept(path, one) for one in came)


def _is_kept(path: Path, one: FetchedRange) -> bool:
    checksum, left = part_codec.Checksum(), one.length
    try:
        with path.open("rb") as file:
            file.seek(one.start)
            while piece := file.read(min(left, _PIECE_BYTES)):
                checksum.update(piece)
                left -= len(piece)
    except OSError:
        return False
    return checksum.intdigest() == one.checksum
