"""The net changes of state between two batches.

Key-groups whose state has the same head and timer in both batches are skipped. The others are read at both batches, one
after the other, and compared by key (and by index, map key or time, in tables of variables). If the state was divided
differently at the two batches (`riffle dispatch`), keys are in other key-groups, so all of them are compared at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.formats.nested_keys import encode_nested_keys
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state_tables.fetched_parts import fetch_parts
from riffle_spark.state_tables.requested_keys import RequestedKeys
from riffle_spark.state_tables.row_differences import mask_differing_rows
from riffle_spark.state_tables.state_view import StateTable
from riffle_spark.state_tables.table_columns import ROLE

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"


class Difference(NamedTuple):
    """Rows of some keys before and after: ``changes[i]`` is the change of row ``i``.

    Both tables have the same number of rows. A row is null in ``before`` if it was inserted, in ``after`` if it was
    deleted.
    """

    changes: pa.Array
    before: pa.Table
    after: pa.Table


def iterate_differences(
    before: StateTable, after: StateTable, keys: RequestedKeys | None = None, key_groups: Iterable[int] | None = None
) -> Iterator[Difference]:
    """Yield what changed from one table to another of the same store and columns, by key-group.

    Memory holds a key-group, or the whole state of both tables if it was divided differently.
    """
    old_entries = before.view.entries(before.store, before.find_key_groups(keys, key_groups))
    new_entries = after.view.entries(after.store, after.find_key_groups(keys, key_groups))
    pieces: list[list[int]] = [[key_group] for key_group in sorted(old_entries.keys() | new_entries.keys())]
    if before.view.record.division != after.view.record.division:
        pieces = [[key_group for piece in pieces for key_group in piece]]
    for piece in pieces:
        old = {key_group: old_entries[key_group] for key_group in piece if key_group in old_entries}
        new = {key_group: new_entries[key_group] for key_group in piece if key_group in new_entries}
        if _heads(old) != _heads(new):
            difference = compare_rows(_rows_of(before, after, old, keys), _rows_of(after, after, new, keys))
            if len(difference.changes):
                yield difference


def _heads(entries: Mapping[int, Entry]) -> dict[int, tuple[object, ...]]:
    """Return the identity of the state of each key-group."""
    return {key_group: (entry.head, entry.timer_ms) for key_group, entry in entries.items()}


def _rows_of(
    table: StateTable, columns: StateTable, entries: Mapping[int, Entry], keys: RequestedKeys | None
) -> pa.Table:
    """Return the rows of key-groups of ``table``, with the columns of the table ``columns``."""
    try:
        parts = fetch_parts(table.view.new_reader(), table.store, entries, columns.store_schema, keys)
    except CorruptStateError as error:
        raise table.view.root.explain(error, table.view.record) from error
    rows_of = columns.rows_of(keys)
    tables = [rows_of(number, parts.get(number, []), entry.timer_ms) for number, entry in entries.items()]
    return pa.concat_tables([rows_of(0, [], None), *tables])


def compare_rows(before: pa.Table, after: pa.Table) -> Difference:
    """Return what changed between the rows of some keys. Both tables have the columns of one ``StateTable``.

    Columns that only describe a row (key-group and version) are not compared.
    """
    ids_before = _encode_identity(before)
    ids_after = _encode_identity(after)
    place_before = pc.index_in(ids_after, value_set=ids_before)
    common_rows = np.flatnonzero(place_before.is_valid().to_numpy(zero_copy_only=False))
    matching = place_before.take(pa.array(common_rows))
    compared_names = [field.name for field in after.schema if _role_of(field) in (b"state", b"due")]
    old_rows = before.select(compared_names).take(matching)
    new_rows = after.select(compared_names).take(pa.array(common_rows))
    updated_rows = np.flatnonzero(mask_differing_rows(old_rows.columns, new_rows.columns, len(common_rows)))
    inserted_rows = pc.indices_nonzero(place_before.is_null())
    deleted_rows = pc.indices_nonzero(pc.invert(pc.is_in(ids_before, value_set=ids_after)))
    changes = np.repeat([INSERT, UPDATE, DELETE], [len(inserted_rows), len(updated_rows), len(deleted_rows)])
    rows_before = pa.concat_arrays(
        [
            pa.nulls(len(inserted_rows), pa.int64()),
            matching.take(pa.array(updated_rows)).cast(pa.int64()),
            deleted_rows.cast(pa.int64()),
        ]
    )
    rows_after = pa.concat_arrays(
        [
            inserted_rows.cast(pa.int64()),
            pa.array(common_rows[updated_rows], pa.int64()),
            pa.nulls(len(deleted_rows), pa.int64()),
        ]
    )
    return Difference(pa.array(changes, pa.string()), _take(before, rows_before), _take(after, rows_after))


def _take(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Return rows of a table, null rows for null. All columns are nullable."""
    schema = pa.schema([field.with_nullable(True) for field in table.schema], metadata=table.schema.metadata)
    return pa.table(table.columns, schema=schema).take(rows)


def _encode_identity(table: pa.Table) -> pa.Array:
    """Return the identity of each row as bytes: its key with the index, the map's key or the timer's time."""
    roles = {field.name: _role_of(field) for field in table.schema}
    names = [name for name, role in roles.items() if role in (b"key", b"index", b"timer")]
    pieces = [encode_keys(table.select(names).columns)]
    of_map = [name for name, role in roles.items() if role == b"map_key"]
    if of_map:
        pieces.append(encode_nested_keys(table.select(of_map).columns))
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _role_of(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(ROLE)
