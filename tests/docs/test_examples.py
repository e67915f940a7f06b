"""The pages are true: examples run as written, links have a target, and settings are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Settings
from riffle_spark.assign.model import Assignment, Member, Move, Task, Traffic, View
from riffle_spark.settings import LIVE, read_toml
from riffle_spark.spark.configure import packages
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.open import open_store
from tests.kit import settings_reference as reference
from tests.kit.pages import CHECKOUT, PAGES, Block, anchors, blocks, links, table_rows
from tests.kit.quiet import no_warnings

RUNNABLE = [block for page in PAGES for block in blocks(page) if block.info == "python runnable"]
IN_EVERY_RUN = ("README.md", "configuration.md")
"""Pages whose runnable blocks ``./run test`` runs. ``--all`` runs those of all pages."""
ONLY_SHOWN = [block for page in PAGES for block in blocks(page) if block.info == "python"]
FOLDER = "/tmp/riffle-quickstart"


def test_targets_of_relative_links_exist() -> None:
    """Every relative link is to a file of the project and, after a `#`, to one of its headings."""
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
                broken.append(f"{page.relative_to(CHECKOUT)}: {link}")
    assert broken == []


def test_python_files_that_pages_name_exist() -> None:
    """Every Python file that a page names with its folder exists in the product or in the project."""
    named = {(page.name, path) for page in PAGES for path in re.findall(r"`(\w[\w/]*/\w+\.py)`", page.read_text())}
    places = (CHECKOUT, CHECKOUT / "riffle_spark", CHECKOUT / "riffle_spark" / "spark")
    assert len(named) > 20
    assert sorted(link for link in named if not any((place / link[1]).is_file() for place in places)) == []


def test_pages_have_the_connectors_of_the_installed_spark() -> None:
    """No page names a version of the connectors.

    The command and the table of getting-started.md have the right ones.
    """
    fixed = [page.name for page in PAGES if re.search(r"--packages \S*sql-kafka\S*:[0-9]", page.read_text())]
    assert fixed == []
    page = next(page for page in PAGES if page.name == "getting-started.md")
    (code,) = re.findall(r"PACKAGES=\$\(python -c '([^']+)'\)", page.read_text())
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=120
    ).stdout
    assert printed.strip() == packages(kafka=True, s3a=True)
    (row,) = [row for row in table_rows(page) if row[0].startswith(pyspark.__version__)]
    assert [cell.strip("`") for cell in row[1:]] == printed.strip().split(",")


def test_pages_have_runnable_examples_and_the_others_are_valid_python() -> None:
    """The README and the docs have runnable examples. Examples that need servers are valid Python."""
    pages = {"README.md", "getting-started.md", "sinks.md", "formats.md", "configuration.md"}
    assert pages <= {block.page.name for block in RUNNABLE}
    for block in ONLY_SHOWN:
        compile(block.code, str(block), "exec")


def test_the_configuration_page_lists_every_setting_with_its_default() -> None:
    """The tables of configuration.md name each setting once, with its default."""
    rows = [row for row in table_rows(CHECKOUT / "docs" / "configuration.md") if len(row) == 5 and row[1] != "default"]
    default_cells = {row[0].strip("`"): row[1] for row in rows if row[0].startswith("`")}
    assert sorted(row[0].strip("`") for row in rows if row[0].startswith("`")) == sorted(Settings.__dataclass_fields__)
    defaults = Settings()
    values: dict[str, Any] = {name: _value(cell) for name, cell in default_cells.items()}
    assert Settings(**{name: value for name, value in values.items() if value}) == defaults
    assert {name for name, value in values.items() if not value} == {
        name for name in default_cells if getattr(defaults, name) in (None, ())
    }


def test_the_configuration_page_marks_exactly_the_live_settings() -> None:
    """The column on when a change takes effect has "live" for exactly the live settings."""
    rows = [row for row in table_rows(CHECKOUT / "docs" / "configuration.md") if len(row) == 5 and row[1] != "default"]
    assert {row[0].strip("`") for row in rows if row[3] == "live"} == LIVE


def test_the_assignor_page_documents_every_field() -> None:
    """own-assignor.md documents each field of an assignor's input and output."""
    page = CHECKOUT / "docs" / "own-assignor.md"
    named = {name for row in table_rows(page) for name in re.findall(r"`(\w+)`", row[0])}
    for kind in (View, Member, Task, Assignment):
        assert {field.name for field in fields(kind)} <= named, kind
    text = page.read_text()
    assert [field.name for kind in (Move, Traffic) for field in fields(kind) if f"`{field.name}`" not in text] == []


def test_the_generated_settings_reference_is_up_to_date() -> None:
    """configuration.md and conf/riffle.toml are generated. `./run reference` writes them after a setting is changed."""
    assert reference.PAGE.read_text() == reference.page(reference.PAGE.read_text())
    assert reference.EXAMPLE.read_text() == reference.example()


def test_the_generator_replaces_tables_and_keeps_the_text_around_them() -> None:
    """The generator replaces a changed table and keeps the text around it. It refuses a page without a section."""
    page = reference.PAGE.read_text()
    assert reference.page(page.replace("| `num_standbys` | 0 | ≥ 0 | live |", "| `num_standbys` | 7 |")) == page
    assert reference.page(page.replace("## Keys\n", "## Keys\n\nAbout keys.\n")).count("About keys.\n") == 1
    with pytest.raises(LookupError, match="## Keys"):
        reference.page(page.replace("## Keys", "## Locks"))


def _value(cell: str) -> str:
    """Return a cell as the value of a setting: '10 000' without its space, and an empty text for 'not set'."""
    return "" if cell in ("not set", "none") else re.sub(r"(?<=\d) (?=\d)", "", cell.strip("`"))


def test_the_example_settings_are_all_commented_out() -> None:
    """conf/riffle.toml is a valid file that sets nothing."""
    assert read_toml(CHECKOUT / "conf" / "riffle.toml") == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that replaces the folder of the examples."""
    return tmp_path_factory.mktemp("quickstart")


@pytest.mark.spark
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block), marks=[] if block.page.name in IN_EVERY_RUN else pytest.mark.long)
        for block in RUNNABLE
    ],
)
def test_runnable_examples_run_as_written(
    spark: SparkSession, folder: Path, block: Block, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each runnable block runs in the order of the pages, prints its result, and raises no warning."""
    code = block.code.replace(FOLDER, str(folder))
    variables: dict[str, object] = {"__name__": "__main__"}
    with no_warnings():
        exec(compile(code, str(block), "exec"), variables)
    printed = capfd.readouterr().out
    assert "print(" not in code or printed
    job = variables.get("job")
    if isinstance(job, riffle_spark.StatefulJob):
        assert len(job.reports) >= 2
        assert sum(report.rows for report in job.reports) > 0
    if "changed" in variables:
        assert variables["changed"] == _changes_listed(f"file://{folder}/state")


def _changes_listed(root: str) -> int:
    """Return how many changed rows the log lists after the snapshots."""
    log = Log(open_store(root), root)
    log.open()
    listed = sum(link.rows for entry in log.manifest.entries.values() for link in entry.chain)
    assert listed > 0
    return listed
