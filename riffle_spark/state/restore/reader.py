"""Read parts of deltas, merged deltas and snapshots with ranged GETs.

Adjacent ranges of one object are joined into one GET, and several GETs run at once.

Fetched bytes are written to files as they arrive. Snapshots are fetched in ranges, several at a time, into their files.
Only the needed parts of deltas are stored. Parts of one object are stored in one file.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.disk import disk_refused_error
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.mapped_bytes import threads_within_limit
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, read_index
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.fetched_ranges import FetchedRange

RANGE_BYTES = 8 << 20
"""The smallest length of a snapshot's ranges."""
_CONCURRENT_GETS = 12
_JOIN_GAP_BYTES = 64 * 1024
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Totals:
    """The numbers of parts and bytes that were read. ``fetched_bytes`` include ``snapshot_bytes``."""

    local_parts: int = 0
    fetched_parts: int = 0
    fetched_snapshots: int = 0
    fetched_bytes: int = 0
    snapshot_bytes: int = 0


class Reader:
    """Reads parts and snapshots for one task. ``keys`` decrypt parts."""

    def __init__(self, objects: ObjectStore, keys: Keys | None = None) -> None:
        self._objects = objects
        self.keys = keys
        self.totals = Totals()
        self._counting = threading.Lock()

    def read_outputs(self, store: str, links: Iterable[Link]) -> dict[Link, pa.Table]:
        """Return a store's sealed output rows of each link.

        Raises ``CorruptStateError`` if an object is damaged or missing, ``ConfigError`` if its key is missing.
        """
        tables: dict[Link, pa.Table] = {}
        for run_tables in in_parallel(partial(self._read_run, store), self.group_into_runs(links)):
            tables.update(run_tables)
        return tables

    def group_into_runs(self, links: Iterable[Link], gap_bytes: int = _JOIN_GAP_BYTES) -> list[list[Link]]:
        """Group links into *runs* for ``fetch_run``, oldest first.

        A run has links of one object with small gaps, to be fetched with one GET.
        """
        return [run for parts in _group_by_object(links) for run in join_into_runs(parts, gap_bytes)]

    def fetch_run(self, run: list[Link]) -> dict[Link, memoryview | CorruptStateError]:
        """Fetch a run with one GET. Return the bytes of each link, or its error.

        Links in a block have the bytes of the whole block, for ``open_links``. Damaged bytes are fetched once more,
        because they may have been damaged in transit. Raises ``CorruptStateError`` if the object is missing.
        """
        parts = self._fetch_run_once(run)
        if any(isinstance(data, CorruptStateError) for data in parts.values()):
            return self._fetch_run_once(run)
        return parts

    def _fetch_run_once(self, run: list[Link]) -> dict[Link, memoryview | CorruptStateError]:
        """Return the bytes of each link of a run, or its error."""
        view = memoryview(self._get_run(run))
        parts: dict[Link, memoryview | CorruptStateError] = {}
        if run[0].block is not None:
            error = _find_damage(view, run[0])
            return dict.fromkeys(run, view if error is None else error)
        for link in run:
            data = view[link.start - run[0].start :][: link.length]
            is_intact = part_codec.checksum(data) == link.checksum
            parts[link] = data if is_intact else part_codec.altered_error(name_range(link))
        return parts

    def open_links(
        self, store: str, fetched: Mapping[Link, memoryview], key_groups: Mapping[Link, int]
    ) -> dict[Link, pa.Table]:
        """Return the rows of a store's links, with hashes and due order, from the bytes of ``fetch_run``.

        Raises ``CorruptStateError`` for rows that cannot be decoded, ``RefusedError`` if a key is missing.
        """
        first = next(iter(fetched), None)
        if first is None or first.block is None:
            return {
                link: part_codec.open_part(
                    self.decrypt(data, link.place(store, key_groups[link]), name_range(link)), name_range(link)
                )
                for link, data in fetched.items()
            }
        where = first.object
        try:
            rows, index = read_index(pa.py_buffer(fetched[first]))
            ranges = [index.ranges[key_groups[link]] for link in fetched]
        except (ValueError, KeyError) as error:
            raise part_codec.altered_error(where) from error
        table = part_codec.open_block(self.decrypt(rows, first.place(store, first.start), where), where)
        return {link: table.slice(span.start, span.rows) for link, span in zip(fetched, ranges, strict=True)}

    def decrypt(self, data: part_codec.Data, place: Place, where: str) -> part_codec.Data:
        """Return the decrypted bytes of a part, or ``data`` if there are no keys."""
        return data if self.keys is None else self.keys.decrypt(data, place, where)

    def _read_run(self, store: str, run: list[Link]) -> dict[Link, pa.Table]:
        """Fetch the output rows of each link of a run with one GET, and with a second one if the bytes are damaged."""
        data = self._get_run(run)
        try:
            return self._decode_run(store, run, data)
        except CorruptStateError:  # the bytes may have been damaged in transit
            return self._decode_run(store, run, self._get_run(run))

    def _decode_run(self, store: str, run: list[Link], data: bytes) -> dict[Link, pa.Table]:
        """Return the output rows of each link of a run in the fetched bytes. Raises like ``_decode_output``."""
        view = memoryview(data)
        start = run[0].start
        return {link: self._decode_output(store, view[link.start - start :][: link.length], link) for link in run}

    def _decode_output(self, store: str, data: memoryview, link: Link) -> pa.Table:
        """Return the output rows in the bytes of a link, after decryption.

        Raises ``CorruptStateError`` if they are damaged.
        """
        where = name_range(link)
        place = paths.output_place(store, *link.head)
        return part_codec.decode(data, link.checksum, where, lambda data: self.decrypt(data, place, where))

    def _get_run(self, run: list[Link]) -> bytes:
        """Return the bytes from the start to the end of a run.

        Raises ``CorruptStateError`` if the object is missing.
        """
        data = self._objects.get(run[0].object, run[0].byte_range[0], span_bytes(run))
        if data is None:
            raise missing_object_error(run[0].object)
        with self._counting:
            self.totals.fetched_parts += len(run)
            self.totals.fetched_bytes += len(data)
        return data

    def fetch_snapshot_range(self, address: Address, snapshot: Snapshot, start: int, length: int) -> bytes:
        """Return a byte range of a snapshot, unchecked. Raises ``CorruptStateError`` if the object is missing."""
        name = paths.snapshot_name(*address, snapshot.id)
        data = self._objects.get(name, start, length)
        if data is None:
            raise missing_object_error(name)
        self._count_snapshot(start, len(data))
        return data

    def copy_snapshot(
        self, address: Address, snapshot: Snapshot, start: int, length: int, write: Callable[[bytes], object]
    ) -> None:
        """Pass a range of a snapshot to ``write``, in pieces, unchecked. Raises like ``fetch_snapshot_range``."""
        name = paths.snapshot_name(*address, snapshot.id)
        size = self._objects.copy_to(name, start, length, write)
        if size is None:
            raise missing_object_error(name)
        self._count_snapshot(start, size)

    def checksum_snapshot_start(self, address: Address, snapshot: Snapshot, length: int) -> FetchedRange:
        """Fetch the first ``length`` bytes of a snapshot, and return only their checksum.

        Raises like ``fetch_snapshot_range``.
        """
        checksum = part_codec.Checksum()
        self.copy_snapshot(address, snapshot, 0, length, checksum.update)
        return FetchedRange(0, length, checksum.intdigest())

    def _count_snapshot(self, start: int, size: int) -> None:
        """Add ``size`` fetched bytes of a snapshot to the totals. The range at 0 also counts the snapshot."""
        with self._counting:
            self.totals.fetched_snapshots += start == 0
            self.totals.fetched_bytes += size
            self.totals.snapshot_bytes += size


def in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Return the result of ``work`` for each item, several at a time. Raise the error of the first failed item.

    If the address space is limited, there are fewer threads, or the caller's thread does all work.
    """
    threads = threads_within_limit(min(_CONCURRENT_GETS, len(items)))
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def join_into_runs(parts: list[Link], gap_bytes: int = _JOIN_GAP_BYTES) -> list[list[Link]]:
    """Group links of one object into runs with gaps of at most ``gap_bytes``. Each run is one ranged GET.

    All links in a block are one run.
    """
    runs: list[list[Link]] = []
    for link in parts:
        is_near = bool(runs) and (link.block is not None or link.start - _end(runs[-1]) <= gap_bytes)
        if is_near and runs[-1][0].block == link.block:
            runs[-1].append(link)
        else:
            runs.append([link])
    return runs


def next_range_bytes(remaining: int, range_bytes: int | None = None) -> int:
    """Return the length of a snapshot's next range if ``remaining`` bytes are left.

    The last range may be up to half longer than the others.
    """
    range_bytes = range_bytes or RANGE_BYTES
    return remaining if remaining <= range_bytes + range_bytes // 2 else range_bytes


def split_into_ranges(length: int, range_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the start and length of each range of a snapshot of ``length`` bytes."""
    start = 0
    while start < length:
        size = next_range_bytes(length - start, range_bytes)
        yield start, size
        start += size


def choose_range_bytes(total: int) -> int:
    """Return the length of ranges for fetching snapshots of ``total`` bytes.

    Ranges are as long as possible with ``_CONCURRENT_GETS`` GETs at once. A snapshot of one range is checked while it
    arrives, so long ranges save work.
    """
    return max(RANGE_BYTES, total // _CONCURRENT_GETS)


def span_bytes(run: list[Link]) -> int:
    """Return the number of bytes from the first part of a run to the end of the last, or of the run's block."""
    return run[0].block.size if run[0].block is not None else _end(run) - run[0].start


def _group_by_object(links: Iterable[Link]) -> Iterator[list[Link]]:
    """Return the distinct links of each object, in order, oldest object first."""
    ordered = sorted(set(links), key=lambda link: (link.source, link.block is None, link.start))
    return (list(parts) for _, parts in groupby(ordered, key=lambda link: link.source))


def _end(run: list[Link]) -> int:
    """Return the position in the object at which a run ends."""
    return run[-1].start + run[-1].length


def missing_object_error(name: str) -> CorruptStateError:
    """Return the error for an object that the log lists but the store does not have."""
    # Cause: A person or a lifecycle rule deleted the object.
    return CorruptStateError(
        "An object that the log lists is missing.",
        remedy="Restore it from a backup, or roll back to a batch that does not need it (riffle rollback).",
        where=name,
        id="RIFFLE-0462",
    )


def name_range(link: Link) -> str:
    """Return the name and byte range of a link for errors. For a link in a block it is the range of the block."""
    start, end = link.byte_range
    return f"{link.object}[{start}:{end}]"


def _find_damage(data: memoryview, link: Link) -> CorruptStateError | None:
    """Return the error for the bytes of a link's block, ``None`` if they have its checksum."""
    with suppress(ValueError):
        if checksum_of_block(data) == (link.checksum, link.checksum):
            return None
    return part_codec.altered_error(name_range(link))


class SnapshotFile(NamedTuple):
    """A snapshot to fetch, and its new file."""

    store: str
    key_group: int
    snapshot: Snapshot
    path: Path


def group_into_bounded_runs(reader: Reader, links: Iterable[Link]) -> Iterator[list[Link]]:
    """Yield the links as runs, one per GET, of at most ``RANGE_BYTES`` unless one link is longer."""
    for run in reader.group_into_runs(links):
        if run[0].block is not None:
            yield run
            continue
        first = 0
        for index in range(1, len(run)):
            if span_bytes(run[first : index + 1]) > RANGE_BYTES:
                yield run[first:index]
                first = index
        yield run[first:]


def fetch_links(reader: Reader, folder: Folder, runs: Iterable[list[Link]]) -> dict[Link, StackedPart]:
    """Fetch runs of links into files of a member's folder.

    Return the local part of each link. Raises the errors of ``Reader``.
    """

    def fetch(run: list[Link]) -> dict[Link, StackedPart]:
        intact: dict[Link, memoryview] = {}
        for link, data in reader.fetch_run(run).items():
            if isinstance(data, CorruptStateError):
                raise data
            intact[link] = data
        return write_parts(folder, intact)

    fetched: dict[Link, StackedPart] = {}
    for parts in in_parallel(fetch, list(runs)):
        fetched.update(parts)
    return fetched


def write_parts(folder: Folder, parts: Mapping[Link, memoryview]) -> dict[Link, StackedPart]:
    """Write intact parts of one object into a new file of a member's folder. Return the local part of each link."""
    if not parts:
        return {}
    first = next(iter(parts))
    is_block = first.block is not None
    path = folder.new_fetched_path(*first.source, is_merged=first.merged is not None, is_block=is_block)
    name = f"{path.parent.name}/{path.name}"
    if is_block:
        path.write_bytes(parts[first])
        return {link: StackedPart(name, 0, link.length, link.checksum, link.rows, link.head.epoch) for link in parts}
    written: dict[Link, StackedPart] = {}
    start = 0
    with path.open("wb") as file:
        for link, data in parts.items():
            written[link] = StackedPart(name, start, link.length, link.checksum, link.rows, link.head.epoch)
            start += file.write(data)
    return written


def fetch_snapshots(reader: Reader, files: Sequence[SnapshotFile]) -> dict[Path, list[FetchedRange]]:
    """Fetch snapshots into their files, unchecked. Return the ranges of each file as they arrived.

    Raises the errors of ``Reader``, and ``LocalDiskError`` if a file disappears, because no process of riffle_spark
    removes it.
    """
    range_bytes = choose_range_bytes(sum(file.snapshot.length for file in files))
    work = [fetch for file in files for fetch in _make_range_fetches(reader, file, range_bytes)]
    ranges_by_path: dict[Path, list[FetchedRange]] = {file.path: [] for file in files}
    for path, fetched in in_parallel(lambda fetch: fetch(), work):
        ranges_by_path[path].append(fetched)
    return ranges_by_path


def _make_range_fetches(
    reader: Reader, file: SnapshotFile, range_bytes: int
) -> Iterator[Callable[[], tuple[Path, FetchedRange]]]:
    """Create the file, and yield a function per range that fetches it into the file."""
    file.path.touch()
    for start, size in split_into_ranges(file.snapshot.length, range_bytes):
        yield partial(_fetch_range, reader, file, start, size)


def _fetch_range(reader: Reader, target: SnapshotFile, start: int, size: int) -> tuple[Path, FetchedRange]:
    """Fetch a range into its file. Return the file's path and the range as it arrived."""
    checksum = part_codec.Checksum()
    end = start
    try:
        file = target.path.open("r+b")
    except FileNotFoundError as error:
        raise disk_refused_error("The file of a snapshot disappeared while it was fetched.", target.path) from error
    with file:
        file.seek(start)

        def write(piece: bytes) -> None:
            nonlocal end
            file.write(piece)
            checksum.update(piece)
            end += len(piece)

        reader.copy_snapshot((target.store, target.key_group), target.snapshot, start, size, write)
    return target.path, FetchedRange(start, end - start, checksum.intdigest())
