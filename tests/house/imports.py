"""The product's modules and what they import, read from their source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Module", "Product", "cycles", "read_product"]

PACKAGE = "riffle_spark"


@dataclass(frozen=True)
class Module:
    """One file: its name below the package (``state.log.paths``), its lines and its syntax tree."""

    name: str
    lines: int
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder it lies in; the package itself is the room ``""``."""
        return self.name.rpartition(".")[0]

    @cached_property
    def imports(self) -> tuple[ast.Import | ast.ImportFrom, ...]:
        """Return its import statements, wherever they stand."""
        return tuple(node for node in ast.walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom))

    def imported(self) -> Iterator[tuple[str, str]]:
        """Return what it imports: (module, name in it), with no name where a module is imported."""
        for node in self.imports:
            if isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", alias.name) for alias in node.names)
            else:
                yield from ((alias.name, "") for alias in node.names)


@dataclass(frozen=True)
class Product:
    """All modules by name, ``__init__`` files apart."""

    modules: Mapping[str, Module]
    inits: Mapping[str, Module]

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """Return which modules each module imports."""
        return {name: set(self._ours(module)) - {name} for name, module in self.modules.items()}

    def _ours(self, module: Module) -> Iterator[str]:
        for source, name in module.imported():
            if source.split(".")[0] == PACKAGE:
                path = source.split(".")[1:]
                found = [".".join(part) for part in ([*path, name], path) if ".".join(part) in self.modules]
                yield from found[:1]

    @cached_property
    def rooms(self) -> dict[str, list[str]]:
        """Return the modules of each room."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, module in sorted(self.modules.items()):
            found[module.room].append(name)
        return dict(found)

    @cached_property
    def room_graph(self) -> dict[str, set[str]]:
        """Return which rooms each room imports. A module of the package itself is a room of its own."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.graph.items():
            found[self.home(name)] |= {self.home(one) for one in imported} - {self.home(name)}
        return dict(found)

    def home(self, name: str) -> str:
        """Return a module's room, or the module itself where it lies in the package's own folder."""
        return name.rpartition(".")[0] or name


def read_product(checkout: Path) -> Product:
    """Read all modules of the package below a checkout."""
    found: dict[str, Module] = {}
    inits: dict[str, Module] = {}
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(checkout / PACKAGE).with_suffix("").parts)
        text = path.read_text()
        kind = inits if path.name == "__init__.py" else found
        kind[name] = Module(name, text.count("\n"), ast.parse(text))
    return Product(found, inits)


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the nodes that can be reached from themselves, those of one cycle together."""
    reached = {node: _reached(graph, node) for node in graph}
    found: list[list[str]] = []
    for node in sorted(graph):
        if node in reached[node] and not any(node in one for one in found):
            found.append(sorted(other for other in reached[node] if node in reached.get(other, ())))
    return found


def _reached(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.get(node, ())
    return seen
