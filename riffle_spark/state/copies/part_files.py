"""Local files that hold parts of copies: mapping, verification, and the rows in them.

Theory of operation.

1. No byte of a file is used before this process has verified its part's checksum, and again after the file's signature
   has changed. The process may verify its own files while it writes them. So damage by a disk, a crash or a person
   is found before the next read. The copy is then dropped and restored from the store.
2. Files never change, so no reader waits. A mapped file that was deleted remains readable until it is unmapped.
3. The address space of a process may be limited, and each mapped file takes some of it. Then files that this task does
   not need are closed, least recently used first, until mapped files take at most half of the free space. If a file
   still cannot be mapped, the copies of the slot are too large for the limit: ``NoRoomForCopies``.
4. A disk that loses bytes changes no signature. So ``scrub`` reads parts again, one after the other, during the batches
   and drops a stack with a damaged part before it is needed.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.state.copies.disk import DamagedCopy, damaged_copy_error, disk_refused_error
from riffle_spark.state.copies.elements import element_runs, merge_elements
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.mapped_bytes import NoRoomForCopies, address_limit, mapping_budget
from riffle_spark.state.copies.run import Run, merge_runs
from riffle_spark.state.copies.stack import PART, STACKS, Signature, Stack, StackedPart, signature_of
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import compute_due_times, read_stored_order
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = [
    "PartFiles",
    "encryption_place",
    "mapped_bytes",
    "merge_rows",
    "read_all_rows",
    "scrub_stacks",
    "split_into_runs",
]

_MAPPED_FROM_BYTES = 64 * 1024
"""Smaller files are read: mapping them costs more, and a process may have only so many mappings."""
_FILES_MAX = 4096
_DECRYPTED_BYTES_MAX = 1 << 30
_OBJECT_BYTES = 2048
"""The approximate size of the Python objects of an open part. Small deltas consist mostly of them."""
_OpenRows = tuple[StoreSchema, tuple[Run, ...]]


@dataclass(slots=True)
class _File:
    """An open file: its signature when it was opened, its bytes, the checksums of verified parts, and the rows of
    opened parts.
    """

    signature: Signature
    data: pa.Buffer
    verified: dict[tuple[int, int], int] = field(default_factory=dict)
    """The checksums of verified parts, by (start, length)."""
    rows: dict[int, _OpenRows] = field(default_factory=dict)


class PartFiles:
    """The files of one member's folder, as one task sees them. The task reads each file's signature once.

    Mapped and verified files are cached in this process until their signature changes.
    """

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self._folder = folder
        self._keys = keys
        self._seen: dict[str, _File] = {}

    def read_runs(self, part: StackedPart, schema: StoreSchema, key_group: int = 0) -> tuple[Run, ...]:
        """Return a part's rows as runs with the current schema's columns.

        Raises ``DamagedCopy``, also if the part was written under a declaration that was rolled back, because the part
        lacks the columns that this declaration did not name.
        """
        file = self._open_verified(part)
        cached = file.rows.get(part.start)
        if cached is not None and cached[0] is schema:
            return cached[1]
        if not schema.history.includes(part.declaration):
            raise damaged_copy_error(
                "A part was written under a declaration that was rolled back.", self._folder / part.file
            )
        try:
            data = self._decrypt(file.data.slice(part.start, part.length), part, schema.store, key_group)
            table = part_codec.open_part(data, part.file)
            runs = split_into_runs(schema.without_later_names(table, part.epoch), schema)
        except (ConfigError, CorruptStateError) as error:
            raise damaged_copy_error(error.problem, self._folder / part.file) from error
        file.rows[part.start] = schema, runs
        path = f"{self._folder}/{part.file}"
        if self._keys is not None and _files.get(path) is file:
            _decrypted.add(path, part.start, max(part.length, table.get_total_buffer_size()) + _OBJECT_BYTES)
        return runs

    def _decrypt(self, data: part_codec.Data, part: StackedPart, store: str, key_group: int) -> part_codec.Data:
        """Return the decrypted bytes of a part, or ``data`` if there are no keys."""
        if self._keys is None:
            return data
        return self._keys.decrypt(data, encryption_place(part.file, store, key_group), part.file)

    def data(self, part: StackedPart) -> pa.Buffer:
        """Return a part's stored bytes, with verified checksum. Raises ``DamagedCopy``."""
        return self._open_verified(part).data.slice(part.start, part.length)

    def read_as_snapshot(self, part: StackedPart, store: str, key_group: int) -> part_codec.Data | None:
        """Return a part's decrypted bytes, or ``None`` if it marks deleted keys and so cannot be a snapshot.

        Raises ``DamagedCopy``.
        """
        try:
            data = self._decrypt(self.data(part), part, store, key_group)
            is_delta = part_codec.DELETED in part_codec.open_part(data, part.file).column_names
        except (ConfigError, CorruptStateError) as error:
            raise damaged_copy_error(error.problem, self._folder / part.file) from error
        return None if is_delta else data

    def is_intact(self, part: StackedPart) -> bool:
        """Return whether a part exists and has its checksum."""
        try:
            self._open_verified(part)
        except DamagedCopy:
            return False
        return True

    def mark_verified(self, part: StackedPart) -> None:
        """Record that this process has verified a part's bytes while writing them. Raises ``LocalDiskError`` if the
        file is not there.
        """
        try:
            file = self._seen[part.file] = self._open_file(part.file)
            self._check_length(file, part)
        except DamagedCopy as error:
            raise disk_refused_error(
                f"A file that was just written is not on the disk: {error.problem}", self._folder
            ) from error
        file.verified[part.start, part.length] = part.checksum

    def forget_verification(self, parts: Iterable[StackedPart]) -> None:
        """Require that these parts are verified again before their next use.

        Call this before merging them: the merged part gets a checksum of its own, and would hide bytes that the disk
        has lost meanwhile.
        """
        for part in parts:
            file = _files.get(f"{self._folder}/{part.file}")
            if file is not None:
                file.verified.pop((part.start, part.length), None)

    def release_rows(self, parts: Iterable[StackedPart]) -> None:
        """Release the cached rows of merged parts, because unpacked and decrypted rows take memory."""
        for part in parts:
            path = f"{self._folder}/{part.file}"
            file = _files.get(path)
            if file is not None:
                file.rows.pop(part.start, None)
                _decrypted.remove(path, [part.start])

    def verify(self, part: StackedPart) -> bool:
        """Read a part from the disk again. Return whether it has its checksum."""
        try:
            with (self._folder / part.file).open("rb") as file:
                if part.start + part.length > os.fstat(file.fileno()).st_size:
                    return False  # do not allocate memory for a wrong length
                file.seek(part.start)
                return part_codec.checksum(file.read(part.length)) == part.checksum
        except OSError:
            return False

    def close_removed(self) -> None:
        """Close files that were deleted, so that the disk frees their blocks."""
        prefix = f"{self._folder}/"
        for path in list(_files):
            if path.startswith(prefix) and path[len(prefix) :] not in self._seen and signature_of(path) is None:
                _close_file(path)

    def _open_verified(self, part: StackedPart) -> _File:
        """Return the open file of a part after verifying the part's checksum, once.

        Raises ``DamagedCopy`` if it differs.
        """
        file = self._seen.get(part.file)
        if file is None:
            file = self._seen[part.file] = self._open_file(part.file)
        span = (part.start, part.length)
        if file.verified.get(span) != part.checksum:
            self._check_length(file, part)
            if part_codec.checksum(memoryview(file.data)[part.start : part.start + part.length]) != part.checksum:
                raise damaged_copy_error("Its checksum is wrong.", self._folder / part.file)
            file.verified[span] = part.checksum
        return file

    def _check_length(self, file: _File, part: StackedPart) -> None:
        """Raise ``DamagedCopy`` if a file ends before the part does."""
        if part.start + part.length > file.data.size:
            raise damaged_copy_error("A file is truncated.", self._folder / part.file)

    def _open_file(self, name: str) -> _File:
        """Return an open file, from the cache if it has not changed. Raises ``DamagedCopy`` if it cannot be read."""
        path = str(self._folder / name)
        signature = signature_of(path)
        cached = _files.get(path)
        if cached is not None and cached.signature == signature:
            _files[path] = _files.pop(path, cached)  # moved to the end, even if the merging thread has closed it
            return cached
        _close_file(path)
        if signature is None:
            raise damaged_copy_error("A file is missing.", path)
        self._make_room(signature[1])
        try:
            file = _File(signature, _read_or_map(path, signature[1]))
        except OSError as error:
            _raise_if_no_room(error, signature[1])
            raise damaged_copy_error(error, path) from error
        _files[path] = file
        while len(_files) > _FILES_MAX:
            _close_file(next(iter(_files)))
        return file

    def _make_room(self, size: int) -> None:
        """Close files that this task has not used until a file of this size fits into the copies' share of a limited
        address space.
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
            mapped -= 0 if file is None else _mapped_size(file)
            _close_file(path)


_files: "OrderedDict[str, _File]" = OrderedDict()


def mapped_bytes() -> int:
    """Return how many bytes of local files this process has mapped."""
    return sum(map(_mapped_size, list(_files.values())))


def _mapped_size(file: _File) -> int:
    """Return how many bytes of an open file are mapped; small files are read instead."""
    return file.data.size if file.data.size >= _MAPPED_FROM_BYTES else 0


def _raise_if_no_room(error: OSError, size: int) -> None:
    """Raise ``NoRoomForCopies`` if a file of this size could not be mapped because the address space is used up."""
    try:
        raise_if_memory(error)
    except MemoryError as refused:
        limit = address_limit()
        if limit is None or size < _MAPPED_FROM_BYTES:
            raise
        raise NoRoomForCopies(
            f"A file of {size >> 20} MB and {mapped_bytes() >> 20} MB of other copies do not fit into {limit >> 20} MB."
        ) from refused


class _DecryptedRows:
    """The sizes of decrypted parts by (path, start), oldest first. Other parts are mapped and take no memory.

    Slots and the merging thread share it.
    """

    def __init__(self) -> None:
        self.sizes: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def add(self, path: str, start: int, size: int) -> None:
        """Add an opened part, and release the oldest parts while all together are too large."""
        with self._lock:
            self._bytes += size - self.sizes.pop((path, start), 0)
            self.sizes[path, start] = size
            budget = mapping_budget(self._bytes)
            limit = _DECRYPTED_BYTES_MAX if budget is None else min(_DECRYPTED_BYTES_MAX, budget)
            while self._bytes > limit and len(self.sizes) > 1:
                (oldest_path, oldest_start), freed = self.sizes.popitem(last=False)
                self._bytes -= freed
                file = _files.get(oldest_path)
                if file is not None:
                    file.rows.pop(oldest_start, None)

    def remove(self, path: str, starts: Iterable[int]) -> None:
        """Forget the decrypted parts of a file that start at these positions."""
        with self._lock:
            self._bytes -= sum(self.sizes.pop((path, start), 0) for start in starts)


_decrypted = _DecryptedRows()


def _close_file(path: str) -> None:
    """Close the cached file at a path, if it is open, and release its decrypted parts."""
    file = _files.pop(path, None)
    if file is not None:
        _decrypted.remove(path, list(file.rows))


def encryption_place(file: str, store: str, key_group: int) -> Place:
    """Return the place that a key-group's part is encrypted for.

    ``file`` is the name of its local file, as in ``StackedPart.file``.
    """
    folder, _, name = file.partition("/")
    if folder == STACKS:
        _, unique, *snapshot_id = name.rpartition("/")[2].removesuffix(PART).split(".")
        if snapshot_id:
            return paths.snapshot_place(store, key_group, snapshot_id[0])
        return paths.merged_place(store, key_group, unique)
    version, _, attempt = name.partition(".")[0].partition("-")
    return paths.delta_place(store, key_group, int(version), attempt)


def _read_or_map(path: str, size: int) -> pa.Buffer:
    """Return the bytes of a file, mapped if it is large."""
    if size < _MAPPED_FROM_BYTES:
        return pa.py_buffer(Path(path).read_bytes())
    with pa.memory_map(path) as file:
        return file.read_buffer()


def split_into_runs(table: pa.Table, schema: StoreSchema) -> tuple[Run, ...]:
    """Return a part's rows as runs with the current schema's columns.

    Raises ``CorruptStateError`` if they do not fit.
    """
    try:
        return schema.either(partial(_split_plain_runs, table), partial(element_runs, table))
    except (pa.ArrowException, *UNREADABLE) as error:
        raise_if_memory(error)
        # Cause: The part is undamaged, but has other columns than the log's schema of the store. Another version of
        # riffle_spark wrote it, or objects of two roots were mixed.
        raise CorruptStateError(
            f"The columns of a part do not fit store {schema.store!r}: {error!r}",
            remedy="Use the version of riffle_spark that last ran the query. If that does not help, restore the root "
            "from a backup, or roll back to an older batch (riffle rollback).",
            where=schema.store,
            id="RIFFLE-0390",
        ) from error


def merge_rows(runs: Sequence[Run], schema: StoreSchema, *, bottom: bool) -> pa.Table:
    """Return the newest rows of runs, newest run first, with the columns of a part.

    At the ``bottom`` of a stack no older rows exist, so deleted rows are left out.
    """
    return schema.either(
        lambda columns: merge_runs(runs, columns.key.names, columns.row_schema, bottom=bottom),
        lambda variables: merge_elements(variables, runs, bottom=bottom),
    )


def read_all_rows(runs: Sequence[Run], schema: StoreSchema) -> pa.Table:
    """Return the current rows of a copy from its runs, newest run first, with the columns of ``part_schema``.

    Replaced and deleted rows are left out.
    """
    rows = merge_rows(runs, schema, bottom=True)
    return schema.either(
        lambda columns: cast_table(rows.select(columns.part_schema().names), schema.part_schema()),
        lambda variables: variables.to_wide_rows(rows),
    )


def _split_plain_runs(table: pa.Table, schema: PlainColumns) -> tuple[Run, ...]:
    """Return the rows of a part with one row per key as runs, one per chunk."""
    if part_codec.HASH not in table.column_names:
        table = schema.sealed(table)
    rows = part_codec.fit_columns(table, schema.row_schema)
    deleted_column = table.column(part_codec.DELETED) if part_codec.DELETED in table.column_names else None
    if deleted_column is not None and not deleted_column.to_numpy().any():
        deleted_column = None
    order = read_stored_order(table, schema.due)
    runs: list[Run] = []
    start = 0
    for hashes in filter(len, table.column(part_codec.HASH).chunks):
        batch = rows.slice(start, len(hashes)).combine_chunks().to_batches()[0]
        deleted = None if deleted_column is None else deleted_column.slice(start, len(hashes)).to_numpy()
        due = None if schema.due is None else compute_due_times(batch.column(schema.due), deleted, order)
        runs.append(Run(hashes.to_numpy(), batch, deleted, due))
        start += len(hashes)
    return tuple(runs)


_SCRUB_BYTES = 8 << 20
_next_address: dict[str, Address] = {}
"""By folder, the key-group at which the next scrub starts."""


def scrub_stacks(folder: Folder, size_bytes: int = _SCRUB_BYTES) -> list[Address]:
    """Verify about ``size_bytes`` of a member's copies, but at least one key-group, starting after the last call's.

    Return the key-groups whose copies were damaged and dropped.
    """
    stacks = {store: folder.stacks(store) for store in folder.stores()}
    addresses = [(store, key_group) for store in stacks for key_group in stacks[store].key_groups()]
    start = _next_address.get(str(folder.path), ("", 0))
    files = PartFiles(folder.path)
    dropped: list[Address] = []
    for address in sorted(addresses, key=lambda address: (address < start, address)):
        if size_bytes <= 0:
            _next_address[str(folder.path)] = address
            break
        store, key_group = address
        stack = _read_current(stacks[store], key_group)
        if stack is not None:
            size_bytes -= stack.size_bytes
            # A slot may have merged parts meanwhile: missing parts of an old stack are no damage.
            if not all(map(files.verify, stack.parts)) and _read_current(stacks[store], key_group) == stack:
                folder.drop(store, key_group, stacks[store])
                dropped.append(address)
    return dropped


def _read_current(stacks: Stacks, key_group: int) -> Stack | None:
    """Return a key-group's stack if its list is on the disk, else ``None``."""
    return stacks.read(key_group) if stacks.has(key_group) else None
