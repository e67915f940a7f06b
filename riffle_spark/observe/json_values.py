"""Convert dataclasses to JSON and back, by the types of their fields.

Supported types of fields: ``int``, ``float``, ``str``, ``bool``, ``None``, literals, unions of these,
``tuple[X, ...]``, ``Mapping[str, X]``, and dataclasses of such fields.
"""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def to_plain(value: object) -> object:
    """Return a value as dictionaries, lists, numbers, texts and ``None``."""
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return value


def from_plain(kind: type[_T], plain: object) -> _T:
    """Return the value of type ``kind`` that ``to_plain`` converted.

    Fields that ``kind`` does not have are ignored, because a later version may have written them. Fields that are
    missing get their default. Raises ``TypeError`` or ``ValueError`` for other values, NaN and infinity included.
    """
    return cast(_T, _convert(kind, plain))


def _convert(kind: object, plain: object) -> object:
    """Return ``plain`` as a value of the type ``kind``."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal:
        if plain not in arguments:
            raise ValueError(f"{plain!r} is not one of {', '.join(map(repr, arguments))}")
        return plain
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, plain)
    if origin is tuple:
        return tuple(_convert_items(arguments[0], _checked(plain, list)))
    if origin is None and not is_dataclass(kind):
        return float(plain) if kind is float and type(plain) is int else _checked(plain, cast(type, kind))
    values = cast("dict[str, object]", _checked(plain, dict))
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        return cast(type, kind)(**{name: _convert(hints[name], values[name]) for name in hints if name in values})
    return dict(zip(values, _convert_items(arguments[1], list(values.values())), strict=True))  # a mapping


def _convert_union(kinds: tuple[object, ...], plain: object) -> object:
    """Return ``plain`` as a value of the first type of a union that fits."""
    if type(plain) in kinds:
        return _checked(plain, type(plain))
    for kind in kinds:
        try:
            return _convert(kind, plain)
        except (TypeError, ValueError):
            continue
    raise TypeError(f"{plain!r} has the wrong type")


def _convert_items(kind: object, items: object) -> list[object]:
    """Return all items as values of the type ``kind``. Long lists of plain numbers are checked at once."""
    plain_items = cast("list[object]", items)
    if kind in (int, str) and {*map(type, plain_items)} <= {kind}:
        return plain_items
    return [_convert(kind, item) for item in plain_items]


def _checked(plain: object, kind: type) -> object:
    """Return ``plain``.

    Raises ``TypeError`` if it is not exactly of type ``kind``, and ``ValueError`` for NaN and infinity, which Python's
    reader of JSON accepts.
    """
    if type(plain) is not kind:
        raise TypeError(f"{str(plain)[:80]!r} is not of type {kind.__name__}")
    if isinstance(plain, float) and not isfinite(plain):
        raise ValueError(f"{plain} is not a finite number")
    return plain


@cache
def _hints(kind: type) -> dict[str, object]:
    """Return the type of each field of a dataclass."""
    return dict(get_type_hints(kind))
