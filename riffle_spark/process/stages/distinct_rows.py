"""De-duplication on a slot: the first row of each key passes. Further rows are dropped while the key is stored.

The state of a key is the key itself, and within the watermark its due time: the time of the row that passed plus the
delay. Expired keys are deleted without output.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode
from riffle_spark.columns import one_array
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.merging.merge_function import pick_places
from riffle_spark.process.types.stage_specs import DistinctSpec

_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """A ``BlockComputation`` of de-duplication.

    A row passes if its key is not stored and it is the key's first row of the batch, in the declared order. Output
    modes make no difference.
    """

    spec: DistinctSpec

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the state: no column, or the due time of the key."""
        spec = self.spec
        assert key.names == spec.keys.names, f"the key is {spec.keys.names}, not {key.names}"
        time_columns = [spec.time.column] if spec.time is not None else []
        payload_names = [name for name in spec.output.names if name not in key.names]
        columns = tuple(dict.fromkeys([*payload_names, *time_columns]))
        assert set(columns) <= set(rows.names), f"of {columns} the rows have {rows.names}"
        state = pa.schema([(spec.due, pa.timestamp("us", "UTC"))] if spec.stores_due else [])
        mode: TimeMode = "None" if spec.due is None else "EventTime"
        return Declared(state, spec.output, columns, per_key_group=False, time_mode=mode, due=spec.due)

    def __call__(self, batch: Batch) -> Update:
        """Emit the first rows of new keys, and store the keys."""
        first = pick_places(batch.codes, batch.keys.num_rows, np.arange(batch.rows.num_rows), latest=False)
        new = np.flatnonzero(~batch.has_state)
        passed = batch.rows.take(pa.array(first[new]))
        state = batch.state.slice(0, 0)
        if self.spec.stores_due:
            state = pa.Table.from_arrays([self._due_times(passed)], schema=state.schema)
        return Update(passed.select(self.spec.output.names), new, state, deleted=new[:0])

    @property
    def ignores_expiry(self) -> bool:
        """Always true: expired keys have no output, so they are deleted and counted without a call."""
        return self.spec.due is not None

    def _due_times(self, rows: pa.Table) -> pa.Array:
        """Return when the key of each row expires. As in Spark, a null time is 1970-01-01."""
        time = self.spec.time
        assert time is not None, "a stored due time needs a watermark"
        times = one_array(rows.column(time.column)).cast(pa.int64())
        return pc.add(pc.fill_null(times, 0), (time.delay_ms or 0) * _US_PER_MS).cast(pa.timestamp("us", "UTC"))
