"""The queries of the page that moves them answer the same with its one line as without."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.pages import CHECKOUT, Block, blocks

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

BLOCKS = [block for block in blocks(CHECKOUT / "docs" / "move-your-query.md") if block.info == "python moved"]
FOLDER = "/tmp/riffle-quickstart"
WRAPS = "riffle_spark.on("
QUERIES = 8


def _shown(block: Block, variables: dict[str, object], capfd: pytest.CaptureFixture[str]) -> str:
    """Run a block among what those before it left; return what it printed."""
    capfd.readouterr()
    exec(compile(block.code, str(block), "exec"), variables)
    return capfd.readouterr().out


def _before(block: Block, folder: Path, *, wrapped: bool) -> Block:
    """Return a block in a folder of its own, without the lines that wrap unless it is to have them."""
    lines = [line for line in block.code.splitlines() if wrapped or WRAPS not in line]
    return Block(block.page, block.line, block.info, "\n".join(lines).replace(FOLDER, str(folder)))


def test_moved_queries_answer_what_they_did(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each block is run by Spark alone and then wrapped, in one session, and shows the same rows."""
    assert sum(WRAPS in block.code for block in BLOCKS) >= QUERIES
    shown = list[list[str]]()
    for wrapped in (False, True):
        variables: dict[str, object] = {"__name__": "__main__"}
        folder = tmp_path / ("after" if wrapped else "before")
        shown.append([_shown(_before(block, folder, wrapped=wrapped), variables, capfd) for block in BLOCKS])
        assert spark.streams.active == []
    for block, before, after in zip(BLOCKS, *shown, strict=True):
        assert bool(before) == (WRAPS in block.code), block
        assert after == before, f"{block}\n{before}\n{after}"
