"""A copy in memory, as a stack of runs: sessions read it, and deltas change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from riffle_spark.state.copies.elements import ElementRun, element_runs, merge_elements
from riffle_spark.state.copies.reading import CopyRuns, Reading
from riffle_spark.state.schemas.variables import VariableColumns

_RECORDED_CALLS = {"read_elements", "read_entry", "next_indexes", "find_due_elements", "find_due_time"}


class _RecordingReading(Reading):
    """A reading that records the names of the calls that it gets."""

    def __init__(self, schema: VariableColumns, copy: _RecordingRuns, keys: pa.Table) -> None:
        super().__init__(schema, copy, keys)
        self._calls = copy.calls

    def __getattribute__(self, name: str) -> Callable[..., Any]:
        if name in _RECORDED_CALLS:
            self._calls.append(name)
        attribute: Callable[..., Any] = super().__getattribute__(name)
        return attribute


@dataclass(frozen=True, slots=True)
class _RecordingRuns(CopyRuns):
    calls: list[str] = field(default_factory=list)

    def open_reading(self, schema: VariableColumns, keys: pa.Table) -> Reading:
        """See ``CopyRuns``."""
        return _RecordingReading(schema, self, keys)


class MemoryReading:
    """The state of a key-group as runs, which are merged after every ``merge_every`` deltas.

    ``calls`` records the calls.
    """

    def __init__(self, schema: VariableColumns, merge_every: int = 3) -> None:
        self.schema = schema
        self.runs: tuple[ElementRun, ...] = ()
        self.calls: list[str] = []
        self._merge_every = merge_every
        self._count = 0

    def fold(self, changes: pa.Table) -> None:
        """Apply the part of a delta."""
        assert changes.schema.equals(self.schema.part_schema(delta=True)), changes.schema
        self.runs = (*element_runs(self.schema.sealed(changes), self.schema), *self.runs)
        self._count += 1
        if self._count % self._merge_every == 0:
            self.runs = element_runs(merge_elements(self.schema, self.runs, bottom=self._count % 2 == 0), self.schema)

    @property
    def held(self) -> CopyRuns:
        """The copy from which sessions read."""
        return _RecordingRuns(self.runs, calls=self.calls)

    def rows(self) -> pa.Table:
        """Return the whole state as wide rows."""
        return self.schema.to_wide_rows(merge_elements(self.schema, self.runs, bottom=True))
