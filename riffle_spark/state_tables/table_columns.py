"""The columns of a store's state as a table.

| column | role in the field's metadata | in tables of |
| --- | --- | --- |
| the key's columns | ``key`` | all stores |
| the state's columns, or the fields of a variable's value | ``state`` | all but timers |
| the fields of a map's key | ``map_key`` | maps |
| ``index``, int64 | ``index``: the place of an element, ascending | lists |
| ``key_group``, int32 | ``key_group`` | all stores |
| ``version``, int64 | ``version``: the batch since which the row has not changed | all stores |
| ``due_ms``, int64 | ``due``: when the row expires (ms), null for never; ``timer``: a timer's time | all stores |

A column whose name is taken gets a leading underscore.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import TIMER, Variable
from riffle_spark.state.schemas.variables import VariableColumns

ROLE: Final = b"riffle.role"
"""The key of a field's metadata that has the role of the column."""
_MEANING: Final = b"riffle.meaning"
"""The key of a field's metadata that has the meaning of a column of a wrapped query."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table of state.

    ``content`` are the columns before ``key_group``, ``version`` and ``due_ms``. The latter names may differ, because
    names are unique. ``due_role`` is ``timer`` in a table of timers.
    """

    content: pa.Schema
    key_group: str
    version: str
    due: str
    due_role: bytes

    def make_schema(self, metadata: Mapping[bytes, bytes]) -> pa.Schema:
        """Return the schema of the table, with this metadata."""
        added = [
            pa.field(self.key_group, pa.int32(), nullable=False, metadata={ROLE: b"key_group"}),
            pa.field(self.version, pa.int64(), nullable=False, metadata={ROLE: b"version"}),
            pa.field(self.due, pa.int64(), metadata={ROLE: self.due_role}),
        ]
        return pa.schema([*self.content, *added], metadata=dict(metadata))


def columns_of_plain(schema: PlainColumns, meanings: Mapping[str, str]) -> TableColumns:
    """Return the columns of a store with one row per key. ``meanings`` describe columns of a wrapped query."""
    fields = [_with_role(field, b"key", meanings) for field in schema.key]
    fields += [_with_role(field, b"state", meanings) for field in schema.state]
    return _with_unique_names(fields, b"due")


def columns_of_variable(schema: VariableColumns, name: str) -> TableColumns:
    """Return the columns of a variable, or of the timers for ``TIMER``."""
    fields = [_with_role(field, b"key", {}) for field in schema.key]
    if name != TIMER:
        fields += _variable_fields(schema.by_name[name])
    return _with_unique_names(fields, b"timer" if name == TIMER else b"due")


def _variable_fields(variable: Variable) -> list[pa.Field]:
    """Return the fields of a variable's elements: the map's key or the index, and the value."""
    fields = [_with_role(field, b"map_key", {}) for field in variable.key or ()]
    if variable.kind == "list":
        fields.append(pa.field("index", pa.int64(), nullable=False, metadata={ROLE: b"index"}))
    return [*fields, *(_with_role(field, b"state", {}) for field in variable.value)]


def _with_role(field: pa.Field, role: bytes, meanings: Mapping[str, str]) -> pa.Field:
    """Return a field with its role and its meaning in its metadata."""
    meaning = meanings.get(field.name)
    metadata = {ROLE: role} if meaning is None else {ROLE: role, _MEANING: meaning.encode()}
    return field.with_metadata(metadata)


def _with_unique_names(fields: list[pa.Field], due_role: bytes) -> TableColumns:
    """Return the columns with unique names. The first of several fields with one name keeps it."""
    used_names: set[str] = set()
    content: list[pa.Field] = []
    for field in fields:
        content.append(field.with_name(_make_unique(field.name, used_names)))
        used_names.add(content[-1].name)
    used_names = {name.lower() for name in used_names}  # Spark's columns differ in more than their case
    key_group, version, due = (_make_unique(name, used_names) for name in ("key_group", "version", "due_ms"))
    return TableColumns(pa.schema(content), key_group, version, due, due_role)


def _make_unique(name: str, used_names: Set[str]) -> str:
    """Return the name with as many underscores before it as make it unique."""
    while name in used_names:
        name = f"_{name}"
    return name
