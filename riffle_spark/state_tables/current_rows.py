"""The current rows of a key-group as a table, computed from its parts.

The newest part that has a key, or an element of a variable, decides. Rows are not sorted by key.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Mask, one_array
from riffle_spark.state.copies.elements import ElementRows, ElementRun, number_keys, structs_of
from riffle_spark.state.copies.part_runs import split_into_runs
from riffle_spark.state.copies.run import Run, merge_runs
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.due_times import first_ms_of, in_milliseconds
from riffle_spark.state.formats.key_codec import find_differing_rows, normalise_zeros
from riffle_spark.state.formats.part_codec import DELETED, HASH
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import NO_DUE, TIMER
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.state_tables.fetched_parts import Part
from riffle_spark.state_tables.requested_keys import RequestedKeys
from riffle_spark.state_tables.table_columns import TableColumns

RowsOf = Callable[[int, Sequence[Part], "int | None"], pa.Table]
"""A function from a key-group, its parts (newest first) and its timer in the log to the table of its current rows."""


def rows_of_plain(schema: PlainColumns, columns: TableColumns, keys: RequestedKeys | None, output: pa.Schema) -> RowsOf:
    """Return the function for a store with one row per key. ``keys`` are the requested keys, ``None`` for all."""
    version = pa.field(columns.version, pa.int64())
    row_schema = pa.schema([*schema.row_schema, version])

    def rows_of(key_group: int, parts: Sequence[Part], timer_ms: int | None) -> pa.Table:
        runs = [
            _with_version(run, part.version, version)
            for part in parts
            for run in split_into_runs(schema.without_later_names(part.table, part.epoch), schema)
        ]
        if schema.due is not None:
            runs = [replace(run, first_ms=first_ms_of(timer_ms)) for run in runs]
        rows = _merge_newest(runs, schema.key.names, row_schema)
        rows = rows if keys is None else rows.filter(keys.mask_rows(rows.select(schema.key.names).columns))
        rows = normalise_zeros(rows, schema.key.names)
        content = cast_table(rows.select(schema.part_schema().names), schema.part_schema())
        due_ms = pa.nulls(len(rows), pa.int64()) if schema.due is None else _due_ms(rows.column(schema.due))
        added_columns = [_repeat(key_group, len(rows)), rows.column(columns.version), due_ms]
        return pa.table([*content.columns, *added_columns], schema=output)

    return rows_of


def _merge_newest(runs: Sequence[Run], keys: Sequence[str], rows: pa.Schema) -> pa.Table:
    """Return the newest row of each key in runs of columns ``rows``, newest run first, without deleted rows.

    The oldest run usually has most rows, and few of them are replaced. So its other rows are not sorted again.
    """
    if not runs:
        return rows.empty_table()
    *newer, oldest = runs
    stays = ~oldest.are_gone(np.arange(len(oldest.hashes)))
    if not newer:
        return _select(pa.Table.from_batches([oldest.rows], rows), stays)
    upper = merge_runs(newer, keys, rows, bottom=False)
    hashes = one_array(upper.column(HASH)).to_numpy()
    first = np.searchsorted(oldest.hashes, hashes, side="left")
    counts = np.searchsorted(oldest.hashes, hashes, side="right") - first
    hits = np.flatnonzero(counts)
    replaced = first[hits]
    pairs = upper.select(keys).take(pa.array(hits)), oldest.rows.select(keys).take(pa.array(replaced))
    is_shared = bool(np.any(np.diff(hashes) == 0)) or bool(np.any(counts > 1))
    if is_shared or len(find_differing_rows(pairs[0], pa.Table.from_batches([pairs[1]]))):
        return merge_runs(runs, keys, rows, bottom=True).select(rows.names)  # two keys have one hash
    stays[replaced] = False
    is_deleted = one_array(upper.column(DELETED)).to_numpy(zero_copy_only=False)
    below = _select(pa.Table.from_batches([oldest.rows], rows), stays)
    return pa.concat_tables([below, _select(upper.select(rows.names), ~is_deleted)])


def _select(table: pa.Table, mask: Mask) -> pa.Table:
    """Return the rows of a mask, without a copy if they are all rows."""
    return table if mask.all() else table.filter(pa.array(mask))


def rows_of_variable(schema: VariableColumns, name: str, keys: RequestedKeys | None, output: pa.Schema) -> RowsOf:
    """Return the function for a variable of a store, or for its timers. ``keys`` are the requested keys."""

    def rows_of(key_group: int, parts: Sequence[Part], _: int | None) -> pa.Table:
        runs: list[ElementRun] = []
        versions: dict[int, int] = {}
        for part in parts:
            for run in split_into_runs(schema.without_later_names(part.table, part.epoch), schema):
                if isinstance(run, ElementRun) and run.variable == name:
                    runs.append(run)
                    versions[id(run)] = part.version
        if not runs:
            return output.empty_table()
        all_keys = pa.Table.from_batches([run.rows for run in runs]).combine_chunks()
        owners = number_keys(np.concatenate([run.hashes for run in runs]), all_keys)
        rows = ElementRows(runs, [np.arange(len(run.hashes)) for run in runs], owners).select_newest()
        rows = rows.select(~rows.deleted_mask())
        changed = rows.take_numbers(
            lambda run: np.broadcast_to(np.int64(versions[id(run)]), len(run.hashes)), np.int64(0)
        )
        key_columns = normalise_zeros(all_keys.take(pa.array(rows.picked)), schema.key.names).columns
        due_ms = rows.ids if name == TIMER else rows.due_times_ms()
        content = [*key_columns, *_element_columns(schema, name, rows)]
        count = len(rows.picked)
        added_columns = [_repeat(key_group, count), pa.array(changed), pa.array(due_ms, mask=due_ms == NO_DUE)]
        table = pa.table([*content, *added_columns], schema=output)
        return table if keys is None else table.filter(keys.mask_rows(table.columns[: len(schema.key)]))

    return rows_of


def _element_columns(schema: VariableColumns, name: str, rows: ElementRows) -> list[pa.Array]:
    """Return the columns of a variable's elements without the key: the map's key or the index, and the value."""
    if name == TIMER:
        return []
    variable = schema.by_name[name]
    structs = rows.take_column(structs_of)
    columns = [] if variable.key is None else variable.keys(structs).columns
    if variable.kind == "list":
        columns = [pa.array(rows.ids)]
    return [*columns, *variable.values(structs).columns]


def _with_version(run: Run, version: int, field: pa.Field) -> Run:
    """Return a run whose rows have the batch of their part in one more column."""
    rows = run.rows
    columns = [*rows.columns, pa.array(np.broadcast_to(np.int64(version), len(rows)))]
    return replace(run, rows=pa.RecordBatch.from_arrays(columns, schema=rows.schema.append(field)))


def _due_ms(column: pa.ChunkedArray) -> pa.Array:
    """Return a due column in milliseconds, null for rows that are never due."""
    times = one_array(column)
    return pa.array(in_milliseconds(times), mask=times.is_null().to_numpy(zero_copy_only=False))


def _repeat(key_group: int, count: int) -> pa.Array:
    """Return the number of a key-group as often as there are rows."""
    return pa.array(np.full(count, key_group, np.int32))
