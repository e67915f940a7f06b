"""What a member's copies hold, of either kind, looked at where they lie."""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.run import merged
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["local_copy"]


def local_copy(folder: Folder, schema: StoreSchema, key_group: int) -> tuple[Head, pa.Table] | None:
    """Return where a copy is and all that it holds, as a snapshot's table; ``None`` if there is none."""

    def of_columns(columns: PlainColumns) -> tuple[Head, pa.Table] | None:
        stack = folder.stacks(columns.store).read(key_group)
        if stack is None:
            return None
        files = PartFiles(folder.path)
        runs = [run for part in reversed(stack.parts) for run in files.runs(part, columns)]
        table = merged(runs, columns.key.names, columns.row_schema, bottom=True)
        return stack.head, table.select(columns.part_schema().names).cast(columns.part_schema())

    def of_variables(variables: VariableColumns) -> tuple[Head, pa.Table] | None:
        current = folder.current(variables.store, key_group)
        if current is None:
            return None
        with Copy.of_layout(current, variables.copy_layout) as copy:
            head, pairs, longs = copy.scan()
        return head, variables.table(pairs, longs)

    return schema.either(of_columns, of_variables)
