"""The structure check finds what exceeds its limits, and this checkout keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT
from tests.structure.__main__ import figures
from tests.structure.graph_page import draw_graph, replace_graph
from tests.structure.product import read_product

LONG_FILE = '"""Much."""\n' + "x = 1\n" * 510
LONG_FUNCTION = "def much():\n" + "    x = 1\n" * 60


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """Write a small package of these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "riffle_spark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def exceeded(checkout: Path) -> dict[str, list[str]]:
    """Return the figures over their limit with the places that exceed it."""
    return {figure.name: figure.places for figure in figures(checkout) if figure.is_over}


@pytest.mark.parametrize(
    ("files", "figure", "place"),
    [
        ({"part.py": LONG_FILE}, "lines of the largest file", "part"),
        ({"part.py": LONG_FUNCTION}, "lines of the largest function", "part:much:1"),
        (
            {"key.py": "import riffle_spark.part", "part.py": "from riffle_spark import key"},
            "import cycles between files",
            "key part",
        ),
        (
            {"a/key.py": "from riffle_spark.b.part import x", "b/other.py": "from riffle_spark.a import key"},
            "import cycles between packages",
            "a b",
        ),
    ],
)
def test_an_exceeded_limit_is_reported_with_its_place(
    tmp_path: Path, files: dict[str, str], figure: str, place: str
) -> None:
    """A figure over its limit names the place that exceeds it."""
    assert place in exceeded(write_package(tmp_path, {"b/part.py": "", **files}))[figure]


@pytest.mark.long
def test_this_checkout_keeps_its_limits() -> None:
    """No figure of this checkout exceeds its limit."""
    assert exceeded(CHECKOUT) == {}


def test_the_drawn_graph_is_up_to_date() -> None:
    """The picture in the architecture page is what the command draws."""
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    assert replace_graph(page, draw_graph(read_product(CHECKOUT))) == page
