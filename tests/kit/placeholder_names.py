"""Plain names for the values in the templates of messages: ``{version}`` for ``tail.version``."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["CLOSE", "OPEN", "NamelessValueError", "braced", "name_values"]

OPEN = "\x02"
CLOSE = "\x03"
"""These characters enclose an expression in a template. Braces cannot, because they may be part of the text."""

_VALUE = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
_LABELS = frozenset({"name", "id", "__name__", "__qualname__", "shown", "text"})
"""Attributes that identify their object, so that the name of the object is the name of the value."""
_PARTS = frozenset({"type", "names", "seconds", "second", "error", "memory_bytes", "host"})
"""Attributes whose name means too little without the name of their object."""
_CONTAINERS = frozenset(
    {
        "values",
        "keys",
        "items",
        "strip",
        "lower",
        "upper",
        "removeprefix",
        "simpleString",
        "partition",
        "split",
        "replace",
    }
)
"""Methods after which the value is still the object, or its content."""
_MEASURES = frozenset({"type", "len", "max", "min", "sum", "next"})
"""Functions whose results differ from their argument."""
_READERS_NAMES = {"tail": "stored", "shown": "checkpoint", "spark": "checkpoint", "t": "task", "conf": "value"}
"""Names in the source that the messages replace by a name that the reader knows."""
_NEIGHBOURS = {(ast.Add, 1): "next_", (ast.Sub, 1): "previous_"}
"""The prefix of a version's name, by the number that is added to the version."""


class NamelessValueError(ValueError):
    """An expression in a message has no plain name. Assign it to a variable before the message."""


def braced(node: ast.expr) -> str:
    """Return an expression as a value of a template."""
    return OPEN + ast.unparse(node) + CLOSE


def name_values(texts: Iterable[str]) -> list[str]:
    """Return the texts with each value as a plain name in braces: one name per expression over all texts.

    Values whose short names are equal get the name of their object in front. Raises ``NamelessValueError``.
    """
    texts = list(texts)
    expressions = {
        expression: ast.parse(expression, mode="eval").body for t in texts for expression in _VALUE.findall(t)
    }
    names = {expression: _name(node) for expression, node in expressions.items()}
    counts = Counter(names.values())
    for expression, name in names.items():
        if counts[name] > 1:
            names[expression] = _name(expressions[expression], with_object=True)
    if wrong := [expression for expression, name in names.items() if not _PLAIN.fullmatch(name)]:
        raise NamelessValueError(f"{wrong} in {texts}")
    return [_VALUE.sub(lambda match: "{" + names[match[1]] + "}", text) for text in texts]


def _name(node: ast.expr, *, with_object: bool = False) -> str:
    """Return the plain name of a value, or an empty text if it has none."""
    node = _unwrapped(node)
    match node:
        case ast.Name(id=name):
            return _READERS_NAMES.get(name, name).strip("_").lower()
        case ast.Attribute():
            return _attribute_name(node, with_object)
        case ast.Call(func=ast.Name(id="type"), args=[inner]):
            return f"{_name(inner, with_object=with_object)}_type"
        case ast.Call(func=ast.Name(id="len"), args=[inner]):
            return f"number_of_{_name(inner, with_object=with_object)}"
        case ast.BinOp(right=ast.Constant(value=int(number))):
            version = _name(node.left, with_object=with_object)
            neighbour = _NEIGHBOURS.get((type(node.op), number))
            return f"{neighbour}{version}" if neighbour and version.endswith("version") else ""
    return ""


def _attribute_name(node: ast.Attribute, with_object: bool) -> str:
    attribute = _CAPITAL.sub("_", node.attr.strip("_")).lower()
    if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
        return _READERS_NAMES.get(attribute, attribute)
    owner = _name(node.value, with_object=with_object)
    if node.attr in _LABELS:
        return owner
    return f"{owner}_{attribute}" if owner and (with_object or attribute in _PARTS) else attribute


def _unwrapped(node: ast.expr) -> ast.expr:
    """Return the expression that a message shows: the list of a ``join``, or the argument of a formatting function."""
    inner: ast.expr | None = None
    match node:
        case ast.Subscript(value=inner) | ast.BoolOp(values=[inner, *_]):
            pass
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            inner = first.iter
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(attribute)), *_]):
            inner = ast.Attribute(owner, attribute)
        case (
            ast.Call(func=ast.Attribute(attr="join"), args=[inner]) | ast.Call(func=ast.Name(id="map"), args=[_, inner])
        ):
            pass
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _CONTAINERS:
            pass
        case ast.Call(func=ast.Name(id=function), args=[inner, *_]) if function not in _MEASURES:
            pass
        case _:
            return node
    return _unwrapped(inner)
