"""Write the first version of a store on an executor: a snapshot per key-group, of rows that no batch computed.

A task gets the rows of one key-group after the other. Its memory holds one key-group at a time.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.messages.first_version_orders import FirstVersionOrder, WrittenKeyGroup
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.worker.member_folders import keys_of, store_of

ToState: TypeAlias = Callable[[StoreSchema, pa.Table], tuple[pa.Table, int]]
"""Returns the state rows of input rows, and how many state rows they count as."""


def write_key_groups(
    order: FirstVersionOrder, to_state: ToState, batches: Iterator[tuple[int, pa.Table]]
) -> Iterator[WrittenKeyGroup]:
    """Write the snapshot of each key-group in ``batches``, and yield its id and figures.

    ``batches`` are pairs of key-group and rows; equal key-groups are adjacent. Raises ``ConfigError`` for two rows
    with the same key, and ``CorruptStateError`` for rows of another key-group.
    """
    schema = schema_of_text(order.store, order.schema)
    for key_group, rows in _joined(batches):
        state, state_rows = to_state(schema, rows)
        _check_key_group(schema, state, key_group, order.total)
        if schema.one_row_a_key:
            _check_unique(schema, state)
        yield _write(order, schema, key_group, state, state_rows)


def _joined(batches: Iterator[tuple[int, pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
    """Yield each key-group once, with all of its rows."""
    current = -1
    tables = list[pa.Table]()
    for key_group, rows in batches:
        if key_group != current and tables:
            yield current, pa.concat_tables(tables).combine_chunks()
            tables = []
        current = key_group
        tables.append(rows)
    if tables:
        yield current, pa.concat_tables(tables).combine_chunks()


def _check_key_group(schema: StoreSchema, state: pa.Table, key_group: int, total: int) -> None:
    """Raise ``CorruptStateError`` unless Python's hash puts all rows into ``key_group``, as Spark's did."""
    key_groups = keygroups.key_groups([state.column(name) for name in schema.routing], total)
    if np.any(key_groups != key_group):
        # Cause: Spark and Python compute different hashes of a key, for example of a type that Arrow does not carry.
        raise CorruptStateError(
            f"Python puts a key of store {schema.store!r} into key-group {int(key_groups[0])}, Spark into {key_group}.",
            remedy="Report the types of the key. Nothing was committed.",
            where=schema.store,
            id="RIFFLE-1610",
        )


def _check_unique(schema: StoreSchema, state: pa.Table) -> None:
    """Raise ``ConfigError`` if two rows have the same key."""
    encoded = schema.encoded(state)
    if len(encoded.unique()) < len(encoded):
        raise ConfigError(
            f"Two rows have the same key of store {schema.store!r}.",
            remedy="Give one row per key: aggregate the rows of a key first.",
            where=schema.store,
            id="RIFFLE-1611",
        )


def _write(
    order: FirstVersionOrder, schema: StoreSchema, key_group: int, state: pa.Table, state_rows: int
) -> WrittenKeyGroup:
    """Put the snapshot of a key-group, and return its id and figures."""
    attempt = f"{order.epoch}-{uuid.uuid4().hex}"
    rows = schema.sealed(state)
    snapshot_id = paths.snapshot_id(order.version, attempt)
    data = part_codec.encode(rows, schema.due)
    keys = keys_of(order.home)
    if keys is not None:
        data = keys.new_encryption()(data, paths.snapshot_place(order.store, key_group, snapshot_id))
    store_of(order.home).put_if_absent(paths.snapshot_name(order.store, key_group, snapshot_id), data)
    return WrittenKeyGroup(
        key_group,
        snapshot_id,
        len(data),
        part_codec.checksum(data),
        rows.num_rows,
        schema.earliest_ms(rows),
        state_rows,
    )
