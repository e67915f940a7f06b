"""What the columns of a store may become between two runs. Pure; knows schemas only.

A column may be added if it may be null, left out, moved, or made of a wider type; so may a field of a state variable,
and a variable as a whole. The key's columns stay as they are, and so does what kind a variable is. State with timers
stays with timers. Nothing is rewritten: parts that were written before are fitted when they are read.
"""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.process.conform import widens
from riffle_spark.state.schema import StoreSchema
from riffle_spark.state.variables import Variable, VariablesSchema

__all__ = ["can_become"]

_UNITS = ("s", "ms", "us", "ns")


def can_become(before: StoreSchema | VariablesSchema, now: StoreSchema | VariablesSchema) -> bool:
    """Tell whether state that was written with ``before`` can be read with ``now``."""
    if before.key != now.key:
        return False
    if isinstance(before, StoreSchema) and isinstance(now, StoreSchema):
        return _fields_can(before.state, now.state)
    if isinstance(before, VariablesSchema) and isinstance(now, VariablesSchema):
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
