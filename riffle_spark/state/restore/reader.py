"""Reading parts of deltas and snapshots. Knows local sealed files and ranged gets. Does not know what parts mean.

One way to a part's bytes for owner and standby alike: the file this member sealed itself if it has one that is
intact, else the object store, adjacent ranges of one object joined into one get, several gets at once.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["RANGE_BYTES", "Reader", "Totals", "in_parallel", "next_range", "range_of", "ranges", "span_bytes"]

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
    """Reads parts and snapshots for one task."""

    def __init__(self, objects: ObjectStore, folder: Folder | None) -> None:
        self._objects = objects
        self._folder = folder
        self.totals = Totals()
        self._counting = threading.Lock()

    def links(self, links: Iterable[Link]) -> dict[Link, pa.Table]:
        """Return the table of each link's part, checked. Raises ``CorruptStateError`` naming a damaged or missing
        object.
        """
        found: dict[Link, pa.Table] = {}
        remote: list[list[Link]] = []
        for parts in _by_object(links):
            local = self._local(parts)
            found.update(local)
            remote += joined([link for link in parts if link not in local])
        fetched: list[dict[Link, pa.Table]] = in_parallel(self._fetch, remote)
        for tables in fetched:
            found.update(tables)
        return found

    def runs(self, links: Iterable[Link], gap_bytes: int = _JOIN_GAP_BYTES) -> list[list[Link]]:
        """Return the links as runs for ``read``, the oldest first: what lies at most so far apart in one object."""
        return [run for parts in _by_object(links) for run in joined(parts, gap_bytes)]

    def is_local(self, run: list[Link]) -> bool:
        """Tell whether this member sealed the run's object itself and still has the file."""
        return self._folder is not None and self._folder.sealed_file(*run[0].head).exists()

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

    def read(self, run: list[Link]) -> dict[Link, pa.Table | CorruptStateError]:
        """Return the table of each of a run's parts, with one get at most, or what is wrong with it.

        Raises ``CorruptStateError`` if the object is missing.
        """
        found: dict[Link, pa.Table | CorruptStateError] = {**self._local(run)}
        if not found:
            view = memoryview(self._get(run))
            for link in run:
                try:
                    found |= _cut([link], view[link.start - run[0].start :])
                except CorruptStateError as error:
                    found[link] = error
        return found

    def snapshot(self, address: Address, snapshot: Snapshot) -> pa.Table:
        """Return the table of a snapshot, checked. Raises ``CorruptStateError`` if the object is damaged or missing."""
        data = self.snapshot_range(address, snapshot, 0, snapshot.length)
        return part_codec.decode(data, snapshot.checksum, paths.snapshot(*address, snapshot.id))

    def _local(self, parts: list[Link]) -> dict[Link, pa.Table]:
        if self._folder is None:
            return {}
        path = self._folder.sealed_file(parts[0].head.version, parts[0].head.attempt)
        found: dict[Link, pa.Table] = {}
        try:
            with path.open("rb") as file:
                for run in joined(parts):
                    file.seek(run[0].start)
                    found.update(_cut(run, memoryview(file.read(span_bytes(run)))))
        except (OSError, CorruptStateError):
            return {}
        with self._counting:
            self.totals.local_parts += len(found)
        return found

    def _fetch(self, run: list[Link]) -> dict[Link, pa.Table]:
        return _cut(run, memoryview(self._get(run)))

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

    def _count_snapshot(self, start: int, size: int) -> None:
        with self._counting:
            self.totals.fetched_snapshots += start == 0
            self.totals.fetched_bytes += size
            self.totals.snapshot_bytes += size


def in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return what ``work`` makes of each item, several at a time; raises what the first to fail raised."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_CONCURRENT_GETS) as pool:
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


def _cut(run: list[Link], view: memoryview) -> dict[Link, pa.Table]:
    """Return the parts of a run out of its bytes, each checked."""
    start = run[0].start
    return {link: _decode(view[link.start - start : link.start - start + link.length], link) for link in run}


def missing(name: str) -> CorruptStateError:
    """Return the error for an object that the log lists and the store does not have."""
    return CorruptStateError(
        "an object that the log lists is missing",
        remedy="restore it from a backup, or roll back to a version that does not need it (riffle rollback)",
        where=name,
    )


def _decode(data: memoryview, link: Link) -> pa.Table:
    return part_codec.decode(data, link.checksum, _range_of(link))


def _range_of(link: Link) -> str:
    return f"{link.object}[{link.start}:{link.start + link.length}]"
