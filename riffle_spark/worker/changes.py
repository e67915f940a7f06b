"""What an attempt changed, as a delta will hold it. Knows the columns of a store. Does not know bytes or objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.state.schema import StoreSchema
from riffle_spark.worker.call import Result
from riffle_spark.worker.touched import Touched, spans_of

__all__ = ["Changes", "changes_of"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of a delta in key-group order, and the key-group of each; ``timers`` says when a key-group's earliest timer
    is due from now on (ms).
    """

    table: pa.Table
    key_groups: npt.NDArray[np.int32]
    timers: Mapping[int, int | None] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield each key-group that changed, with its rows."""
        for key_group, start, end in spans_of(self.key_groups):
            yield key_group, self.table.slice(start, end - start)


def changes_of(schema: StoreSchema, touched: Touched, result: Result) -> Changes:
    """Return key columns, new state and the deleted mark of every changed key, by key-group."""
    indices = np.concatenate([result.changed, result.deleted])
    state = result.state
    if len(result.deleted):
        nullable = pa.schema([field.with_nullable(True) for field in state.schema])
        gone = [pa.nulls(len(result.deleted), field.type) for field in nullable]
        state = pa.concat_tables([state.cast(nullable), pa.table(gone, schema=nullable)])
    mark = np.arange(len(indices)) >= len(result.changed)
    sort = np.argsort(indices, kind="stable")
    ordered = not len(result.deleted) and bool(np.all(np.diff(indices) > 0))
    if not ordered:
        indices, mark = indices[sort], mark[sort]
        state = state.take(sort)
    keys = touched.keys if len(indices) == touched.keys.num_rows else touched.keys.take(indices)
    columns = [*keys.columns, *state.columns, pa.array(mark)]
    table = pa.table(columns, schema=schema.part_schema(delta=True)).combine_chunks()
    return Changes(table, touched.key_groups[indices])
