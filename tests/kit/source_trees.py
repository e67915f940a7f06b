"""Parts of the syntax tree of a module, for the generator of ``docs/errors.md``."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "ArgumentsPassed",
    "assignments",
    "logged_values",
    "own_nodes",
    "results",
    "statements",
    "unpacked_calls",
    "walk_statements",
]

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""The fields of nodes that contain statements, in their order."""
_NOT_OWN = (ast.stmt, ast.expr_context)


def statements(
    tree: ast.AST, function: ast.FunctionDef | None = None
) -> Iterator[tuple[ast.stmt, ast.FunctionDef | None]]:
    """Yield each statement of a tree with the function that contains it."""
    blocks = (getattr(tree, name, ()) for name in _BLOCKS)
    for node in (child for block in blocks if isinstance(block, list) for child in block):
        inner = node if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.stmt):
            yield node, function
        yield from statements(node, inner)


def own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, except nodes of statements inside it and the parts of an f-string."""
    pending = _own_children(statement)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.JoinedStr):
            pending += _own_children(node)


def _own_children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes that are neither statements nor contexts, in reverse order."""
    children: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            children += [child for child in value if isinstance(child, ast.AST) and not isinstance(child, ast.stmt)]
        elif isinstance(value, ast.AST) and not isinstance(value, _NOT_OWN):
            children.append(value)
    children.reverse()
    return children


def walk_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and its statements, handlers and cases in the order of ``ast.walk``. Expressions are not visited."""
    pending = deque([tree])
    while pending:
        node = pending.popleft()
        for name in _BLOCKS:
            block = getattr(node, name, ())
            if isinstance(block, list):
                pending.extend(block)
        yield node


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield each assigned name with its last value. Text that is added to the name by ``+=`` is part of the value."""
    values: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            values[node.target.id] = node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in values:
            values[node.target.id] = ast.BinOp(values[node.target.id], ast.Add(), node.value)
    yield from values.items()


def unpacked_calls(function: ast.FunctionDef, name: str) -> Iterator[tuple[int, ast.Call]]:
    """Yield the calls whose results are unpacked to a variable, each with the position of the variable.

    If a loop unpacks each item of a result, its call is included.
    """
    assigned = dict(assignments(walk_statements(function)))
    for node in walk_statements(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.For):
            target, value = node.target, node.iter
        else:
            continue
        value = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
        value = value.body if isinstance(value, ast.IfExp) else value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Call):
            names = [element.id if isinstance(element, ast.Name) else "" for element in target.elts]
            yield from [(names.index(name), value)] if name in names else []


def results(function: ast.FunctionDef) -> Iterator[Sequence[ast.expr]]:
    """Yield the tuples that a function returns or yields."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return | ast.Yield) and isinstance(node.value, ast.Tuple):
            yield node.value.elts


def logged_values(nodes: Iterable[ast.AST]) -> Mapping[ast.expr, Sequence[ast.expr]]:
    """Return by argument the arguments that follow it in its call, for all calls among the nodes."""
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return {argument: call.args[index + 1 :] for call in calls for index, argument in enumerate(call.args)}


class ArgumentsPassed(ast.NodeTransformer):
    """Replaces the parameters of a function by the arguments of a call."""

    def __init__(self, arguments: Mapping[str, ast.expr]) -> None:
        self._arguments = arguments

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the argument for a parameter, or the name itself if it is not a parameter."""
        return self._arguments.get(node.id, node)
