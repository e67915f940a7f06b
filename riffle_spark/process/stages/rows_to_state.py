"""Make the state of keys from rows. It becomes the first version of a store, which no batch computed.

Rows are either state rows already, or buffers of an aggregate: one row per group or session, as Spark's own state has
them. Buffers of many rows merge as buffers of one row do. So the stage's own computation makes the state, as from the
input of a batch without earlier state.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch
from riffle_spark.process.blocks.folding import group_keys
from riffle_spark.process.stages.merged_groups import MergedGroups
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.process.types.stage_specs import AggregateSpec
from riffle_spark.state.formats.arrow_casts import cast_table
from riffle_spark.state.formats.key_codec import encode_keys
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variable_kinds import INDEX, VARIABLE
from riffle_spark.state.schemas.variables import VariableColumns

BufferComputation: TypeAlias = MergedGroups | SessionGroups


@dataclass(frozen=True, slots=True)
class BufferFolding:
    """A computation whose input rows are buffers, with all of their columns. Made by ``buffer_folding``."""

    compute: BufferComputation

    @property
    def rows(self) -> pa.Schema:
        """The columns of the rows: keys, both ends of a session, and buffers."""
        return self.compute.spec.rows

    def state(self, key: pa.Schema, rows: pa.Table) -> tuple[pa.Table, int]:
        """Return the keys and state of the groups in ``rows``, and the number of state rows.

        ``key`` are the key columns of the store.
        """
        codes, firsts = group_keys(encode_keys([one_array(rows.column(name)) for name in key.names]))
        keys = rows.select(key.names).take(pa.array(firsts)).combine_chunks()
        declared = self.compute.declare(key, rows.schema)
        no_state = pa.Table.from_arrays(
            [pa.nulls(len(firsts), field.type) for field in declared.state],
            schema=pa.schema([field.with_nullable(True) for field in declared.state]),
        )
        batch = Batch(
            rows,
            codes,
            keys,
            no_state,
            np.zeros(len(firsts), np.bool_),
            version=0,
            time_ms=0,
            watermark_ms=None,
            key_group=None,
        )
        update = self.compute(batch)
        assert len(update.changed) == len(firsts), "every group has a row"
        changed = keys.take(pa.array(update.changed))
        state = update.state.select(declared.state.names)
        table = pa.table([*changed.columns, *state.columns], names=[*key.names, *declared.state.names])
        return table, table.num_rows if update.rows is None else update.rows.added


def all_buffers(spec: AggregateSpec) -> AggregateSpec:
    """Return the specification of an aggregate whose rows carry every buffer, also those that are the same in each
    row of a batch.
    """
    functions = tuple(
        replace(function, buffers=tuple(replace(buffer, literal=None) for buffer in function.buffers))
        for function in spec.functions
    )
    return replace(spec, functions=functions)


def buffer_folding(compute: BufferComputation) -> BufferFolding:
    """Return the computation of an aggregate's stage, for rows that are buffers."""
    spec = all_buffers(compute.spec)
    if isinstance(compute, MergedGroups):
        return BufferFolding(MergedGroups(spec, "append"))  # Append mode computes no results for a batch's rows.
    return BufferFolding(replace(compute, spec=spec))


def wide_rows(schema: VariableColumns, rows: pa.Table) -> pa.Table:
    """Return rows of variables, whose names are strings, as wide rows.

    Elements of lists without an index are numbered in the order of the rows of their key.
    """
    numbers = pc.index_in(one_array(rows.column(VARIABLE)), pa.array(schema.names)).to_numpy().astype(np.int64)
    indexes = one_array(rows.column(INDEX))
    lists = [number for number, variable in enumerate(schema.variables) if variable.kind == "list"]
    places = np.flatnonzero(np.isin(numbers, lists) & np.array(indexes.is_null().to_numpy(zero_copy_only=False)))
    if len(places):
        codes, _ = group_keys(schema.encoded(rows.take(pa.array(places))))
        lists_of_rows = codes * len(schema.names) + numbers[places]
        order = np.argsort(lists_of_rows, kind="stable")
        starts = np.flatnonzero(np.diff(lists_of_rows[order], prepend=-1))
        counts = np.diff(np.append(starts, len(order)))
        filled = np.array(indexes.fill_null(0).to_numpy())
        filled[places[order]] = np.arange(len(order)) - np.repeat(starts, counts)
        is_null = np.array(indexes.is_null().to_numpy(zero_copy_only=False))
        is_null[places] = False
        indexes = pa.array(filled, mask=is_null)
    columns = {name: rows.column(name) for name in rows.column_names}
    columns |= {VARIABLE: schema.name_variables(numbers), INDEX: indexes}
    return pa.table(list(columns.values()), names=list(columns))


def state_of_rows(schema: StoreSchema, folding: BufferFolding | None, rows: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows of a snapshot, not sorted yet, and the number of state rows.

    Without ``folding`` the rows are state rows already, in the columns of ``schema.part_schema()``.
    """
    if folding is None:
        rows = schema.either(lambda _: rows, lambda variables: wide_rows(variables, rows))
        return cast_table(rows, schema.part_schema()), rows.num_rows
    state, count = folding.state(schema.key, cast_table(rows, folding.rows))
    return cast_table(state, schema.part_schema()), count
