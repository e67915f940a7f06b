"""`docs/commands.md` is generated from the help of the commands."""

from __future__ import annotations

import re

from riffle_spark.console.main import COMMANDS
from tests.kit.commands_reference import PAGE, page
from tests.kit.folders import CHECKOUT


def test_the_page_has_the_help_of_every_command() -> None:
    """The page has the help of every command. `./run reference` writes it."""
    assert PAGE.read_text() == page()


def test_every_command_documents_its_exit_codes_and_options() -> None:
    """Every command has a section, and every option and exit code has a description."""
    text = page()
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
    assert "|  |" not in text


def test_commands_name_their_root_as_the_first_argument() -> None:
    """The docs never show the hidden option `--root`.

    Only `riffle doctor` documents it, because its root is optional.
    """
    texts = [*(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "riffle_spark").rglob("*.py"), CHECKOUT / "README.md"]
    old = {
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in texts
        for line in path.read_text().splitlines()
        if re.search(r"riffle (?!doctor)[a-z]+ --root|Correct --root", line)
    }
    assert old == set()
