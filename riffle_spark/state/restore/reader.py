"""Reading parts of deltas and snapshots. Knows local files and ranged gets. Does not know what parts mean, or stacks.

One way to a part's bytes for owner and standby alike: the file this member sealed itself if it has one that is
intact, else the object store, adjacent ranges of one object joined into one get, several gets at once.

What is fetched for stacks is written as it came. Snapshots come in ranges, several at a time, straight into their
files; of deltas only the wanted parts are kept, those of one object in one file. What comes in order is checked on its
way.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.disk import disk_refused
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.mapped_bytes import threads_within_limit
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.fetched_ranges import FetchedRange

__all__ = [
    "RANGE_BYTES", "Reader", "Totals", "WantedSnapshot", "fetched_links", "fetched_snapshots", "kept_parts",
    "next_range", "range_of", "ranges", "runs_of", "span_bytes",
]  # fmt: skip

RANGE_BYTES = 8 << 20
"""A snapshot is got in ranges of so many bytes, if there is nothing else to get meanwhile."""
_CONCURRENT_GETS = 12
_JOIN_GAP_BYTES = 64 * 1024
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Totals:
    """What was read so far: parts from local files, parts and snapshots from the store, bytes from the store, and how
    many of these were snapshots'.
    """

    local_parts: int = 0
    fetched_parts: int = 0
    fetched_snapshots: int = 0
    fetched_bytes: int = 0
    snapshot_bytes: int = 0


class Reader:
    """Reads parts and snapshots for one task. ``keys`` are those of parts that are encrypted."""

    def __init__(self, objects: ObjectStore, folder: Folder | None, keys: Keys | None = None) -> None:
        self._objects = objects
        self._folder = folder
        self.keys = keys
        self.totals = Totals()
        self._counting = threading.Lock()

    def outputs(self, store: str, links: Iterable[Link]) -> dict[Link, pa.Table]:
        """Return the table of each link's part, checked: a store's sealed output rows.

        Raises ``CorruptStateError`` naming a damaged or missing object, ``ConfigError`` without its key.
        """
        found: dict[Link, pa.Table] = {}
        remote: list[list[Link]] = []
        for parts in _by_object(links):
            local = self._local(store, parts)
            found.update(local)
            remote += joined([link for link in parts if link not in local])
        fetched: list[dict[Link, pa.Table]] = in_parallel(partial(self._fetch, store), remote)
        for tables in fetched:
            found.update(tables)
        return found

    def runs(self, links: Iterable[Link], gap_bytes: int = _JOIN_GAP_BYTES) -> list[list[Link]]:
        """Return the links as runs for ``read``, the oldest first: what lies at most so far apart in one object."""
        return [run for parts in _by_object(links) for run in joined(parts, gap_bytes)]

    def fetched(self, run: list[Link]) -> dict[Link, memoryview | CorruptStateError]:
        """Return the bytes of each of a run's parts, with one get, or what is wrong with it.

        Raises ``CorruptStateError`` if the object is missing.
        """
        view = memoryview(self._get(run))
        found: dict[Link, memoryview | CorruptStateError] = {}
        for link in run:
            data = view[link.start - run[0].start :][: link.length]
            whole = part_codec.checksum(data) == link.checksum
            found[link] = data if whole else part_codec.altered(_range_of(link))
        return found

    def _local(self, store: str, parts: list[Link]) -> dict[Link, pa.Table]:
        if self._folder is None:
            return {}
        path = self._folder.sealed_file(parts[0].head.version, parts[0].head.attempt)
        found: dict[Link, pa.Table] = {}
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)  # Python makes room for as much as is asked for
                for run in joined(parts):
                    file.seek(run[0].start)
                    found.update(self._cut(store, run, memoryview(file.read(min(size, span_bytes(run))))))
        except (OSError, CorruptStateError):
            return {}
        with self._counting:
            self.totals.local_parts += len(found)
        return found

    def _fetch(self, store: str, run: list[Link]) -> dict[Link, pa.Table]:
        return self._cut(store, run, memoryview(self._get(run)))

    def _cut(self, store: str, run: list[Link], view: memoryview) -> dict[Link, pa.Table]:
        """Return the parts of a run out of its bytes, each checked."""
        start = run[0].start
        return {link: self._decoded(store, view[link.start - start :][: link.length], link) for link in run}

    def _decoded(self, store: str, data: memoryview, link: Link) -> pa.Table:
        where, keys = _range_of(link), self.keys
        if keys is None:
            return part_codec.decode(data, link.checksum, where)
        place = paths.output_place(store, *link.head)
        return part_codec.decode(data, link.checksum, where, lambda data: keys.opened(data, place, where))

    def _get(self, run: list[Link]) -> bytes:
        data = self._objects.get(run[0].object, run[0].start, span_bytes(run))
        if data is None:
            raise missing(run[0].object)
        with self._counting:
            self.totals.fetched_parts += len(run)
            self.totals.fetched_bytes += len(data)
        return data

    def snapshot_range(self, address: Address, snapshot: Snapshot, start: int, length: int) -> bytes:
        """Return some bytes of a snapshot, unchecked. Raises ``CorruptStateError`` if the object is missing."""
        name = paths.snapshot(*address, snapshot.id)
        data = self._objects.get(name, start, length)
        if data is None:
            raise missing(name)
        self._count_snapshot(start, len(data))
        return data

    def copy_snapshot(
        self, address: Address, snapshot: Snapshot, start: int, length: int, write: Callable[[bytes], object]
    ) -> None:
        """Give some bytes of a snapshot to ``write``, in pieces, unchecked. Raises as ``snapshot_range``."""
        name = paths.snapshot(*address, snapshot.id)
        size = self._objects.copy_to(name, start, length, write)
        if size is None:
            raise missing(name)
        self._count_snapshot(start, size)

    def beginning(self, address: Address, snapshot: Snapshot, length: int) -> FetchedRange:
        """Return the first bytes of a snapshot as they come now, without keeping them. Raises as ``snapshot_range``."""
        checksum = part_codec.Checksum()
        self.copy_snapshot(address, snapshot, 0, length, checksum.update)
        return FetchedRange(0, length, checksum.intdigest())

    def _count_snapshot(self, start: int, size: int) -> None:
        with self._counting:
            self.totals.fetched_snapshots += start == 0
            self.totals.fetched_bytes += size
            self.totals.snapshot_bytes += size


def in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the result of ``work`` for each item, several at a time; raise what the first failed item raised.

    If addresses are limited there may be fewer threads, or none: then the caller's thread does all work.
    """
    threads = threads_within_limit(min(_CONCURRENT_GETS, len(items)))
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def joined(parts: list[Link], gap_bytes: int = _JOIN_GAP_BYTES) -> list[list[Link]]:
    """Return the parts of one object as runs that one ranged get can read without reading much else."""
    runs: list[list[Link]] = []
    for link in parts:
        if runs and link.start - _end(runs[-1]) <= gap_bytes:
            runs[-1].append(link)
        else:
            runs.append([link])
    return runs


def next_range(left: int, most: int | None = None) -> int:
    """Return how many of the bytes that are left of a snapshot to get at once: a range, with what else were a short
    rest.
    """
    most = most or RANGE_BYTES
    return left if left <= most + most // 2 else most


def ranges(length: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield where each range of a snapshot starts, and its bytes."""
    start = 0
    while start < length:
        size = next_range(length - start, most)
        yield start, size
        start += size


def range_of(total: int) -> int:
    """Return how long the ranges may be of snapshots that have so many bytes together: as long as there are enough of
    them to be got several at a time. A snapshot that is one range can be checked on its way.
    """
    return max(RANGE_BYTES, total // _CONCURRENT_GETS)


def span_bytes(run: list[Link]) -> int:
    """Return the bytes from the first part of a run to the end of its last."""
    return _end(run) - run[0].start


def _by_object(links: Iterable[Link]) -> Iterator[list[Link]]:
    wanted = sorted(set(links), key=lambda link: (link.head, link.start))
    return (list(parts) for _, parts in groupby(wanted, key=lambda link: link.head))


def _end(run: list[Link]) -> int:
    return run[-1].start + run[-1].length


def missing(name: str) -> CorruptStateError:
    """Return the error for an object that the log lists and the store does not have."""
    return CorruptStateError(
        "an object that the log lists is missing",
        remedy="restore it from a backup, or roll back to a version that does not need it (riffle rollback)",
        where=name,
        id="RIFFLE-0462",
    )


def _range_of(link: Link) -> str:
    return f"{link.object}[{link.start}:{link.start + link.length}]"


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
    epoch = head.epoch
    path = folder.new_fetched_file(head.version, head.attempt)
    name, kept, start = f"{path.parent.name}/{path.name}", {}, 0
    with path.open("wb") as file:
        for link, data in parts.items():
            kept[link] = StackedPart(name, start, link.length, link.checksum, link.rows, epoch)
            start += file.write(data)
    return kept


def fetched_snapshots(reader: Reader, wanted: Sequence[WantedSnapshot]) -> dict[Path, list[FetchedRange]]:
    """Fetch snapshots into their files, unchecked; return what came of each.

    Raises what ``Reader`` raises, and ``LocalDiskError`` if a file is gone by then, which nobody who uses the folder
    removes before a list has it.
    """
    most = range_of(sum(one.snapshot.length for one in wanted))
    come = in_parallel(lambda work: work(), [work for one in wanted for work in _ranges(reader, one, most)])
    found: dict[Path, list[FetchedRange]] = {one.path: [] for one in wanted}
    for path, came in come:
        found[path].append(came)
    return found


def _ranges(reader: Reader, one: WantedSnapshot, most: int) -> Iterator[Callable[[], tuple[Path, FetchedRange]]]:
    one.path.touch()
    for start, size in ranges(one.snapshot.length, most):
        yield partial(_fetch_range, reader, one, start, size)


def _fetch_range(reader: Reader, one: WantedSnapshot, start: int, size: int) -> tuple[Path, FetchedRange]:
    """Fetch a range into its file; return that and what came."""
    checksum, end = part_codec.Checksum(), start
    try:
        file = one.path.open("r+b")
    except FileNotFoundError as error:
        raise disk_refused("the file of a snapshot that is being fetched is gone", one.path) from error
    with file:
        file.seek(start)

        def write(piece: bytes) -> None:
            nonlocal end
            file.write(piece)
            checksum.update(piece)
            end += len(piece)

        reader.copy_snapshot((one.store, one.key_group), one.snapshot, start, size, write)
    return one.path, FetchedRange(start, end - start, checksum.intdigest())
