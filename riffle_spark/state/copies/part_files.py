"""Files that hold parts of copies, mapped and checked, and their rows, of either kind of store. Knows checksums and
what tells that a file was changed. Does not know heads.

Theory of operation. No byte of a file is used before its part's checksum was found right in this process, and again
after the file's signature has changed; what the process wrote itself it may have checked on its way there. So what a
disk, a crash or a person did to a file between two batches is found before the next one reads it; the copy is then
dropped and comes from the store. Files never change, so nobody waits for anybody, and a mapped file that was removed
lives on until it is let go.

The address space of a process may be limited, and each mapped file takes some of it. Then files that this task does not
need are closed, the least recently used first, until mapped files take at most half of the space that is left. If a
file still cannot be mapped, the copies of the slot are too large for the limit: ``NoRoomForCopies``.

A disk that forgets bytes by itself changes no signature. So parts are read anew in turn, beside the batches, and a
stack with a damaged one is dropped before it is needed: ``scrub``.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.state.copies.disk import DamagedCopy, damaged, disk_refused
from riffle_spark.state.copies.elements import element_runs, merged_elements
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.mapped_bytes import NoRoomForCopies, address_limit, mapping_budget
from riffle_spark.state.copies.run import Run, merged
from riffle_spark.state.copies.stack import PART, STACKS, Signature, Stack, StackedPart, Stacks, signature_of
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import due_times, stored_order
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["PartFiles", "mapped_bytes", "merged_rows", "place_of", "runs_of", "scrub", "whole_rows"]

_MAPPED_FROM_BYTES = 64 * 1024
"""A smaller file is read: a mapping costs more, and there may be no more than so many of them."""
_FILES_MOST = 4096
_HELD_BYTES_MOST = 1 << 30
_BESIDE_BYTES = 2048
"""What Python's objects for an open part take, about, beside its bytes: of small deltas it is most."""
_Opened = tuple[StoreSchema, tuple[Run, ...]]


@dataclass(slots=True)
class _File:
    signature: Signature
    data: pa.Buffer
    checked: dict[tuple[int, int], int] = field(default_factory=dict)
    opened: dict[int, _Opened] = field(default_factory=dict)


class PartFiles:
    """The files of one member's folder, as this task sees them: each is looked at once.

    What was mapped and checked is kept in this process, as long as files are the same.
    """

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self._folder = folder
        self._keys = keys
        self._seen: dict[str, _File] = {}

    def runs(self, part: StackedPart, schema: StoreSchema, key_group: int = 0) -> tuple[Run, ...]:
        """Return a part's rows, of this key-group, with today's columns. Raises ``DamagedCopy``, also for one that was
        written by a declaration that was given up: what that did not name is missing in it.
        """
        file = self._checked(part)
        kept = file.opened.get(part.start)
        if kept is not None and kept[0] is schema:
            return kept[1]
        if not schema.history.leads_from(part.declaration):
            raise damaged("a part of it was written by a declaration that was given up", self._folder / part.file)
        try:
            data = file.data.slice(part.start, part.length)
            if self._keys is not None:
                data = self._keys.opened(data, place_of(part.file, schema.store, key_group), part.file)
            table = part_codec.opened(data, part.file)
            found = runs_of(schema.without_later_names(table, part.epoch), schema)
        except (ConfigError, CorruptStateError) as error:
            raise damaged(error.problem, self._folder / part.file) from error
        file.opened[part.start] = schema, found
        path = f"{self._folder}/{part.file}"
        if self._keys is not None and _files.get(path) is file:
            _held.add(path, part.start, max(part.length, table.get_total_buffer_size()) + _BESIDE_BYTES)
        return found

    def data(self, part: StackedPart) -> pa.Buffer:
        """Return a part's bytes. Raises ``DamagedCopy``."""
        return self._checked(part).data.slice(part.start, part.length)

    def as_snapshot(self, part: StackedPart, store: str, key_group: int) -> part_codec.Data | None:
        """Return a part's decrypted bytes if they can be a snapshot of this key-group: their rows do not say which keys
        are deleted. Return ``None`` if they cannot. Raises ``DamagedCopy``.
        """
        data: part_codec.Data = self.data(part)
        try:
            if self._keys is not None:
                data = self._keys.opened(data, place_of(part.file, store, key_group), part.file)
            is_delta = part_codec.DELETED in part_codec.opened(data, part.file).column_names
        except (ConfigError, CorruptStateError) as error:
            raise damaged(error.problem, self._folder / part.file) from error
        return None if is_delta else data

    def is_whole(self, part: StackedPart) -> bool:
        """Tell whether a part is there and has its checksum."""
        try:
            self._checked(part)
        except DamagedCopy:
            return False
        return True

    def found_whole(self, part: StackedPart) -> None:
        """Note that this process has just written a part's bytes, and had found them whole. Raises ``LocalDiskError``
        if the disk does not have them.
        """
        try:
            file = self._seen[part.file] = self._looked(part.file)
            self._check_length(file, part)
        except DamagedCopy as error:
            raise disk_refused(f"what was just written is not there: {error.problem}", self._folder) from error
        file.checked[part.start, part.length] = part.checksum

    def doubt(self, parts: Iterable[StackedPart]) -> None:
        """Have parts checked once more when they are used next: what is made of them gets a checksum of its own, under
        which what a disk has forgotten meanwhile, without a sign, would be truth.
        """
        for part in parts:
            file = _files.get(f"{self._folder}/{part.file}")
            if file is not None:
                file.checked.pop((part.start, part.length), None)

    def forget(self, parts: Iterable[StackedPart]) -> None:
        """Let go of the rows of parts that were merged: those that were packed take memory while their file stays."""
        for part in parts:
            path = f"{self._folder}/{part.file}"
            file = _files.get(path)
            if file is not None:
                file.opened.pop(part.start, None)
                _held.remove(path, [part.start])

    def check(self, part: StackedPart) -> bool:
        """Read a part anew, whatever is known of it, and tell whether it has its checksum."""
        try:
            with (self._folder / part.file).open("rb") as file:
                if part.start + part.length > os.fstat(file.fileno()).st_size:
                    return False  # before there is room made for as many bytes
                file.seek(part.start)
                return part_codec.checksum(file.read(part.length)) == part.checksum
        except OSError:
            return False

    def let_go(self) -> None:
        """Let go of files that were removed, so that the disk gets their room back."""
        prefix = f"{self._folder}/"
        for path in list(_files):
            if path.startswith(prefix) and path[len(prefix) :] not in self._seen and signature_of(path) is None:
                _close(path)

    def _checked(self, part: StackedPart) -> _File:
        file = self._seen.get(part.file)
        if file is None:
            file = self._seen[part.file] = self._looked(part.file)
        at = part.start, part.length
        if file.checked.get(at) != part.checksum:
            self._check_length(file, part)
            if part_codec.checksum(memoryview(file.data)[part.start : part.start + part.length]) != part.checksum:
                raise damaged("its checksum is another", self._folder / part.file)
            file.checked[at] = part.checksum
        return file

    def _check_length(self, file: _File, part: StackedPart) -> None:
        if part.start + part.length > file.data.size:
            raise damaged("a file of it is truncated", self._folder / part.file)

    def _looked(self, name: str) -> _File:
        path = str(self._folder / name)
        signature = signature_of(path)
        kept = _files.get(path)
        if kept is not None and kept.signature == signature:
            _files[path] = _files.pop(path, kept)  # the newest, whatever the thread that merges does to it
            return kept
        _close(path)
        if signature is None:
            raise damaged("a file of it is gone", path)
        self._make_room(signature[1])
        try:
            file = _File(signature, _bytes_of(path, signature[1]))
        except OSError as error:
            _raise_if_no_room(error, signature[1])
            raise damaged(error, path) from error
        _files[path] = file
        while len(_files) > _FILES_MOST:
            _close(next(iter(_files)))
        return file

    def _make_room(self, size: int) -> None:
        """Close files that this task has not used if one more file of this size would exceed the copies' share of a
        limited address space.
        """
        if address_limit() is None or size < _MAPPED_FROM_BYTES:
            return
        mapped = mapped_bytes()
        budget = mapping_budget(mapped) or 0
        if mapped + size <= budget:
            return
        needed = {f"{self._folder}/{name}" for name in self._seen}
        for path in [path for path in list(_files) if path not in needed]:
            if mapped + size <= budget:
                return
            file = _files.get(path)
            mapped -= 0 if file is None else _mapped(file)
            _close(path)


_files: "OrderedDict[str, _File]" = OrderedDict()


def mapped_bytes() -> int:
    """Return how many bytes of local files this process has mapped."""
    return sum(map(_mapped, list(_files.values())))


def _mapped(file: _File) -> int:
    return file.data.size if file.data.size >= _MAPPED_FROM_BYTES else 0


def _raise_if_no_room(error: OSError, size: int) -> None:
    """Raise ``NoRoomForCopies`` if a file of this size could not be mapped because the address space is used up."""
    try:
        raise_if_memory(error)
    except MemoryError as refused:
        most, mapped = address_limit(), mapped_bytes()
        if most is None or size < _MAPPED_FROM_BYTES:
            raise
        raise NoRoomForCopies(
            f"a file of {size >> 20} MB and {mapped >> 20} MB of other copies do not fit into {most >> 20} MB"
        ) from refused


class _Held:
    """Parts that were decrypted, by path and start, the oldest first: they take memory, where others are mapped.

    The thread that merges comes by here too.
    """

    def __init__(self) -> None:
        self.sizes: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def add(self, path: str, start: int, size: int) -> None:
        """Note one more of so many bytes as it is opened, and have the oldest let go of what is too much in all."""
        with self._lock:
            self._bytes += size - self.sizes.pop((path, start), 0)
            self.sizes[path, start] = size
            budget = mapping_budget(self._bytes)
            most = _HELD_BYTES_MOST if budget is None else min(_HELD_BYTES_MOST, budget)
            while self._bytes > most and len(self.sizes) > 1:
                (oldest, at), freed = self.sizes.popitem(last=False)
                self._bytes -= freed
                file = _files.get(oldest)
                if file is not None:
                    file.opened.pop(at, None)

    def remove(self, path: str, starts: Iterable[int]) -> None:
        """Note that these are open no more."""
        with self._lock:
            self._bytes -= sum(self.sizes.pop((path, start), 0) for start in starts)


_held = _Held()


def _close(path: str) -> None:
    """Let go of a file, if it is open, and of what was decrypted of it."""
    file = _files.pop(path, None)
    if file is not None:
        _held.remove(path, list(file.opened))


def place_of(file: str, store: str, key_group: int) -> Place:
    """Return the place that a key-group's part in a local file is encrypted for. The file's name tells which delta,
    snapshot or merged part it is.
    """
    folder, _, name = file.partition("/")
    if folder == STACKS:
        _, unique, *snapshot_id = name.rpartition("/")[2].removesuffix(PART).split(".")
        if snapshot_id:
            return paths.snapshot_place(store, key_group, snapshot_id[0])
        return paths.merged_place(store, key_group, unique)
    version, _, attempt = name.partition(".")[0].partition("-")
    return paths.delta_place(store, key_group, int(version), attempt)


def _bytes_of(path: str, size: int) -> pa.Buffer:
    if size < _MAPPED_FROM_BYTES:
        return pa.py_buffer(Path(path).read_bytes())
    with pa.memory_map(path) as file:
        return file.read_buffer()


def runs_of(table: pa.Table, schema: StoreSchema) -> tuple[Run, ...]:
    """Return a part's rows with today's columns. Raises ``CorruptStateError`` for rows of other columns."""
    try:
        return schema.either(partial(_runs, table), partial(element_runs, table))
    except (pa.ArrowException, *UNREADABLE) as error:
        raise_if_memory(error)
        raise CorruptStateError(
            f"a part holds other columns than store {schema.store!r} has: {error!r}",
            remedy="restore the root from a backup, or roll back to a version that is intact (riffle rollback)",
            where=schema.store,
            id="RIFFLE-0390",
        ) from error


def merged_rows(runs: Sequence[Run], schema: StoreSchema, *, bottom: bool) -> pa.Table:
    """Return the newest rows of runs, the newest first, as a part has them.

    At the ``bottom`` of a stack there is nothing that a deleted row could hide: such rows are left out.
    """
    return schema.either(
        lambda columns: merged(runs, columns.key.names, columns.row_schema, bottom=bottom),
        lambda variables: merged_elements(variables, runs, bottom=bottom),
    )


def whole_rows(runs: Sequence[Run], schema: StoreSchema) -> pa.Table:
    """Return all that the runs of a copy hold, with the columns of ``part_schema``."""
    rows, wanted = merged_rows(runs, schema, bottom=True), schema.part_schema()
    return schema.either(
        lambda columns: cast_table(rows.select(columns.part_schema().names), wanted),
        lambda variables: variables.wide(rows),
    )


def _runs(table: pa.Table, schema: PlainColumns) -> tuple[Run, ...]:
    if part_codec.HASH not in table.column_names:
        table = schema.sealed(table)
    rows = part_codec.fitted(table, schema.row_schema)
    gone = table.column(part_codec.DELETED) if part_codec.DELETED in table.column_names else None
    if gone is not None and not gone.to_numpy().any():
        gone = None
    order = stored_order(table, schema.due)
    found, start = [], 0
    for hashes in filter(len, table.column(part_codec.HASH).chunks):
        batch = rows.slice(start, len(hashes)).combine_chunks().to_batches()[0]
        deleted = None if gone is None else gone.slice(start, len(hashes)).to_numpy()
        due = None if schema.due is None else due_times(batch.column(schema.due), deleted, order)
        found.append(Run(hashes.to_numpy(), batch, deleted, due))
        start += len(hashes)
    return tuple(found)


SCRUBBED_BYTES = 8 << 20
_next: dict[str, Address] = {}
"""By folder, from which key-group on to look next."""


def scrub(folder: Folder, size_bytes: int = SCRUBBED_BYTES) -> list[Address]:
    """Check about so many bytes of a member's stacks, one key-group in any case, from where the last look ended; return
    the key-groups that were dropped.
    """
    stacks = {store: folder.stacks(store) for store in folder.stores()}
    addresses = [(store, kg) for store, of_store in stacks.items() for kg in of_store.key_groups()]
    begin = _next.get(str(folder.path), ("", 0))
    turn = chain((one for one in addresses if one >= begin), (one for one in addresses if one < begin))
    files, dropped = PartFiles(folder.path), []
    for address in turn:
        if size_bytes <= 0:
            _next[str(folder.path)] = address
            break
        stack = _now(stacks[address[0]], address[1])
        if stack is not None:
            size_bytes -= stack.size_bytes
            # A slot that merges meanwhile takes parts away: that is no damage.
            if not all(map(files.check, stack.parts)) and _now(stacks[address[0]], address[1]) == stack:
                folder.drop(*address, stacks[address[0]])
                dropped.append(address)
    return dropped


def _now(stacks: Stacks, key_group: int) -> Stack | None:
    return stacks.read(key_group) if stacks.has(key_group) else None
