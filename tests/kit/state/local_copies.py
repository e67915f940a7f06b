"""Read the contents of a member's local copies from its folder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from riffle_spark.state.copies import part_files
from riffle_spark.state.copies.disk import damaged_copy_error, is_block
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles, read_all_rows
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.schemas.store_schema import StoreSchema
from tests.kit.state.stack_changes import another_process

__all__ = ["checksum_on_disk", "local_copy", "rows_of_stack", "unremembered"]


def local_copy(folder: Folder, schema: StoreSchema, key_group: int) -> tuple[Head, pa.Table] | None:
    """Return the head of a copy and its whole state as a snapshot's table, or ``None`` if there is no copy."""
    stack = folder.stacks(schema.store).read(key_group)
    return None if stack is None else (stack.head, rows_of_stack(folder.path, schema, stack, key_group))


def rows_of_stack(
    folder: Path, schema: StoreSchema, stack: Stack, key_group: int, keys: Keys | None = None
) -> pa.Table:
    """Return the whole state in a key-group's stack as a snapshot's table."""
    files = PartFiles(folder, keys)
    return read_all_rows(
        [run for part in reversed(stack.parts) for run in files.read_runs(part, schema, key_group)], schema
    )


def checksum_on_disk(folder: Path, part: StackedPart) -> int:
    """Return the checksum of a part's bytes on the disk, or that of its whole block if it is in one.

    Raises ``DamagedCopy`` if the file is missing.
    """
    try:
        with (folder / part.file).open("rb") as file:
            if is_block(part.file):
                return part_codec.checksum(file.read())
            file.seek(part.start)
            return part_codec.checksum(file.read(part.length))
    except FileNotFoundError as error:
        raise damaged_copy_error("a file of it is gone", folder / part.file) from error


@contextmanager
def unremembered() -> Iterator[None]:
    """Read copies during the block with the empty caches of a new process.

    The caches of this process are unchanged afterwards, so the product does not skip checks of files that a test has
    read.
    """
    names = ("_files", "_decrypted")
    attributes_before = {name: getattr(part_files, name) for name in names}
    part_files._files = OrderedDict()  # private: the cache of a process
    part_files._decrypted = part_files._DecryptedRows()  # private: as above
    try:
        with another_process():
            yield
    finally:
        for name, value in attributes_before.items():
            setattr(part_files, name, value)
