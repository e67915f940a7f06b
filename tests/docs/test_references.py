"""The page of the published designs: every test that it names is there, and where it names none it says why."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tests.kit.pages import CHECKOUT, table_rows

PAGE = CHECKOUT / "docs" / "references.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
WHY_NOT = re.compile(r"being (built|written|added)|not (applicable|built)|taken as well")
SYSTEMS = (
    "KIP-441", "Learner tasks", "KIP-925", "KIP-708", "KIP-924", "Riffle", "Eager", "Static", "Cooperative",
    "Deferred", "StickyAssignor", "Cruise Control", "Redis Cluster", "Elasticsearch", "YARN", "Flink", "Samza", "Heron",
)  # fmt: skip


@functools.cache
def _tests_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _rows() -> list[list[str]]:
    return [
        row for row in table_rows(PAGE) if row[0] != "the design" and row[0] != "what it does" and "---" not in row[0]
    ]


def test_every_test_that_is_named_is_there() -> None:
    """A file below `tests/` and a function in it."""
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 100
    assert [f"{file}::{name}" for file, name in named if name not in _tests_in(CHECKOUT / "tests" / file)] == []


def test_a_row_names_a_test_or_says_why_not() -> None:
    """Three cells; the last one names tests and nothing else, or is a dash, with a reason before it."""
    for row in _rows():
        assert len(row) == 3, row
        if row[2] == "–":
            assert WHY_NOT.search(row[1]), row
        else:
            assert NAMED.sub("", row[2]).strip(", ") == "", row


def test_every_system_of_the_designs_is_there() -> None:
    """By a heading, or in the text where several share one."""
    text = PAGE.read_text().lower()
    assert [system for system in SYSTEMS if system.lower() not in text] == []


def test_designs_are_shown_on_real_executors() -> None:
    """Most sections name a test that runs executors."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    live = [section for section in sections if re.search(r"`(live|spark)/", section)]
    assert len(live) >= len(sections) / 2, [section.splitlines()[0] for section in sections if section not in live]
