"""Check that state can store columns of a Spark type, as values or as keys.

Types are read from Spark's JSON. An error names the user's column, the type as Spark writes it, and the remedy.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from riffle_spark.errors import ConfigError

Position = Literal["value", "key", "order", "declared"]
"""What a column is used for: stored as a value, grouped by, compared, or declared for state by a function."""

_COLLATIONS: Final = "__COLLATIONS"
_COLLATED: Final = re.compile(r"string collate (\w+)", re.IGNORECASE)
_BINARY: Final = "UTF8_BINARY"
_MONTHS: Final = re.compile(r"interval (year|month)( to month)?")
_BOUNDED: Final = re.compile(r"(char|character|varchar)\b")
_NANOSECONDS: Final = re.compile(r"timestamp_(ltz|ntz)\([7-9]\)")
_SHAPE: Final = re.compile(r"(geometry|geography)\b")
_VOID: Final = "void"
_PLAIN: Final = "CAST({0} AS STRING COLLATE UTF8_BINARY)"
_LOWER_CASE: Final = f"lower({_PLAIN})"

_REMEDIES: Final[Mapping[str, str]] = {
    "months": "Keep the number of months: extract(YEAR FROM {0}) * 12 + extract(MONTH FROM {0}). "
    "make_ym_interval(0, months) restores the interval.",
    "nanoseconds": "Keep the text: CAST({0} AS STRING). CAST(text AS TIMESTAMP_LTZ(9)) restores the time, or "
    "TIMESTAMP_NTZ(9) for a time without a zone.",
    "shape_key": "Use st_asbinary({0}).",
    "shape_order": "Use st_asbinary({0}).",
    "shape_declared": "Declare a BINARY, and store its well-known binary.",
    "calendar": "Keep the text: CAST({0} AS STRING). CAST(text AS INTERVAL) restores the interval.",
    "udt": "Convert it to a plain type before the operator, and back after it. For vectors use vector_to_array({0}) "
    "and array_to_vector.",
    "same_fields": "Give its fields different names: named_struct('a', x, 'b', y).",
    "void_inside": "Cast the column to a type without void, for example to STRING.",
    "collated_key": f"Use {_PLAIN} to compare bytes, lower(...) of it to ignore case, or rtrim(...) of it to ignore "
    "trailing spaces.",
    "collated_order": f"Compare {_LOWER_CASE} instead, for example max_by({{0}}, {_LOWER_CASE}) for max({{0}}).",
    "collated_declared": "Declare a plain STRING.",
    "bounded_declared": "Declare a plain STRING, and check the length before you store a value.",
    "void_compared": "Cast it to a type: CAST({0} AS STRING).",
    "variant_key": "Use to_json({0}) or some of its fields.",
    "variant_declared": "Declare a STRING, and store to_json(value).",
}


def _type_error(path: str, type_name: str, remedy: str, where: str = "") -> ConfigError:
    """Return the error for a column, or a part of a column, at ``path`` with a type that state cannot keep."""
    return ConfigError(
        f"Column {path!r} has type {type_name}, which state cannot keep.",
        remedy=f"Use a type that state can keep. {remedy}",
        where=where,
        id="RIFFLE-0204",
    )


def void_error(path: str, where: str = "") -> ConfigError:
    """Return the error for a part of a nested type at ``path`` that has type void.

    Arrow cannot build lists of it reliably.
    """
    return _type_error(path, _VOID, _REMEDIES["void_inside"], where)


def find_type_remedy(name: str, path: str, position: Position) -> str | None:
    """Return the remedy if state cannot keep the type with this name at a position (value, key, order); ``None`` if it
    can. ``path`` is the column's.
    """
    reason = _find_reason(name.lower(), position)
    return None if reason is None else _REMEDIES[reason].format(path)


def _find_reason(name: str, position: Position) -> str | None:
    """Return the reason why state cannot store a type at this position; ``None`` if it can."""
    collation = _COLLATED.fullmatch(name)
    if collation is not None:
        is_plain = position == "value" or collation[1].upper() == _BINARY
        return None if is_plain else f"collated_{position}"
    if _MONTHS.fullmatch(name):
        return "months"
    if _NANOSECONDS.fullmatch(name):
        return "nanoseconds"
    if position != "value" and _SHAPE.match(name):
        return f"shape_{position}"
    if position == "declared" and _BOUNDED.match(name):
        return "bounded_declared"
    special = {"interval": "calendar"}
    if position not in ("value", "order"):
        special["variant"] = f"variant_{position}"
    if position in ("key", "order"):
        special[_VOID] = "void_compared"
    return special.get(name)


def _check_name(name: str, path: str, position: Position, where: str) -> None:
    """Raise ``ConfigError`` if state cannot keep the type with this name at this position."""
    remedy = find_type_remedy(name, path, position)
    if remedy is not None:
        raise _type_error(path, name, remedy, where)


def _check_type(body: Any, path: str, position: Position, where: str) -> None:
    """Raise ``ConfigError`` if state cannot keep a type, given as Spark's JSON, or a type inside it.

    ``path`` is the column's.
    """
    if not isinstance(body, Mapping):
        _check_name(str(body), path, position, where)
    elif body.get("type") == "udt":
        class_name = str(body.get("class") or body.get("pyClass")).rpartition(".")[2]
        raise _type_error(path, f"{class_name} (a user-defined type)", _REMEDIES["udt"].format(path), where)
    elif body.get("type") == "array":
        _check_inner(body["elementType"], f"{path}.element", position, where)
    elif body.get("type") == "map":
        _check_inner(body["keyType"], f"{path}.key", position, where)
        _check_inner(body["valueType"], f"{path}.value", position, where)
    elif body.get("type") == "struct":
        if position != "key":  # The fields of a key are separate columns.
            _check_field_names(body, path, where)
        for field in body["fields"]:
            inner_path = f"{path}.{field['name']}"
            if field["type"] == _VOID:
                raise void_error(inner_path, where)
            _check_field(field, inner_path, position, where)


def _check_field_names(struct: Mapping[str, Any], path: str, where: str) -> None:
    """Raise ``ConfigError`` if two fields of a struct, given as Spark's JSON, have the same name.

    Spark cannot pass such a struct to Python workers.
    """
    names = [str(field["name"]) for field in struct["fields"]]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise _type_error(path, f"struct with two fields {repeated[0]!r}", _REMEDIES["same_fields"], where)


def _check_inner(body: Any, path: str, position: Position, where: str) -> None:
    """Raise ``ConfigError`` if state cannot keep the type of elements, map keys or map values."""
    if body == _VOID:
        raise void_error(path, where)
    _check_type(body, path, position, where)


def _check_field(field: Mapping[str, object], path: str, position: Position, where: str) -> None:
    """Raise ``ConfigError`` if state cannot keep the type or the collation of a field, given as Spark's JSON."""
    metadata = field.get("metadata")
    collations = metadata.get(_COLLATIONS) if isinstance(metadata, Mapping) else None
    for name in collations.values() if isinstance(collations, Mapping) else filter(None, [collations]):
        _check_name(f"string collate {str(name).rpartition('.')[2]}", path, position, where)
    _check_type(field["type"], path, position, where)


def check_columns(
    fields: Sequence[Mapping[str, object]],
    position: Position = "value",
    where: str = "",
    display_names: Mapping[str, str] | None = None,
) -> None:
    """Raise ``ConfigError`` for the first column with a type that state cannot keep.

    ``fields`` are the fields of a struct type's JSON. ``display_names`` maps internal column names to the user's names.
    """
    for field in fields:
        name = str(field["name"])
        _check_field(field, (display_names or {}).get(name, name), position, where)
