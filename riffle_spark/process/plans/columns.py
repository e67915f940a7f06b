"""Columns of plans with their full types, from the JSON of Spark's schemas."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from riffle_spark.process.plans.plan_values import Expression

_COLLATIONS: Final = "__COLLATIONS"
_DELAY: Final = "spark.watermarkDelayMs"
_NAMES: Final = {
    **{"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"},
    "string collate UTF8_BINARY": "string",  # Spark 4.3 names this collation of strings that a query casts to it.
}
"""SQL names of types that have another name in JSON."""
_UNITS: Final = re.compile(r"interval|\btime\(")
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a plan: its attribute, or the alias that makes it, and the JSON of its field in the schema."""

    expression: Expression
    field: Mapping[str, object]

    @property
    def id(self) -> int:
        """Spark's id of the column's attribute (``exprId``)."""
        return self.expression.id

    @property
    def name(self) -> str:
        """The column's name in the schema."""
        return str(self.field["name"])

    @property
    def type(self) -> object:
        """The column's type in Spark's JSON."""
        return self.field["type"]

    @property
    def metadata(self) -> Mapping[str, object]:
        """The column's metadata."""
        metadata = self.field["metadata"]
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def is_struct(self) -> bool:
        """Whether the column is a struct."""
        return isinstance(self.type, Mapping) and self.type["type"] == "struct"

    @property
    def delay_ms(self) -> int | None:
        """The watermark delay in milliseconds if the column is an event time, else ``None``."""
        delay = self.metadata.get(_DELAY)
        return delay if isinstance(delay, int) else None

    @property
    def has_collation(self) -> bool:
        """Whether the column, or a string nested in it, has a collation."""
        return _COLLATIONS in json.dumps(self.field)

    @property
    def has_units(self) -> bool:
        """Whether the column may contain an interval or a time. Python workers lose its units or its precision."""
        return _UNITS.search(json.dumps(self.type)) is not None


def catalog_name(field: Mapping[str, object]) -> str:
    """Return the type of a JSON field as SQL text, in the form of Spark's ``catalogString``."""
    metadata = field.get("metadata")
    collations = metadata.get(_COLLATIONS) if isinstance(metadata, Mapping) else None
    return _type_name(field["type"], str(field["name"]), collations if isinstance(collations, Mapping) else {})


def _type_name(body: object, path: str, collations: Mapping[str, object]) -> str:
    """Return a type's JSON as SQL text.

    ``collations`` maps paths of nested strings to their collations, and ``path`` is that of the type.
    """
    if not isinstance(body, Mapping):
        name = str(body)
        if name == "string" and path in collations:
            name = f"string collate {str(collations[path]).rpartition('.')[2]}"
        return _NAMES.get(name, name)
    kind = body["type"]
    if kind == "array":
        return f"array<{_type_name(body['elementType'], f'{path}.element', collations)}>"
    if kind == "map":
        key = _type_name(body["keyType"], f"{path}.key", collations)
        return f"map<{key},{_type_name(body['valueType'], f'{path}.value', collations)}>"
    if kind == "struct":
        fields = (f"{field['name']}:{catalog_name(field)}" for field in body["fields"])
        return f"struct<{','.join(fields)}>"
    return _type_name(body.get("sqlType", kind), path, collations)


def quote_name(name: str) -> str:
    """Return a name as SQL, in backquotes if necessary."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"
