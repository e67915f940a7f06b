"""The queries of move-your-query.md return the same rows with riffle_spark as without.

The page lists what is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark.process.plans.rules import REFUSED
from tests.kit.pages import CHECKOUT, Block, blocks, table_rows
from tests.kit.quiet import no_warnings

PAGE = CHECKOUT / "docs" / "move-your-query.md"
BESIDE = tuple(CHECKOUT / "docs" / name for name in ("joins.md", "windows.md"))
"""Pages whose blocks use variables of the blocks of this page."""
BLOCKS = [block for block in blocks(PAGE) if block.info == "python moved"]
SHOWN = [block.code for block in blocks(PAGE) if block.info == "text shown"]
OWN, SHOWN_OWN = (
    [block for page in (PAGE, *BESIDE) for block in blocks(page) if block.info == info]
    for info in ("python own", "text own")
)
FOLDER = "/tmp/riffle-quickstart"
WRAPS = "riffle_spark.on("
QUERIES = 10
FEW = 2
"""The block that defines the helpers, and an aggregate over a window."""


def test_the_table_lists_every_refused_term() -> None:
    """The table of the page has each refused term with its reason and its remedy."""
    queries = {row[0]: row[1:] for row in table_rows(PAGE)}
    parts = [(*refused.problem.split(" is not supported, because "), refused.remedy) for refused in REFUSED.values()]
    rows = {term: [f"{reason[0].upper()}{reason[1:]} {remedy}"] for term, reason, remedy in parts}
    assert {term: queries.get(term) for term in rows} == rows


def _shown(block: Block, variables: dict[str, object], folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Run a block with the variables of the blocks before it. Return its output."""
    capfd.readouterr()
    with no_warnings():
        exec(compile(block.code.replace(FOLDER, str(folder)), str(block), "exec"), variables)
    return capfd.readouterr().out


def _alone(block: Block) -> Block:
    """Return a block without the lines that call `riffle_spark.on`."""
    lines = [line for line in block.code.splitlines() if WRAPS not in line]
    return Block(block.page, block.line, block.info, "\n".join(lines))


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.parametrize(
    ("wrapped", "count"),
    [(True, FEW), pytest.param(True, None, marks=pytest.mark.long), pytest.param(False, None, marks=pytest.mark.long)],
)
@pytest.mark.long
def test_moved_queries_print_the_rows_that_the_page_shows(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, wrapped: bool, count: int | None
) -> None:
    """The queries of the page print what it shows, with riffle_spark and with Spark alone, without a warning.

    ``./run test`` runs the first queries. Long runs play all of them, and the blocks that only riffle_spark can run.
    """
    spark.conf.set("spark.riffle.key_groups", "8")
    variables: dict[str, object] = {"__name__": "__main__"}
    moved = [block for block in BLOCKS if WRAPS in block.code]
    assert len(moved) == len(SHOWN) >= QUERIES
    expected = {block.line: text.strip() for block, text in zip(moved, SHOWN, strict=True)}
    for block in BLOCKS[:count]:
        printed = _shown(block if wrapped else _alone(block), variables, tmp_path, capfd).strip()
        assert printed == expected.get(block.line, printed), block
    for block, text in zip(OWN, SHOWN_OWN, strict=True) if wrapped and count is None else ():
        assert _shown(block, variables, tmp_path, capfd).strip() == text.code.strip()
