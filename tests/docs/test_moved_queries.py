"""Queries of the page that moves them answer the same with its one line as without; it names what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.spark.plans.plan_rules import REFUSED
from tests.kit.pages import CHECKOUT, Block, blocks, table_rows

PAGE = CHECKOUT / "docs" / "move-your-query.md"
BLOCKS = [block for block in blocks(PAGE) if block.info == "python moved"]
FOLDER = "/tmp/riffle-quickstart"
WRAPS = "riffle_spark.on("
QUERIES = 10


def test_the_table_has_every_term_that_is_refused() -> None:
    """Its reason and its way out stand beside it, as the list has them."""
    told = {row[0]: row[1:] for row in table_rows(PAGE)}
    wanted = {one.term: ["refused", f"{one.reason}; {one.way_out}"] for one in REFUSED.values()}
    assert {term: told.get(term) for term in wanted} == wanted


def _shown(block: Block, variables: dict[str, object], capfd: pytest.CaptureFixture[str]) -> str:
    """Run a block among what those before it left; return what it printed."""
    capfd.readouterr()
    exec(compile(block.code, str(block), "exec"), variables)
    return capfd.readouterr().out


def _before(block: Block, folder: Path, *, wrapped: bool) -> Block:
    """Return a block in a folder of its own, without the lines that wrap unless it is to have them."""
    lines = [line for line in block.code.splitlines() if wrapped or WRAPS not in line]
    return Block(block.page, block.line, block.info, "\n".join(lines).replace(FOLDER, str(folder)))


@pytest.mark.spark
@pytest.mark.newer_spark
def test_moved_queries_answer_what_they_did(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each block is run by Spark alone and then wrapped, in one session, and shows the same rows."""
    assert sum(WRAPS in block.code for block in BLOCKS) >= QUERIES
    spark.conf.set("spark.riffle.key_groups", "8")
    shown = list[list[str]]()
    for wrapped in (False, True):
        variables: dict[str, object] = {"__name__": "__main__"}
        folder = tmp_path / ("after" if wrapped else "before")
        shown.append([_shown(_before(block, folder, wrapped=wrapped), variables, capfd) for block in BLOCKS])
        assert spark.streams.active == []
    for block, before, after in zip(BLOCKS, *shown, strict=True):
        assert bool(before) == (WRAPS in block.code), block
        assert after == before, f"{block}\n{before}\n{after}"
