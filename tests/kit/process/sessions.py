"""Sessions over a copy in memory, one per batch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from riffle_spark.process.processors.cells import declare_variables
from riffle_spark.process.processors.list_cells import ListCells
from riffle_spark.process.processors.map_cells import MapCells
from riffle_spark.process.processors.session import Session
from riffle_spark.process.processors.value_cells import ValueCells
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.process.memory_reading import MemoryReading

KEY = pa.schema([("k", pa.string())])


def value(name: str, fields: str, ttl_ms: int | None = None) -> Variable:
    """Return a value variable."""
    return Variable(name, "value", schema_of_ddl(fields), None, ttl_ms)


def list_of(name: str, fields: str, ttl_ms: int | None = None) -> Variable:
    """Return a list variable."""
    return Variable(name, "list", schema_of_ddl(fields), None, ttl_ms)


def map_of(name: str, key: str, fields: str, ttl_ms: int | None = None) -> Variable:
    """Return a map variable."""
    return Variable(name, "map", schema_of_ddl(fields), schema_of_ddl(key), ttl_ms)


class Store:
    """The state of one key-group, and the session of its current batch."""

    def __init__(self, *variables: Variable, indexed: bool = False, key: pa.Schema = KEY) -> None:
        self.schema = VariableColumns("s", key, variables, indexed)
        self.reading = MemoryReading(self.schema)
        self.session: Session

    def batch(self, *keys: object, now_ms: int = 0) -> Session:
        """Begin a batch of these keys, and return its session with the first key selected."""
        rows = [key if isinstance(key, tuple) else (key,) for key in keys]
        columns = zip(*rows, strict=True) if rows else [[] for _ in self.schema.key]
        table = pa.table([pa.array(c, t) for c, t in zip(columns, self.schema.key.types, strict=True)], self.schema.key)
        self.session = Session(self.schema, declare_variables(self.schema), self.reading.held, table, now_ms)
        if rows:
            self.session.select_key(0)
        return self.session

    def commit(self) -> pa.Table:
        """End the batch, apply its delta to the copy, and return the delta."""
        changes = self.session.changes()
        self.reading.fold(changes)
        return changes

    def value(self, name: str) -> ValueCells:
        """Return the cells of a value variable."""
        cells = self.session.cells[name]
        assert isinstance(cells, ValueCells)
        return cells

    def list(self, name: str) -> ListCells:
        """Return the cells of a list variable."""
        cells = self.session.cells[name]
        assert isinstance(cells, ListCells)
        return cells

    def map(self, name: str) -> MapCells:
        """Return the cells of a map variable."""
        cells = self.session.cells[name]
        assert isinstance(cells, MapCells)
        return cells

    def timers(self, number: int) -> Sequence[int]:
        """Return the timers of the key with this number in the batch."""
        self.session.select_key(number)
        return list(self.session.timers.list())
