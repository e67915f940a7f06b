"""Read the committed state of a simulated query from the snapshots and deltas in the object store."""

import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.formats.arrow_values import readable_rows
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.state.schemas.variable_kinds import DUE, TIMER, VARIABLE, Variable

Key = tuple[object, ...]
"""The values of a key's columns."""


@dataclass(frozen=True, slots=True)
class CommittedState:
    """Reads an operator's committed state from the object store. Each call restores it into ``folder``."""

    operator: Operator
    objects: ObjectStore
    root: str
    folder: Path
    keys: Keys | None = None

    def log(self) -> Log:
        """Open the log."""
        log = Log(self.objects, self.root)
        log.open()
        return log

    def table(self) -> pa.Table:
        """Return the state as a snapshot stores it, sorted by key-group."""
        log = self.log()
        store = self.operator.store
        if log.tail is None:
            return self.operator.schema.part_schema().empty_table()
        schema = schema_of_text(store, self.operator.schema_after(log.tail.schemas, log.tail.epoch))
        entries = {key_group: entry for (name, key_group), entry in log.manifest.entries.items() if name == store}
        folder = self.folder / f"read-{uuid.uuid4().hex}"
        tables = restore_tables(schema, entries, Reader(self.objects, self.keys), folder).values()
        return pa.concat_tables([schema.part_schema().empty_table(), *tables])

    def columns(self) -> dict[Key, dict[str, object]]:
        """Return the state columns by key."""
        if self.operator.declared.variables is not None:
            raise ConfigError(
                "The operator has state variables, not state columns.",
                remedy="Name the variable, as in state('visits').",
                id="RIFFLE-0477",
            )
        keys = self.operator.schema.key.names
        return {tuple(row.pop(name) for name in keys): row for row in readable_rows(self.table())}

    def variable(self, name: str) -> dict[Key, object]:
        """Return a variable by key: a tuple, a list of tuples, or a dictionary from tuple to tuple."""
        declared = self._variables()[name]
        rows = self._rows(name)
        values: dict[Key, object] = {}
        for key, row in rows:
            element = row[declared.column]
            assert isinstance(element, dict)
            if declared.kind == "value":
                values[key] = tuple(element.values())
            elif declared.kind == "list":
                values.setdefault(key, []).append(tuple(element.values()))  # type: ignore[attr-defined]
            else:
                entries = values.setdefault(key, {})
                entries[tuple(element["key"].values())] = tuple(element["value"].values())  # type: ignore[index]
        return values

    def dues(self, name: str = TIMER) -> dict[Key, list[object]]:
        """Return, by key, when a variable's elements or the timers are due (ms); ``None`` for never."""
        dues: dict[Key, list[object]] = {}
        for key, row in self._rows(name):
            dues.setdefault(key, []).append(row[DUE])
        return dues

    def _rows(self, name: str) -> list[tuple[Key, dict[str, object]]]:
        """Return the (key, row) pairs of a variable's stored elements. Raises ``ConfigError`` for state columns."""
        self._variables()
        keys = self.operator.schema.key.names
        rows = [row for row in readable_rows(self.table()) if row[VARIABLE] == name]
        return [(tuple(row[key] for key in keys), row) for row in rows]

    def _variables(self) -> dict[str, Variable]:
        """Return the operator's state variables by name. Raises ``ConfigError`` if it has state columns instead."""
        if self.operator.declared.variables is None:
            raise ConfigError(
                "The operator has state columns, not state variables.",
                remedy="Use state() or table().",
                id="RIFFLE-0478",
            )
        return {variable.name: variable for variable in self.operator.declared.variables}
