"""Decide which Spark types state can keep, by the position of the column.

Types are read from Spark's JSON. An error names the user's column, the type as Spark writes it, and the remedy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from riffle_spark.errors import ConfigError

__all__ = ["JsonType", "Position", "RefusedType", "check_columns", "refused_types", "type_refusal"]

Position = Literal["value", "key", "order", "declared"]
"""What a column is used for: stored as a value, grouped by, compared, or declared for state by a function."""
JsonType = object
"""A type in Spark's JSON: a name or a mapping."""

_COLLATIONS: Final = "__COLLATIONS"
_COLLATED: Final = re.compile(r"string collate (\w+)", re.IGNORECASE)
_BINARY: Final = "UTF8_BINARY"
_MONTHS: Final = re.compile(r"interval (year|month)( to month)?")
_BOUNDED: Final = re.compile(r"(char|character|varchar)\b")
_VOID: Final = "void"

_REMEDIES: Final[Mapping[str, str]] = {
    "months": "Keep the number of months: extract(YEAR FROM {0}) * 12 + extract(MONTH FROM {0}). "
    "make_ym_interval(0, months) restores the interval.",
    "calendar": "Keep the text: CAST({0} AS STRING). CAST(text AS INTERVAL) restores the interval.",
    "udt": "Convert it to a plain type before the operator, and back after it. For vectors use vector_to_array({0}) "
    "and array_to_vector.",
    "void_inside": "Cast the column to a type without void, for example to STRING.",
    "collated_key": "Use its bytes: collation_key({0}), or lower(CAST({0} AS STRING COLLATE UTF8_BINARY)).",
    "collated_order": "Compare collation_key({0}) instead, for example max_by({0}, collation_key({0})) for max({0}).",
    "collated_declared": "Declare a plain STRING.",
    "bounded_declared": "Declare a plain STRING, and check the length before you store a value.",
    "void_compared": "Cast it to a type: CAST({0} AS STRING).",
    "variant_key": "Use to_json({0}) or some of its fields.",
    "variant_declared": "Declare a STRING, and store to_json(value).",
}


@dataclass(frozen=True, slots=True)
class RefusedType:
    """A type, or a part of one, that state cannot keep: its path in the column, Spark's name for it, and the remedy."""

    path: str
    type: str
    remedy: str

    @classmethod
    def of_void(cls, path: str) -> "RefusedType":
        """Return the refusal of void inside a type: Arrow cannot build lists of it reliably."""
        return cls(path, _VOID, _REMEDIES["void_inside"])

    def error(self, where: str = "") -> ConfigError:
        """Return the error for a column with such a type."""
        return ConfigError(
            f"Column {self.path!r} has type {self.type}, which state cannot keep",
            remedy=self.remedy,
            where=where,
            id="RIFFLE-0204",
        )


def type_refusal(name: str, path: str, position: Position) -> RefusedType | None:
    """Return why state cannot keep a type that is one name; ``None`` if it can."""
    reason = _reason(name.lower(), position)
    return None if reason is None else RefusedType(path, name, _REMEDIES[reason].format(path))


def _reason(name: str, position: Position) -> str | None:
    collation = _COLLATED.fullmatch(name)
    if collation is not None:
        is_plain = position == "value" or collation[1].upper() == _BINARY
        return None if is_plain else f"collated_{position}"
    if _MONTHS.fullmatch(name):
        return "months"
    if position == "declared" and _BOUNDED.match(name):
        return "bounded_declared"
    special = {"interval": "calendar"}
    if position not in ("value", "order"):
        special["variant"] = f"variant_{position}"
    if position in ("key", "order"):
        special[_VOID] = "void_compared"
    return special.get(name)


def refused_types(body: JsonType, path: str, position: Position) -> Iterator[RefusedType]:
    """Yield each part of a type that state cannot keep; ``path`` is the column's name."""
    if isinstance(body, str):
        refused = type_refusal(body, path, position)
        if refused is not None:
            yield refused
    elif isinstance(body, Mapping):
        yield from _refused_in(body, path, position)


def _refused_in(body: Mapping[str, object], path: str, position: Position) -> Iterator[RefusedType]:
    name = body.get("type")
    if name == "udt":
        class_name = str(body.get("class") or body.get("pyClass")).rpartition(".")[2]
        yield RefusedType(path, f"{class_name} (a user-defined type)", _REMEDIES["udt"].format(path))
    elif name == "array":
        yield from _refused_inside(body["elementType"], f"{path}.element", position)
    elif name == "map":
        yield from _refused_inside(body["keyType"], f"{path}.key", position)
        yield from _refused_inside(body["valueType"], f"{path}.value", position)
    elif name == "struct":
        fields = body["fields"]
        for field in fields if isinstance(fields, Sequence) else ():
            inner = f"{path}.{field['name']}"
            yield from (
                (RefusedType.of_void(inner),) if field["type"] == _VOID else _refused_field(field, inner, position)
            )


def _refused_inside(body: JsonType, path: str, position: Position) -> Iterator[RefusedType]:
    yield from (RefusedType.of_void(path),) if body == _VOID else refused_types(body, path, position)


def _refused_field(field: Mapping[str, object], path: str, position: Position) -> Iterator[RefusedType]:
    metadata = field.get("metadata")
    collations = metadata.get(_COLLATIONS) if isinstance(metadata, Mapping) else None
    for name in collations.values() if isinstance(collations, Mapping) else filter(None, [collations]):
        refused = type_refusal(f"string collate {str(name).rpartition('.')[2]}", path, position)
        if refused is not None:
            yield refused
    yield from refused_types(field["type"], path, position)


def check_columns(
    fields: Sequence[Mapping[str, object]],
    position: Position = "value",
    where: str = "",
    display_names: Mapping[str, str] | None = None,
) -> None:
    """Raise ``ConfigError`` for the first column whose type state cannot keep.

    ``fields`` are the fields of a struct type's JSON. ``display_names`` maps internal column names to the user's names.
    """
    for field in fields:
        name = str(field["name"])
        for refused in _refused_field(field, (display_names or {}).get(name, name), position):
            raise refused.error(where)
