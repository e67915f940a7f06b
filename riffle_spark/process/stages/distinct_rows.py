"""What de-duplication computes on a slot: of the rows of a key the first one passes, ever or until the key is
forgotten. Knows specs. Does not know Spark's plans, nor how late rows are told.

Nothing is kept but the key and, within the watermark, until when: the time of the row that passed and the delay. Keys
whose time is over go by the store's own clockwork, and nobody is told of them.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode
from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.merging.merge_function import chosen
from riffle_spark.process.types.stage_specs import DistinctSpec

__all__ = ["DistinctRows"]

_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """A ``BlockComputation`` of de-duplication. A row passes if its key is not stored and no row before it in the batch
    has it, in the declared order. Output modes make no difference.
    """

    spec: DistinctSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare a state without columns, or with the one that says until when a key is kept."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        needed = tuple(name for name in spec.told.names if name not in key.names)
        assert {*needed, *self._times} <= set(rows.names), f"of {needed} the rows have {rows.names}"
        state = pa.schema([(spec.due, pa.timestamp("us", "UTC"))] if spec.is_kept_for_a_while else [])
        columns = tuple(dict.fromkeys([*needed, *self._times]))
        mode: TimeMode = "None" if spec.due is None else "EventTime"
        return Declared(state, spec.told, columns, per_key_group=False, time_mode=mode, due=spec.due)

    def __call__(self, batch: Batch) -> Update:
        """Let the first rows of new keys pass, and keep these keys."""
        first = chosen(batch.codes, batch.keys.num_rows, np.arange(batch.rows.num_rows), latest=False)
        new = np.flatnonzero(~batch.found)
        passed = batch.rows.take(pa.array(first[new]))
        state = batch.state.slice(0, 0)
        if self.spec.is_kept_for_a_while:
            state = pa.Table.from_arrays([self._until(passed)], schema=state.schema)
        return Update(passed.select(self.spec.told.names), new, state, deleted=new[:0])

    @property
    def forgets(self) -> bool:
        """See ``PlainExpiry``: a key is written once in its life."""
        return self.spec.due is not None

    @property
    def _times(self) -> list[str]:
        return [self.spec.time.column] if self.spec.time is not None else []

    def _until(self, rows: pa.Table) -> pa.Array:
        """Return until when the keys of rows are kept. A row without a time counts as one of 1970, as in Spark."""
        time = self.spec.time
        assert time is not None, "keys are kept for a while by a watermark"
        times = one_array(rows.column(time.column)).cast(pa.int64())
        return pc.add(pc.fill_null(times, 0), (time.delay_ms or 0) * _US_PER_MS).cast(pa.timestamp("us", "UTC"))
