"""The import graph in the architecture page is up to date."""

from __future__ import annotations

from tests.kit.folders import CHECKOUT
from tests.structure.graph_page import draw_graph, replace_graph
from tests.structure.product import read_product


def test_the_import_graph_of_the_page_is_up_to_date() -> None:
    """The graph in the architecture page is the one that `./run structure --draw` draws."""
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    assert replace_graph(page, draw_graph(read_product(CHECKOUT))) == page
