"""Schemas of stores as the log keeps them. Knows their text, and what they may become between two runs. Does not know
operators' input.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.conform import widens
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variables import Variable, VariableColumns

__all__ = ["Columns", "can_become", "check_schemas", "kept", "stored_schema"]

Columns: TypeAlias = PlainColumns | VariableColumns


def kept(schema: Columns) -> dict[str, str]:
    """Return a store's schemas as a record keeps them."""
    if isinstance(schema, PlainColumns):
        text = f"{_text(schema.key)} | {_text(schema.state)}"
        return {"key": _packed(schema.key), "state": _packed(schema.state), "text": text}
    variables = ", ".join(map(_described, schema.variables))
    return {
        "key": _packed(schema.key),
        "variables": json.dumps([_variable_to_json(variable) for variable in schema.variables]),
        "indexed": json.dumps(schema.indexed),
        "text": f"{_text(schema.key)} | {variables or 'no variable'}",
    }


def stored_schema(store: str, stored: Mapping[str, str]) -> Columns:
    """Return a store's schema from what ``kept`` gave a record."""
    if "variables" not in stored:
        return PlainColumns(store, _unpacked(stored["key"]), _unpacked(stored["state"]))
    variables = tuple(_variable_from_json(row) for row in json.loads(stored["variables"]))
    return VariableColumns(store, _unpacked(stored["key"]), variables, indexed=json.loads(stored["indexed"]))


def check_schemas(stored: Mapping[str, Mapping[str, str]], operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` if a stored schema cannot become the one an operator has now; both are shown."""
    for operator in operators:
        before = stored.get(operator.store)
        if before is not None and not can_become(stored_schema(operator.store, before), operator.schema):
            raise ConfigError(
                f"the state of store {operator.store!r} has another schema\n  stored:   {before['text']}"
                f"\n  declared: {kept(operator.schema)['text']}",
                remedy="keep the key's columns; add columns that may be null, leave some out, or make types wider; "
                "for any other change use another store name",
                where=operator.store,
            )


def _variable_to_json(variable: Variable) -> list[object]:
    key = None if variable.key is None else _packed(variable.key)
    return [variable.name, variable.kind, _packed(variable.value), key, variable.ttl_ms]


def _variable_from_json(row: Sequence[object]) -> Variable:
    name, kind, value, key, ttl_ms = row
    return Variable(name, kind, _unpacked(value), None if key is None else _unpacked(key), ttl_ms)  # type: ignore[arg-type]


def _described(variable: Variable) -> str:
    key = "" if variable.key is None else f"({_text(variable.key)}) to "
    lives = "" if variable.ttl_ms is None else f" for {variable.ttl_ms} ms"
    return f"{variable.kind} {variable.name}: {key}({_text(variable.value)}){lives}"


def _unpacked(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _packed(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


_UNITS = ("s", "ms", "us", "ns")


def can_become(before: PlainColumns | VariableColumns, now: PlainColumns | VariableColumns) -> bool:
    """Tell whether state that was written with ``before`` can be read with ``now``."""
    if before.key != now.key:
        return False
    if isinstance(before, PlainColumns) and isinstance(now, PlainColumns):
        return _fields_can(before.state, now.state)
    if isinstance(before, VariableColumns) and isinstance(now, VariableColumns):
        known = {variable.name: variable for variable in before.variables}
        both = [(known[one.name], one) for one in now.variables if one.name in known]
        return before.indexed <= now.indexed and all(_variable_can(old, new) for old, new in both)
    return False


def _variable_can(before: Variable, now: Variable) -> bool:
    return before.kind == now.kind and before.key == now.key and _fields_can(before.value, now.value)


def _fields_can(before: pa.Schema, now: pa.Schema) -> bool:
    return all(
        _widens(before.field(field.name).type, field.type) if field.name in before.names else field.nullable
        for field in now
    )


def _widens(before: pa.DataType, now: pa.DataType) -> bool:
    """Tell whether every value of one type is one of the other; a time must not lose its fractions."""
    if pa.types.is_timestamp(before) and pa.types.is_timestamp(now) and before.tz == now.tz:
        return _UNITS.index(before.unit) <= _UNITS.index(now.unit)
    return not pa.types.is_null(before) and widens(before, now)
