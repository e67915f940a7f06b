"""The join of a stream with a table on a slot.

The table keeps the last row per key. Each row of the stream is joined in its own batch with the row that the table then
has. The changes of a batch apply before its other rows, in any order of arrival. So a batch that runs again has
the same result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, BoolArray, Declared, IndexArray, Update
from riffle_spark.process.blocks.folding import true_mask
from riffle_spark.process.merging.merged_picks import is_ordered, rank_values
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.state.formats.arrow_casts import cast_table

_NO_MATCH = -1
_NOT_A_STREAM_ROW = -2


@dataclass(frozen=True, slots=True)
class TableRows:
    """A ``BlockComputation`` of the join of a stream with a table, which keeps the last row of each key.

    The last row of a key is the greatest by the ``order_by`` columns. Of equal rows a later batch wins, and within a
    batch the row that is greater in its other columns. Output modes make no difference.
    """

    spec: TableSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the table's columns as state."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        needed = (spec.is_change, *spec.stream_columns.names, *spec.table_columns.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        state = pa.schema([field.with_nullable(True) for field in spec.table_columns])
        return Declared(state, spec.output, needed, per_key_group=False)

    def __call__(self, batch: Batch) -> Update:
        """Apply the batch's changes to the table, then join the rows of the stream with it."""
        is_change = true_mask(one_array(batch.rows.column(self.spec.is_change)))
        changes = batch.rows.filter(pa.array(is_change)).select(self.spec.table_columns.names)
        stored = np.flatnonzero(batch.has_state)
        table = pa.concat_tables([batch.state.take(pa.array(stored)), cast_table(changes, batch.state.schema)])
        table = table.combine_chunks()
        owners = np.concatenate([stored, batch.codes[is_change]])
        order = self._sort_rows(table, len(stored))
        places = np.full(batch.keys.num_rows, _NO_MATCH)
        places[owners[order]] = order  # The last assignment to a key wins.
        changed = np.flatnonzero(places >= len(stored))
        output = self._join_rows(batch.rows, np.where(is_change, _NOT_A_STREAM_ROW, places[batch.codes]), table)
        return Update(output, changed, table.take(pa.array(places[changed])), deleted=changed[:0])

    def _sort_rows(self, table: pa.Table, stored_count: int) -> IndexArray:
        """Return the places of the table's rows and changes from the smallest to the greatest.

        The first ``stored_count`` rows are stored.
        """
        places = np.arange(table.num_rows)
        if table.num_rows == stored_count:
            return places
        order_by = self.spec.order_by
        further_columns = [
            field.name for field in table.schema if field.name not in order_by and is_ordered(field.type)
        ]
        return np.lexsort((_rank_rows(table, further_columns), places >= stored_count, _rank_rows(table, order_by)))

    def _join_rows(self, rows: pa.Table, places: IndexArray, table: pa.Table) -> pa.Table:
        """Return rows of the stream, each joined with the row of ``table`` at its place; -1 for no match."""
        spec = self.spec
        is_emitted: BoolArray = places >= (_NO_MATCH if spec.keeps_unmatched else 0)
        rows = rows.filter(pa.array(is_emitted))
        places = places[is_emitted]
        matches = places >= 0
        stream_columns = rows.select([*spec.keys.names, *spec.stream_columns.names]).columns
        table_columns = table.take(pa.array(places, mask=~matches)).columns
        return pa.table([*stream_columns, *table_columns, pa.array(matches)], schema=spec.output)


def _rank_rows(table: pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return an integer per row in the order of Spark by these columns, nulls first."""
    if not names:
        return np.zeros(table.num_rows, np.int64)
    return rank_values(pa.StructArray.from_arrays([one_array(table.column(name)) for name in names], list(names)))
