"""Draw the package graph into a page of the docs."""

from __future__ import annotations

from collections.abc import Mapping

from tests.structure.product import Product

__all__ = ["draw_graph", "replace_graph"]

BEGIN = "<!-- begin: made by `./run structure --draw` -->"
END = "<!-- end -->"


def draw_graph(product: Product) -> str:
    """Return a Mermaid graph of the packages. An arrow is omitted if a longer path leads to the same package."""
    graph = {
        package: {target for target in targets if target in product.packages}
        for package, targets in product.package_graph.items()
        if package in product.packages
    }
    lines = ["```mermaid", "graph TD"]
    lines += [f'    {_id(name)}["{name}<br/>{len(product.packages[name])} files"]' for name in sorted(graph)]
    for package, targets in sorted(_without_shortcuts(graph).items()):
        lines += [f"    {_id(package)} --> {_id(target)}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def replace_graph(page: str, graph: str) -> str:
    """Return the page with the text between the two markers replaced."""
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    return f"{start}{BEGIN}\n{graph}\n{END}{end}"


def _id(package: str) -> str:
    return package.replace(".", "_")


def _without_shortcuts(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    below = {package: _packages_below(graph, package) for package in graph}
    return {
        package: {t for t in targets if not any(t in below[target] for target in targets if target != t)}
        for package, targets in graph.items()
    }


def _packages_below(graph: Mapping[str, set[str]], package: str) -> set[str]:
    targets = graph.get(package, set())
    return targets.union(*(_packages_below(graph, target) for target in targets))
