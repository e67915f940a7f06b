"""The recipes of docs/read-state.md run as written, with each installed library."""

from __future__ import annotations

import re

import pytest

from riffle_spark import Stateful, aggregate, count
from riffle_spark.testing import Harness
from tests.kit.pages import CHECKOUT, Block, blocks

PAGE = CHECKOUT / "docs" / "read-state.md"
RECIPES = [block for block in blocks(PAGE) if block.info == "python" and "(spark" not in block.code]
ROOT = "s3://bucket/state/visits"


def library_of(block: Block) -> str:
    """Return the library that a recipe is for."""
    modules = re.findall(r"^import (\w+)$", block.code, re.MULTILINE)
    return next((name for name in modules if name != "riffle_spark"), "pandas")


def test_there_is_a_recipe_for_each_library() -> None:
    """The page has a recipe for DuckDB, Polars and pandas. All read the same root."""
    assert [library_of(block) for block in RECIPES] == ["duckdb", "polars", "pandas"]
    assert all(ROOT in block.code for block in RECIPES)


@pytest.mark.parametrize("block", RECIPES, ids=library_of)
def test_a_recipe_reads_all_rows(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Each recipe reads one row per key. The DuckDB statement counts the rows."""
    pytest.importorskip(library_of(block))
    with Harness(Stateful("visits", "user", aggregate(visits=count())), "user string") as query:
        query.feed([{"user": f"user-{n}"} for n in range(30)])
        names: dict[str, object] = {"__name__": "recipe"}
        exec(compile(block.code.replace(ROOT, query.root), str(block), "exec"), names)
        frame = names.get("frame")
        if frame is None:
            printed = capsys.readouterr().out
            counts = [int(text) for text in re.findall(r"│\s+\d+ │\s+(\d+) │", printed)]
            assert sum(counts) == 30, printed
        else:
            assert len(frame) == 30  # type: ignore[arg-type]
