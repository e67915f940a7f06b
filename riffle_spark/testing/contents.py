"""What a query has committed, read from the objects alone. Knows entries and schemas. Does not know batches."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.whole import restored
from riffle_spark.state.schemas.variables import DUE, TIMER, VARIABLE, Variable

__all__ = ["Contents", "Key"]

Key = tuple[object, ...]
"""The values of a key's columns."""


@dataclass(frozen=True, slots=True)
class Contents:
    """An operator's committed state. ``folder`` is where it is put together anew each time."""

    operator: Operator
    objects: ObjectStore
    root: str
    folder: Path

    def log(self) -> Log:
        """Return the log, opened."""
        log = Log(self.objects, self.root)
        log.open()
        return log

    def table(self) -> pa.Table:
        """Return the whole state: the columns of a snapshot, sorted by key-group."""
        schema, entries = self.operator.schema, self.log().manifest.entries
        mine = {key_group: entry for (store, key_group), entry in entries.items() if store == schema.store}
        folder = self.folder / f"read-{uuid.uuid4().hex}"
        tables = restored(schema, mine, Reader(self.objects, None), folder).values()
        return pa.concat_tables([schema.part_schema().empty_table(), *tables])

    def columns(self) -> dict[Key, dict[str, object]]:
        """Return a block's state columns by key."""
        if self.operator.declared.variables is not None:
            raise ConfigError(
                "the operator has state variables, not columns", remedy="name the variable: state('visits')"
            )
        keys = self.operator.schema.key.names
        return {tuple(row.pop(name) for name in keys): row for row in self.table().to_pylist()}

    def variable(self, name: str) -> dict[Key, object]:
        """Return a processor's variable by key: a tuple, a list of tuples, or a dictionary of tuples by tuples."""
        declared, rows = self._variables()[name], self._rows(name)
        found: dict[Key, object] = {}
        for key, row in rows:
            element = row[declared.column]
            assert isinstance(element, dict)
            if declared.kind == "value":
                found[key] = tuple(element.values())
            elif declared.kind == "list":
                found.setdefault(key, []).append(tuple(element.values()))  # type: ignore[attr-defined]
            else:
                of_key = found.setdefault(key, {})
                of_key[tuple(element["key"].values())] = tuple(element["value"].values())  # type: ignore[index]
        return found

    def dues(self, name: str = TIMER) -> dict[Key, list[object]]:
        """Return by key when a variable's elements, or the timers, are due (ms); ``None`` for never."""
        found: dict[Key, list[object]] = {}
        for key, row in self._rows(name):
            found.setdefault(key, []).append(row[DUE])
        return found

    def _rows(self, name: str) -> list[tuple[Key, dict[str, object]]]:
        self._variables()
        keys = self.operator.schema.key.names
        rows = [row for row in self.table().to_pylist() if row[VARIABLE] == name]
        return [(tuple(row[key] for key in keys), row) for row in rows]

    def _variables(self) -> dict[str, Variable]:
        if self.operator.declared.variables is None:
            raise ConfigError("the operator has columns, not state variables", remedy="look at state() or table()")
        return {variable.name: variable for variable in self.operator.declared.variables}
