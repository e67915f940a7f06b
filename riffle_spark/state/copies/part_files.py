"""Local files that hold parts of copies: mapping, verification, and the rows in them.

Theory of operation.

1. No byte of a file is used before this process has verified its part's checksum, and again after the file's signature
   has changed. The process may verify its own files while it writes them. So damage by a disk, a crash or a person
   is found before the next read. The copy is then dropped and restored from the store. A block is verified and opened
   as a whole, once for all its key-groups.
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
from pathlib import Path
from threading import Lock

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError, RiffleError, raise_if_memory
from riffle_spark.state.copies.disk import DamagedCopy, damaged_copy_error, disk_refused_error, is_block
from riffle_spark.state.copies.elements import merge_elements
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.mapped_bytes import NoRoomForCopies, address_limit, mapping_budget
from riffle_spark.state.copies.part_runs import OpenBlock, split_into_runs
from riffle_spark.state.copies.places import encryption_place
from riffle_spark.state.copies.run import Run, merge_runs
from riffle_spark.state.copies.stack import Signature, Stack, StackedPart, signature_of
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.blocks import BlockIndex, checksum_of_block, read_index
from riffle_spark.state.log.manifest import Address
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.schemas.store_schema import StoreSchema

_MAPPED_FROM_BYTES = 64 * 1024
"""Smaller files are read, because mapping them costs more, and the number of mappings of a process is limited."""
_FILES_MAX = 4096
_DECRYPTED_BYTES_MAX = 1 << 30
_OBJECT_BYTES = 2048
"""The approximate size of the Python objects of an open part. Small deltas consist mostly of them."""
_WHOLE = -1
"""The start under which the rows of a block are counted."""
_WHOLE_SPAN = (_WHOLE, 0)
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
    block: tuple[StoreSchema, OpenBlock] | None = None
    """The rows of a block file."""
    index: BlockIndex | None = None
    """The index of a verified block file."""


class PartFiles:
    """The files of one member's folder, as one task sees them. The task reads each file's signature once.

    Mapped and verified files are cached in this process until their signature changes.
    """

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        self._folder = folder
        self._keys = keys
        self._seen: dict[str, _File] = {}
        self._blocks: dict[tuple[str, int, int], tuple[StoreSchema, OpenBlock]] = {}
        """Verified blocks by file, checksum and declaration."""

    def read_runs(self, part: StackedPart, schema: StoreSchema, key_group: int) -> tuple[Run, ...]:
        """Return a key-group's rows of a part as runs with the current schema's columns.

        Raises ``DamagedCopy``, also if the part was written under a declaration that was rolled back, because the part
        lacks the columns that this declaration did not name.
        """
        if is_block(part.file):
            block = self._open_block(part, schema)
            place = block.index.ranges.get(key_group)
            if place is None or place.rows != part.rows:
                raise damaged_copy_error("A block lacks rows of a key-group.", self._folder / part.file)
            return block.read_runs(key_group)
        file = self._open_verified(part)
        cached = file.rows.get(part.start)
        if cached is not None and cached[0] is schema:
            return cached[1]
        self._check_declaration(part, schema)
        try:
            data = self._decrypt(file.data.slice(part.start, part.length), part, schema.store, key_group)
            table = part_codec.open_part(data, part.file)
            runs = split_into_runs(schema.without_later_names(table, part.epoch), schema)
        except (ConfigError, CorruptStateError) as error:
            raise damaged_copy_error(error.problem, self._folder / part.file) from self._cause_if_intact(part, error)
        file.rows[part.start] = schema, runs
        path = f"{self._folder}/{part.file}"
        if self._keys is not None and _files.get(path) is file:
            _decrypted.add(path, part.start, max(part.length, table.get_total_buffer_size()) + _OBJECT_BYTES)
        return runs

    def _open_block(self, part: StackedPart, schema: StoreSchema) -> OpenBlock:
        """Return the rows of a block, after verifying it. Raises ``DamagedCopy`` as ``read_runs`` does."""
        known = self._blocks.get((part.file, part.checksum, part.declaration))
        if known is not None and known[0] is schema:
            return known[1]
        file = self._open_verified(part)
        self._check_declaration(part, schema)
        opened = file.block  # the merging thread may release it
        if opened is None or opened[0] is not schema:
            opened = schema, self._parse_block(file, part, schema)
        self._blocks[part.file, part.checksum, part.declaration] = opened
        return opened[1]

    def _parse_block(self, file: _File, part: StackedPart, schema: StoreSchema) -> OpenBlock:
        """Open the rows of a verified block for a schema. Raises ``DamagedCopy`` as ``read_runs`` does."""
        try:
            rows, index = read_index(file.data)
            index = file.index = file.index or index
            table = part_codec.open_block(self._decrypt(rows, part, schema.store, 0), part.file)
            block = OpenBlock(table, index, schema, part.epoch)
        except (ConfigError, CorruptStateError) as error:
            raise damaged_copy_error(error.problem, self._folder / part.file) from self._cause_if_intact(part, error)
        except ValueError as error:
            raise damaged_copy_error(error, self._folder / part.file) from error
        file.block = schema, block
        path = f"{self._folder}/{part.file}"
        if self._keys is not None and _files.get(path) is file:
            _decrypted.add(path, _WHOLE, max(file.data.size, table.get_total_buffer_size()) + _OBJECT_BYTES)
        return block

    def _check_declaration(self, part: StackedPart, schema: StoreSchema) -> None:
        """Raise ``DamagedCopy`` if a part was written under a declaration that was rolled back."""
        if not schema.history.includes(part.declaration):
            raise damaged_copy_error(
                "A part was written under a declaration that was rolled back.", self._folder / part.file
            )

    def _cause_if_intact(self, part: StackedPart, error: RiffleError) -> RiffleError | None:
        """Return ``error`` as the cause of a damaged copy if the part has its checksum on the disk. Then the bytes were
        written in this form. Otherwise the disk is the cause, and the result is ``None``.
        """
        return error if self.verify(part) else None

    def read_block_index(self, name: str) -> tuple[BlockIndex, int] | None:
        """Return the index and the checksum of a block file that this member wrote, ``None`` if it is not intact."""
        try:
            file = self._seen.get(name) or self._open_file(name)
            checksum = file.verified.get(_WHOLE_SPAN)
            if checksum is None:
                checksum, actual = checksum_of_block(file.data)
                if actual != checksum:
                    return None
                file.verified[_WHOLE_SPAN] = checksum
            self._seen[name] = file
            file.index = file.index or read_index(file.data)[1]
        except (DamagedCopy, ValueError):
            return None
        return file.index, checksum

    def _decrypt(self, data: part_codec.Data, part: StackedPart, store: str, key_group: int) -> part_codec.Data:
        """Return the decrypted bytes of a part, or ``data`` if there are no keys."""
        if self._keys is None:
            return data
        return self._keys.decrypt(data, encryption_place(part.file, store, key_group), part.file)

    def data(self, part: StackedPart) -> pa.Buffer:
        """Return a part's stored bytes, with verified checksum. Raises ``DamagedCopy``."""
        return self._open_verified(part).data.slice(part.start, part.length)

    def read_as_snapshot(self, part: StackedPart, store: str, key_group: int) -> part_codec.Data | None:
        """Return a part's decrypted bytes, or ``None`` if they cannot be a snapshot.

        A part that marks deleted keys and a block cannot. Raises ``DamagedCopy``.
        """
        if is_block(part.file):
            return None
        try:
            data = self._decrypt(self.data(part), part, store, key_group)
            is_delta = part_codec.DELETED in part_codec.open_part(data, part.file).column_names
        except (ConfigError, CorruptStateError) as error:
            raise damaged_copy_error(error.problem, self._folder / part.file) from self._cause_if_intact(part, error)
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
        file.verified[_span_of(part)] = part.checksum

    def forget_verification(self, parts: Iterable[StackedPart]) -> None:
        """Require that these parts are verified again before their next use.

        Call this before merging them. The merged part gets a new checksum, which would hide bytes that the disk has
        lost since the last verification.
        """
        for part in parts:
            file = _files.get(f"{self._folder}/{part.file}")
            if file is not None:
                file.verified.pop(_span_of(part), None)
            self._blocks.pop((part.file, part.checksum, part.declaration), None)

    def release_rows(self, parts: Iterable[StackedPart]) -> None:
        """Release the cached rows of merged parts, because unpacked and decrypted rows take memory."""
        for part in parts:
            path = f"{self._folder}/{part.file}"
            file = _files.get(path)
            if file is not None:
                if is_block(part.file):
                    continue  # other key-groups may use the block, and its rows are mapped unless they are encrypted
                file.rows.pop(part.start, None)
                _decrypted.remove(path, [part.start])

    def verify(self, part: StackedPart) -> bool:
        """Read a part, or the whole block that it is in, from the disk again. Return whether it has its checksum."""
        try:
            with (self._folder / part.file).open("rb") as file:
                if is_block(part.file):
                    return checksum_of_block(pa.py_buffer(file.read())) == (part.checksum, part.checksum)
                if part.start + part.length > os.fstat(file.fileno()).st_size:
                    return False  # do not allocate memory for a wrong length
                file.seek(part.start)
                return part_codec.checksum(file.read(part.length)) == part.checksum
        except (OSError, ValueError):
            return False

    def _open_verified(self, part: StackedPart) -> _File:
        """Return the open file of a part after verifying the part's checksum, once.

        Raises ``DamagedCopy`` if it differs.
        """
        file = self._seen.get(part.file)
        if file is None:
            file = self._seen[part.file] = self._open_file(part.file)
        span = _span_of(part)
        if file.verified.get(span) != part.checksum:
            self._check_length(file, part)
            if _checksum_in(file.data, part) != part.checksum:
                raise damaged_copy_error("Its checksum is wrong.", self._folder / part.file)
            file.verified[span] = part.checksum
        return file

    def _check_length(self, file: _File, part: StackedPart) -> None:
        """Raise ``DamagedCopy`` if a file ends before the part does."""
        if part.start + part.length > file.data.size:
            raise damaged_copy_error("A file is truncated.", self._folder / part.file)

    def _open_file(self, name: str) -> _File:
        """Return an open file, from the cache if it has not changed. Raises ``DamagedCopy`` if it cannot be read."""
        path = f"{self._folder}/{name}"
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


def _span_of(part: StackedPart) -> tuple[int, int]:
    """Return the key of a part in ``_File.verified``. All parts in a block have the same."""
    return _WHOLE_SPAN if is_block(part.file) else (part.start, part.length)


def _checksum_in(data: pa.Buffer, part: StackedPart) -> int | None:
    """Return the checksum of a part's bytes in its file, or of the block that it is in.

    Return ``None`` for a file that is not a block, or that does not have the checksum in its footer.
    """
    if not is_block(part.file):
        return part_codec.checksum(memoryview(data)[part.start : part.start + part.length])
    try:
        in_footer, actual = checksum_of_block(data)
    except ValueError:
        return None
    return actual if in_footer == actual else None


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
                if file is not None and oldest_start == _WHOLE:
                    file.block = None
                elif file is not None:
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
        _decrypted.remove(path, [*file.rows, _WHOLE])


def close_removed_files(folder: Path) -> None:
    """Close the files of a member's folder that were deleted, so that the disk frees their blocks."""
    prefix = f"{folder}/"
    for path in list(_files):
        if path.startswith(prefix) and signature_of(path) is None:
            _close_file(path)


def _read_or_map(path: str, size: int) -> pa.Buffer:
    """Return the bytes of a file, mapped if it is large."""
    if size < _MAPPED_FROM_BYTES:
        return pa.py_buffer(Path(path).read_bytes())
    with pa.memory_map(path) as file:
        return file.read_buffer()


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


_SCRUB_BYTES = 8 << 20
_next_address: dict[str, Address] = {}
"""The key-group at which the next scrub starts, by folder."""


def scrub_stacks(folder: Folder, size_bytes: int = _SCRUB_BYTES) -> list[Address]:
    """Verify about ``size_bytes`` of a member's copies, but at least one key-group, starting after the last call's.

    Return the key-groups whose copies were damaged and dropped.
    """
    stacks = {store: folder.stacks(store) for store in folder.stores()}
    addresses = [(store, key_group) for store in stacks for key_group in stacks[store].key_groups()]
    start = _next_address.get(str(folder.path), ("", 0))
    files = PartFiles(folder.path)
    intact_blocks: set[str] = set()
    dropped: list[Address] = []

    def is_intact(part: StackedPart) -> bool:
        verified = part.file in intact_blocks or files.verify(part)
        if verified and is_block(part.file):
            intact_blocks.add(part.file)
        return verified

    for address in sorted(addresses, key=lambda address: (address < start, address)):
        if size_bytes <= 0:
            _next_address[str(folder.path)] = address
            break
        store, key_group = address
        stack = _read_current(stacks[store], key_group)
        if stack is not None:
            size_bytes -= stack.size_bytes
            # A slot may have merged parts since. Missing parts of an old stack are not damage.
            if not all(map(is_intact, stack.parts)) and _read_current(stacks[store], key_group) == stack:
                folder.drop(store, key_group, stacks[store])
                dropped.append(address)
    return dropped


def _read_current(stacks: Stacks, key_group: int) -> Stack | None:
    """Return a key-group's stack if its list is on the disk, else ``None``."""
    return stacks.read(key_group) if stacks.has(key_group) else None
