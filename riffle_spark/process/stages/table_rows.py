"""What a join of a stream with a table computes on a slot: the table has the last row of each key, and each row of the
stream is answered in its own batch with what the table has for it then. Knows specs. Does not know Spark's plans.

Changes of a batch count before its other rows, in whatever order they came: a batch that runs again answers the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, BoolArray, Declared, IndexArray, Update
from riffle_spark.process.blocks.folding import hold
from riffle_spark.process.merging.merged_picks import is_ordered, ranks
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.state.formats.arrow_casts import cast_table

__all__ = ["TableRows"]


@dataclass(frozen=True, slots=True)
class TableRows:
    """A ``BlockComputation`` of such a join. Of a key's rows the last one is kept, in the order of what ``by`` names;
    of two that are alike there that of the later batch, and in one batch the one that is greater in its other columns.
    Output modes make no difference.
    """

    spec: TableSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the table's columns as state."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        needed = (spec.is_change, *spec.told.names, *spec.kept.names)
        assert set(needed) <= set(rows.names), f"of {needed} the rows have {rows.names}"
        kept = pa.schema([field.with_nullable(True) for field in spec.kept])
        return Declared(kept, spec.answer, needed, per_key_group=False)

    def __call__(self, batch: Batch) -> Update:
        """Let the changes in, and answer all other rows."""
        is_change = hold(one_array(batch.rows.column(self.spec.is_change)))
        changes = batch.rows.filter(pa.array(is_change)).select(self.spec.kept.names)
        stored = np.flatnonzero(batch.found)
        table = pa.concat_tables([batch.state.take(pa.array(stored)), cast_table(changes, batch.state.schema)])
        table, owners = table.combine_chunks(), np.concatenate([stored, batch.codes[is_change]])
        order, places = self._order(table, len(stored)), np.full(batch.keys.num_rows, -1)
        places[owners[order]] = order  # the last one of a key stays
        changed = np.flatnonzero(places >= len(stored))
        answers = self._answers(batch.rows, np.where(is_change, -2, places[batch.codes]), table)
        return Update(answers, changed, table.take(pa.array(places[changed])), deleted=changed[:0])

    def _order(self, table: pa.Table, stored: int) -> IndexArray:
        """Return the places of rows in their order; the first ones, so many as are stored, are of earlier batches."""
        places, spec = np.arange(table.num_rows), self.spec
        if table.num_rows == stored:
            return places
        others = [field.name for field in spec.kept if field.name not in spec.by and is_ordered(field.type)]
        return np.lexsort((_ranks(table, others), places >= stored, _ranks(table, spec.by)))

    def _answers(self, rows: pa.Table, places: IndexArray, table: pa.Table) -> pa.Table:
        """Return rows with those of the table at these places; -1 is nowhere, and less is no row of the stream."""
        spec = self.spec
        is_told: BoolArray = places >= (-1 if spec.alone else 0)
        rows, places = rows.filter(pa.array(is_told)), places[is_told]
        found = places >= 0
        own = rows.select([*spec.keys.names, *spec.told.names]).columns
        columns = [*own, *table.take(pa.array(places, mask=~found)).columns, pa.array(found)]
        return pa.table(columns, schema=spec.answer)


def _ranks(table: pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return numbers that are ordered as Spark orders rows by these columns; a null is less than all else."""
    if not names:
        return np.zeros(table.num_rows, np.int64)
    return ranks(pa.StructArray.from_arrays([one_array(table.column(name)) for name in names], list(names)))
