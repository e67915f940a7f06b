"""Bytes of parts from the store to files. Knows ranges, gets and files. Does not know stacks.

What is fetched is written as it came. Snapshots come in ranges, several at a time, straight into their files; of deltas
only the wanted parts are kept, those of one object in one file. What comes in order is checked on its way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import Link, Snapshot
from riffle_spark.state.restore.reader import RANGE_BYTES, Reader, in_parallel, range_of, ranges, span_bytes

__all__ = ["WantedSnapshot", "fetched_links", "fetched_snapshots", "kept_parts", "runs_of"]


class WantedSnapshot(NamedTuple):
    """A snapshot of a store's key-group, and the new file that it is to be."""

    store: str
    key_group: int
    snapshot: Snapshot
    path: Path


def runs_of(reader: Reader, links: Iterable[Link]) -> Iterator[list[Link]]:
    """Yield the links as runs that one get each can fetch, of bounded bytes unless one link is longer."""
    for run in reader.runs(links):
        first = 0
        for at in range(1, len(run)):
            if span_bytes(run[first : at + 1]) > RANGE_BYTES:
                yield run[first:at]
                first = at
        yield run[first:]


def fetched_links(reader: Reader, folder: Folder, runs: Iterable[list[Link]]) -> dict[Link, StackedPart]:
    """Fetch runs of links into files of a member's folder. Raises what ``Reader`` raises."""
    found: dict[Link, StackedPart] = {}

    def fetch(run: list[Link]) -> dict[Link, StackedPart]:
        whole: dict[Link, memoryview] = {}
        for link, data in reader.fetched(run).items():
            if isinstance(data, CorruptStateError):
                raise data
            whole[link] = data
        return kept_parts(folder, whole)

    for parts in in_parallel(fetch, list(runs)):
        found.update(parts)
    return found


def kept_parts(folder: Folder, parts: Mapping[Link, memoryview]) -> dict[Link, StackedPart]:
    """Write parts of one object, found whole before, into one new file of a member's folder."""
    if not parts:
        return {}
    head = next(iter(parts)).head
    path = folder.fetched_file(head.version, head.attempt)
    name, kept, start = f"{path.parent.name}/{path.name}", {}, 0
    with path.open("wb") as file:
        for link, data in parts.items():
            kept[link] = StackedPart(name, start, link.length, link.checksum, link.rows)
            start += file.write(data)
    return kept


def fetched_snapshots(reader: Reader, wanted: Sequence[WantedSnapshot]) -> set[Path]:
    """Fetch snapshots into their files; return those that were found whole on their way, all others are unchecked.

    Raises what ``Reader`` raises.
    """
    most = range_of(sum(one.snapshot.length for one in wanted))
    come = in_parallel(lambda work: work(), [work for one in wanted for work in _ranges(reader, one, most)])
    checksums = {one.path: one.snapshot.checksum for one in wanted}
    return {path for path, checksum in come if checksum == checksums[path]}


def _ranges(reader: Reader, one: WantedSnapshot, most: int) -> Iterator[Callable[[], tuple[Path, int]]]:
    one.path.touch()
    for start, size in ranges(one.snapshot.length, most):
        yield partial(_fetch_range, reader, one, start, size)


def _fetch_range(reader: Reader, one: WantedSnapshot, start: int, size: int) -> tuple[Path, int]:
    """Fetch a range into its file; return that and the checksum of the range."""
    checksum = part_codec.Checksum()
    with one.path.open("r+b") as file:
        file.seek(start)

        def write(piece: bytes) -> None:
            file.write(piece)
            checksum.update(piece)

        reader.copy_snapshot((one.store, one.key_group), one.snapshot, start, size, write)
    return one.path, checksum.intdigest()
