"""The page of the published designs names existing tests, and states whether they run on Spark."""

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
    "KIP-441",
    "Learner tasks",
    "KIP-925",
    "KIP-708",
    "KIP-924",
    "Riffle",
    "Eager",
    "Static",
    "Cooperative",
    "Deferred",
    "StickyAssignor",
    "Cruise Control",
    "Redis Cluster",
    "Elasticsearch",
    "YARN",
    "Flink",
    "Samza",
    "Heron",
)


RUNS_SPARK = re.compile(r"\bmark\.(spark|cluster)\b")
SIMULATES = re.compile(r"\b(tests\.kit\.simulated|riffle_spark\.(simulate|testing))\b")


@functools.cache
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_text()) if path.exists() else ast.Module([], [])


def _tests_in(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(_module(path)) if isinstance(node, ast.FunctionDef))


def _what_runs(file: str, test: str) -> str:
    """Return whether a test runs live, simulated or pure, by its marks and by the imports of its module."""
    path = CHECKOUT / "tests" / file
    functions = [node for node in _module(path).body if isinstance(node, ast.FunctionDef) and node.name == test]
    marks = [ast.unparse(mark) for function in functions for mark in function.decorator_list]
    marks += [ast.unparse(node) for node in _module(path).body if isinstance(node, ast.Assign)]
    if any(RUNS_SPARK.search(mark) for mark in marks):
        return "live"
    imports = [ast.unparse(node) for node in _module(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "simulated" if any(SIMULATES.search(line) for line in imports) else "pure"


def _rows() -> list[list[str]]:
    return [row for row in table_rows(PAGE) if len(row) == 4 and row[2] != "how" and "---" not in row[0]]


def test_every_test_that_the_page_names_exists() -> None:
    """Each test that the page names is a function in its file below `tests/`."""
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 100
    assert [f"{file}::{name}" for file, name in named if name not in _tests_in(CHECKOUT / "tests" / file)] == []


def test_a_row_names_a_test_or_a_reason() -> None:
    """The last cell of a row has test names only, or a dash after a reason."""
    for row in _rows():
        if row[3] == "–":
            assert WHY_NOT.search(row[1]), row
        else:
            assert NAMED.sub("", row[3]).strip(", ") == "", row


def test_a_row_names_the_most_realistic_environment_of_its_tests() -> None:
    """The column "how" has the most realistic environment of the row's tests: live, simulated or pure."""
    order = ["live", "simulated", "pure"]
    for row in _rows():
        runs = [_what_runs(*name) for name in NAMED.findall(row[3])]
        assert row[2] == (min(runs, key=order.index) if runs else "–"), row


def test_the_page_names_every_system_of_the_published_designs() -> None:
    """The page names every published system that the designs come from."""
    text = PAGE.read_text().lower()
    assert [system for system in SYSTEMS if system.lower() not in text] == []


def test_most_sections_name_a_live_test() -> None:
    """At least half of the sections have a test that runs on Spark executors."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    live = [section for section in sections if "| live |" in section]
    assert len(live) >= len(sections) / 2, [section.splitlines()[0] for section in sections if section not in live]
