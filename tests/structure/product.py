"""The modules of the product and their imports, read from the source."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Module", "Product", "find_cycles", "read_product"]

PACKAGE = "riffle_spark"


@dataclass(frozen=True)
class Module:
    """One file: its name below ``riffle_spark`` (``state.log.paths``), its number of lines and its syntax tree."""

    name: str
    lines: int
    tree: ast.Module

    def imports(self) -> Iterator[tuple[str, str]]:
        """Yield each import as (module, imported name). The name is empty for ``import module``."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)


@dataclass(frozen=True)
class Product:
    """All modules by name, without ``__init__`` files."""

    modules: Mapping[str, Module]

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """The modules that each module imports."""
        return {name: set(self._imports_of(module)) - {name} for name, module in self.modules.items()}

    def _imports_of(self, module: Module) -> Iterator[str]:
        for source, name in module.imports():
            package, *path = source.split(".")
            if package == PACKAGE:
                candidates = (".".join([*path, name]), ".".join(path))
                yield from [candidate for candidate in candidates if candidate in self.modules][:1]

    @cached_property
    def packages(self) -> dict[str, list[str]]:
        """The modules of each package. The package ``""`` is ``riffle_spark`` itself."""
        packages: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.modules):
            packages[name.rpartition(".")[0]].append(name)
        return dict(packages)

    @cached_property
    def package_graph(self) -> dict[str, set[str]]:
        """The packages that each package imports. A module directly in ``riffle_spark`` counts as a package."""
        graph: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.graph.items():
            package = _package_or_module(name)
            graph[package] |= {_package_or_module(module) for module in imported} - {package}
        return dict(graph)


def _package_or_module(name: str) -> str:
    return name.rpartition(".")[0] or name


@functools.cache
def read_product(checkout: Path) -> Product:
    """Read all modules of ``riffle_spark`` in a checkout, once per process."""
    modules: dict[str, Module] = {}
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        if path.name != "__init__.py":
            name = ".".join(path.relative_to(checkout / PACKAGE).with_suffix("").parts)
            text = path.read_text()
            modules[name] = Module(name, text.count("\n"), ast.parse(text))
    return Product(modules)


def find_cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the import cycles, each as the sorted list of its nodes."""
    reached = {node: _reached_from(graph, node) for node in graph}
    cycles: list[list[str]] = []
    for node in sorted(graph):
        if node in reached[node] and not any(node in cycle for cycle in cycles):
            cycles.append(sorted(neighbour for neighbour in reached[node] if node in reached.get(neighbour, ())))
    return cycles


def _reached_from(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    reached: set[str] = set()
    pending = list(graph[start])
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += graph.get(node, ())
    return reached
