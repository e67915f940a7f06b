"""One shard's whole state, read from the objects alone. Knows entries and parts. Does not know where it goes.

Columns are put together as columns: of snapshot and chain, the newest row of a key counts. State variables are restored
into a local copy, as a member does it, since a row of a delta may clear a whole variable.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.process.grouping import group_keys
from riffle_spark.protocol.schemas import Columns
from riffle_spark.state.codec import DELETED
from riffle_spark.state.fitted import fitted
from riffle_spark.state.manifest import Entry
from riffle_spark.state.parts import Reader
from riffle_spark.state.restored import restored
from riffle_spark.state.schema import StoreSchema
from riffle_spark.state.variables import DUE, VariablesSchema

__all__ = ["earliest_ms", "state_of"]


def state_of(schema: Columns, key_group: int, entry: Entry, reader: Reader) -> pa.Table:
    """Return one shard's whole state as a snapshot's table, in no particular order."""
    if isinstance(schema, StoreSchema):
        return _newest(schema, key_group, entry, reader)
    return _restored(schema, key_group, entry, reader)


def earliest_ms(schema: Columns, rows: pa.Table) -> int | None:
    """Return when the first timer or element among rows of state is due (ms)."""
    if isinstance(schema, StoreSchema):
        return None
    earliest: int | None = pc.min(rows.column(DUE)).as_py()
    return earliest


def _newest(schema: StoreSchema, key_group: int, entry: Entry, reader: Reader) -> pa.Table:
    wanted = schema.part_schema(delta=True)
    parts = reader.links(entry.chain)
    tables = [parts[link] for link in entry.chain]
    if entry.snapshot is not None:
        (kept,) = reader.snapshots([(schema.store, key_group, entry.snapshot)])
        tables.insert(0, kept.append_column(DELETED, pa.repeat(False, kept.num_rows)))
    if not tables:
        return schema.part_schema().empty_table()
    rows = pa.concat_tables([fitted(table, wanted) for table in tables])
    newest_first = rows.take(pa.array(np.arange(rows.num_rows)[::-1]))
    _, newest = group_keys(schema.encoded(newest_first))
    state = newest_first.take(pa.array(newest))
    return state.filter(pc.invert(state.column(DELETED))).drop_columns([DELETED]).cast(schema.part_schema())


def _restored(schema: VariablesSchema, key_group: int, entry: Entry, reader: Reader) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="riffle-shard-") as place:
        found = restored(schema, {key_group: entry}, reader, Path(place))
        return found.get(key_group, schema.part_schema().empty_table())
