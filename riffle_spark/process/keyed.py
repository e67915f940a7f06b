"""The seam to computations that keep several state variables a key. Knows what is asked of one. Does not know any."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from riffle_spark.process.compute import Declared
from riffle_spark.process.processing import Processing, Times
from riffle_spark.state.variables import VariablesSchema

__all__ = ["Keyed"]


class Keyed(Protocol):
    """A processor's computation. A plain picklable object, made on the driver and called on executors."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare variables and output for these key and input columns; ``ConfigError`` if they do not fit."""
        ...

    def processing(self, schema: VariablesSchema, times: Times, where: str) -> Processing:
        """Return the processing of one slot in one batch; ``where`` is told with what the processor raises."""
        ...
