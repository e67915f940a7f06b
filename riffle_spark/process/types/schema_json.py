"""The JSON of Spark's schemas as Arrow schemas. Knows what ``StructType.json()`` writes. Does not know Spark."""

from __future__ import annotations

import json

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.ddl import BARE, schema_of_fields, type_of_ddl
from riffle_spark.process.types.spark_types import list_of, map_of

__all__ = ["schema_of_json"]

_COLLATIONS = "__COLLATIONS"


def schema_of_json(text: str) -> pa.Schema:
    """Return the schema of a ``StructType``'s JSON; that of another type becomes one column named ``value``.

    Raises ``ConfigError`` for what cannot be read, and for what cannot be kept.
    """
    try:
        kind = _type_of(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"a schema cannot be read: {error}", remedy="give a StructType of types that can be kept", where=text[:200]
        ) from error
    return schema_of_fields(list(kind) if pa.types.is_struct(kind) else [pa.field(BARE, kind)], text)


def _type_of(body: object) -> pa.DataType:
    if isinstance(body, str):
        return type_of_ddl(body)
    if not isinstance(body, dict):
        raise TypeError(f"{body!r} is not a type")
    if body["type"] == "array":
        return list_of(_type_of(body["elementType"]), nullable=body["containsNull"])
    if body["type"] == "map":
        key, value = _type_of(body["keyType"]), _type_of(body["valueType"])
        return map_of(key, value, nullable=body["valueContainsNull"])
    if body["type"] != "struct":
        raise TypeError(f"{body['type']!r} is not a type that can be kept")
    return pa.struct([_field_of(field) for field in body["fields"]])


def _field_of(body: dict[str, object]) -> pa.Field:
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and _COLLATIONS in metadata:
        raise TypeError(f"column {body['name']!r} has a collation, which cannot be kept")
    return pa.field(str(body["name"]), _type_of(body["type"]), nullable=bool(body["nullable"]))
