"""``./run structure``: measure the structure of the product. ``--draw`` draws the import graph into the docs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.kit.folders import CHECKOUT
from tests.structure.graph_page import draw_graph, replace_graph
from tests.structure.product import Module, find_cycles, read_product

__all__ = ["Figure", "figures", "main"]

PAGE = "docs/architecture.md"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 50


class Figure(NamedTuple):
    """One figure, its upper limit (``None``: no limit), and the places that exceed the limit."""

    name: str
    value: int
    limit: int | None
    places: list[str]

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"  (at most {self.limit})"
        return f"{self.name:.<52} {self.value}{limit}"

    @property
    def is_over(self) -> bool:
        """Whether the figure exceeds its limit."""
        return self.limit is not None and self.value > self.limit


def figures(checkout: Path) -> Iterator[Figure]:
    """Measure the package in a checkout."""
    product = read_product(checkout)
    modules = product.modules.values()
    yield Figure("files", len(product.modules), None, [])
    yield Figure("packages", len(product.packages), None, [])
    yield _largest("lines of the largest file", {module.name: module.lines for module in modules}, FILE_LINES_MAX)
    functions = {name: lines for module in modules for name, lines in _function_lines(module)}
    yield _largest("lines of the largest function", functions, FUNCTION_LINES_MAX)
    yield _cycles("import cycles between files", product.graph)
    yield _cycles("import cycles between packages", product.package_graph)


def _function_lines(module: Module) -> Iterator[tuple[str, int]]:
    """Yield each function and its number of lines without the docstring."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            yield f"{module.name}:{node.name}:{node.lineno}", lines


def _largest(name: str, sizes: dict[str, int], limit: int) -> Figure:
    return Figure(name, max(sizes.values(), default=0), limit, [key for key, size in sizes.items() if size > limit])


def _cycles(name: str, graph: dict[str, set[str]]) -> Figure:
    cycles = find_cycles(graph)
    return Figure(name, len(cycles), 0, [" ".join(cycle) for cycle in cycles])


def main(arguments: list[str]) -> int:
    """Print the figures and the places that exceed a limit. Return the number of exceeded limits."""
    if "--draw" in arguments:
        page = CHECKOUT / PAGE
        page.write_text(replace_graph(page.read_text(), draw_graph(read_product(CHECKOUT))))
    exceeded = 0
    for figure in figures(CHECKOUT):
        print(figure)
        if figure.is_over:
            exceeded += 1
            print(*(f"    {place}" for place in figure.places), sep="\n")
    return exceeded


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
