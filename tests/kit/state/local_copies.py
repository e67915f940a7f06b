"""What a member's copies hold, looked at where they lie."""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles, whole_rows
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.schemas.store_schema import StoreSchema

__all__ = ["local_copy"]


def local_copy(folder: Folder, schema: StoreSchema, key_group: int) -> tuple[Head, pa.Table] | None:
    """Return where a copy is and all that it holds, as a snapshot's table; ``None`` if there is none."""
    stack = folder.stacks(schema.store).read(key_group)
    if stack is None:
        return None
    files = PartFiles(folder.path)
    return stack.head, whole_rows([run for part in reversed(stack.parts) for run in files.runs(part, schema)], schema)
