"""Reading parts of deltas and snapshots. Knows local sealed files and ranged gets. Does not know what parts mean.

One way to a part's bytes for owner and standby alike: the file this member sealed itself if it has one that is
intact, else the object store, adjacent ranges of one object joined into one get, several gets at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state import codec, paths
from riffle_spark.state.folder import Folder
from riffle_spark.state.manifest import Link, Snapshot
from riffle_spark.state.objects import ObjectStore

__all__ = ["Reader", "Totals"]

_CONCURRENT_GETS = 8
_JOIN_GAP_BYTES = 64 * 1024
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Totals:
    """What was read so far: parts from local files, parts and snapshots from the store, bytes from the store."""

    local_parts: int = 0
    fetched_parts: int = 0
    fetched_snapshots: int = 0
    fetched_bytes: int = 0


class Reader:
    """Reads parts and snapshots for one task."""

    def __init__(self, objects: ObjectStore, folder: Folder | None) -> None:
        self._objects = objects
        self._folder = folder
        self.totals = Totals()

    def links(self, links: Iterable[Link]) -> dict[Link, pa.Table]:
        """Return the table of each link's part, checked. Raises ``CorruptStateError`` naming a damaged or missing
        object.
        """
        wanted = sorted(set(links), key=lambda link: (link.head, link.start))
        found: dict[Link, pa.Table] = {}
        remote: list[list[Link]] = []
        for _, group in groupby(wanted, key=lambda link: link.head):
            parts = list(group)
            local = self._local(parts)
            found.update(local)
            remote += joined([link for link in parts if link not in local])
        fetched: list[dict[Link, pa.Table]] = self._in_parallel(self._fetch, remote)
        for tables in fetched:
            found.update(tables)
        return found

    def snapshots(self, wanted: Sequence[tuple[str, int, Snapshot]]) -> list[pa.Table]:
        """Return the tables of (store, key-group, snapshot), checked."""
        return self._in_parallel(self._fetch_snapshot, wanted)

    def _in_parallel(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(_CONCURRENT_GETS) as pool:
            return list(pool.map(work, items))

    def _local(self, parts: list[Link]) -> dict[Link, pa.Table]:
        if self._folder is None:
            return {}
        path = self._folder.sealed_file(parts[0].head.version, parts[0].head.attempt)
        found: dict[Link, pa.Table] = {}
        try:
            with path.open("rb") as file:
                for run in joined(parts):
                    file.seek(run[0].start)
                    found.update(_cut(run, file.read(_end(run) - run[0].start)))
        except (OSError, CorruptStateError):
            return {}
        self.totals.local_parts += len(found)
        return found

    def _fetch(self, run: list[Link]) -> dict[Link, pa.Table]:
        start = run[0].start
        data = self._objects.get(run[0].object, start, _end(run) - start)
        if data is None:
            raise missing(run[0].object)
        self.totals.fetched_parts += len(run)
        self.totals.fetched_bytes += len(data)
        return _cut(run, data)

    def _fetch_snapshot(self, wanted: tuple[str, int, Snapshot]) -> pa.Table:
        store, key_group, snapshot = wanted
        name = paths.snapshot(store, key_group, snapshot.id)
        data = self._objects.get(name)
        if data is None:
            raise missing(name)
        self.totals.fetched_snapshots += 1
        self.totals.fetched_bytes += len(data)
        return codec.decode(data, snapshot.checksum, name)


def joined(parts: list[Link]) -> list[list[Link]]:
    """Return the parts of one object as runs that one ranged get can read without reading much else."""
    runs: list[list[Link]] = []
    for link in parts:
        if runs and link.start - _end(runs[-1]) <= _JOIN_GAP_BYTES:
            runs[-1].append(link)
        else:
            runs.append([link])
    return runs


def _end(run: list[Link]) -> int:
    return run[-1].start + run[-1].length


def _cut(run: list[Link], data: bytes) -> dict[Link, pa.Table]:
    """Return the parts of a run out of its bytes, each checked."""
    view, start = memoryview(data), run[0].start
    return {link: _decode(view[link.start - start : link.start - start + link.length], link) for link in run}


def missing(name: str) -> CorruptStateError:
    """Return the error for an object that the log lists and the store does not have."""
    return CorruptStateError(
        "an object that the log lists is missing",
        remedy="restore it from a backup, or roll back to a version that does not need it (riffle rollback)",
        where=name,
    )


def _decode(data: memoryview, link: Link) -> pa.Table:
    return codec.decode(data, link.checksum, f"{link.object}[{link.start}:{link.start + link.length}]")
