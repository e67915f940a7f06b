"""Open the rows of parts and blocks as runs, and merge runs into parts and blocks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import Offsets, positions_of
from riffle_spark.errors import UNREADABLE, CorruptStateError, raise_if_memory
from riffle_spark.state.copies.elements import element_runs, merge_elements
from riffle_spark.state.copies.run import Run, RunBlock, RunsOfKeyGroup, merge_groups
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import BlockIndex
from riffle_spark.state.formats.due_times import DUE_ORDER, DueTimes, compute_due_times, read_stored_order
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variable_kinds import ELEMENT
from riffle_spark.state.schemas.variables import VariableColumns


class OpenBlock:
    """The rows of a verified block, opened for a schema."""

    def __init__(self, table: pa.Table, index: BlockIndex, schema: StoreSchema, epoch: int) -> None:
        """Open the rows. ``epoch`` is the epoch of the newest row, which ``without_later_names`` needs.

        Raises ``CorruptStateError`` if the rows do not fit the schema or the index.
        """
        self.index = index
        self._schema = schema
        self._epoch = epoch
        known = schema.without_later_names(table, epoch)
        self._has_later_rows = known.num_rows < table.num_rows
        self._table = table if self._has_later_rows else known
        self._runs: dict[int, tuple[Run, ...]] = {}
        self._block: RunBlock | None = None
        if table.num_rows != index.starts[-1]:
            # Cause: The checksum matches, so another version or program wrote the block in this form.
            raise CorruptStateError(
                f"A block has {table.num_rows} rows, but its index has {index.starts[-1]}.",
                remedy="Use the version of riffle_spark that last ran the query.",
                where=schema.store,
                id="RIFFLE-1420",
            )
        with _misfit_as_corrupt_state(schema):
            whole = schema.either(partial(_open_whole, known), lambda _: None) if table.num_rows else None
        if whole is not None:
            self._block = RunBlock(whole, index.starts)

    def read_runs(self, key_group: int) -> tuple[Run, ...]:
        """Return the rows of a key-group, or no run if the block has no rows of it."""
        runs = self._runs.get(key_group)
        if runs is None:
            runs = self._runs[key_group] = self._slice_runs(key_group)
        return runs

    def _slice_runs(self, key_group: int) -> tuple[Run, ...]:
        """Return the rows of a key-group as a slice of the block's rows."""
        place = self.index.ranges.get(key_group)
        if place is None or not place.rows:
            return ()
        if self._block is None:
            table = self._table.slice(place.start, place.rows)
            if self._has_later_rows:  # removed here, because the index counts them
                table = self._schema.without_later_names(table, self._epoch)
            return split_into_runs(table, self._schema)
        whole = self._block.whole
        rows = slice(place.start, place.end)
        deleted = None if whole.deleted is None else whole.deleted[rows]
        due = None
        if whole.due is not None:
            are_due = None if whole.due.are_due is None else whole.due.are_due[rows]
            count = place.rows if are_due is None else int(np.count_nonzero(are_due))
            order = whole.due.order[place.start : place.start + count]
            due = DueTimes(whole.due.values[rows], whole.due.per_ms, order, are_due)
        batch = whole.rows.slice(place.start, place.rows)
        number = self.index.numbers[key_group]
        return (Run(whole.hashes[rows], batch, deleted, due, block=self._block, number=number),)


def _open_whole(table: pa.Table, schema: PlainColumns) -> Run | None:
    """Return the rows of a block as one run, whose due order is the concatenated due orders of its key-groups.

    Return ``None`` if the rows are several runs or have no due order. Then each key-group's rows are opened as a part.
    """
    runs = _split_plain_runs(table, schema)
    order = read_stored_order(table, schema.due)
    if len(runs) != 1 or (schema.due is not None and order is None):
        return None
    due = runs[0].due
    return runs[0] if due is None or order is None else replace(runs[0], due=due._replace(order=order))


def split_into_runs(table: pa.Table, schema: StoreSchema) -> tuple[Run, ...]:
    """Return a part's rows as runs with the current schema's columns.

    Raises ``CorruptStateError`` if the rows do not fit the schema.
    """
    with _misfit_as_corrupt_state(schema):
        return schema.either(partial(_split_plain_runs, table), partial(element_runs, table))


@contextmanager
def _misfit_as_corrupt_state(schema: StoreSchema) -> Iterator[None]:
    """Run a block of code. Raise ``CorruptStateError`` for its errors, which mean that rows do not fit the schema."""
    try:
        yield
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


def _split_plain_runs(table: pa.Table, schema: PlainColumns) -> tuple[Run, ...]:
    """Return the rows of a part with one row per key as one run per chunk."""
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


def merge_into_block(
    groups: Sequence[RunsOfKeyGroup], schema: StoreSchema, *, bottom: bool
) -> tuple[bytes, npt.NDArray[np.int32], Offsets]:
    """Return the newest rows of several key-groups as the bytes of a block, with its key-groups and their first rows.

    Key-groups must ascend. ``merge_rows`` describes ``bottom``.
    """
    key_groups = np.array([group.key_group for group in groups], np.int32)
    table, starts = merge_key_groups(groups, schema, bottom=bottom)
    return part_codec.encode_block(table, starts, schema.due), key_groups, starts


def merge_key_groups(
    groups: Sequence[RunsOfKeyGroup], schema: StoreSchema, *, bottom: bool
) -> tuple[pa.Table, Offsets]:
    """Return the newest rows of several key-groups, with the columns of a part, and the first row of each.

    Key-groups must ascend. ``merge_rows`` describes ``bottom``.
    """
    table, counts = schema.either(
        lambda columns: _merge_plain(groups, columns, bottom=bottom),
        lambda variables: _merge_variables(groups, variables, bottom=bottom),
    )
    return table, positions_of(counts)


def _merge_plain(
    groups: Sequence[RunsOfKeyGroup], schema: PlainColumns, *, bottom: bool
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the newest rows of key-groups, and the number of rows of each."""
    table, key_groups = merge_groups(groups, schema.key.names, schema.row_schema, bottom=bottom)
    numbers = [group.key_group for group in groups]
    return table, np.searchsorted(key_groups, numbers, side="right") - np.searchsorted(key_groups, numbers)


def _merge_variables(
    groups: Sequence[RunsOfKeyGroup], schema: VariableColumns, *, bottom: bool
) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the newest rows of variables of key-groups, and the number of rows of each key-group."""
    tables = [merge_elements(schema, group.runs, bottom=bottom) for group in groups]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    for name in {DUE_ORDER, ELEMENT} & set(table.column_names):  # parts without due times or ids lack them
        place = table.column_names.index(name)
        table = table.set_column(place, name, table.column(name).fill_null(0))
    return table, np.array([rows.num_rows for rows in tables], np.int64)
