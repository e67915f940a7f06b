"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

import re

from riffle_spark.console.main import COMMANDS
from tests.kit.commands_reference import PAGE, page
from tests.kit.folders import CHECKOUT


def test_the_page_has_the_help_of_every_command() -> None:
    """Write it again with `./run reference`."""
    assert PAGE.read_text() == page()


def test_every_command_documents_its_exit_codes_and_options() -> None:
    """Each option has a meaning."""
    text = page()
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
    assert "|  |" not in text


def test_commands_name_their_root_as_the_first_argument() -> None:
    """The hidden option `--root` is for old scripts. Only `riffle doctor`, which may have no root, documents it."""
    texts = [*(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "riffle_spark").rglob("*.py"), CHECKOUT / "README.md"]
    old = {
        f"{path.relative_to(CHECKOUT)}: {line.strip()}"
        for path in texts
        for line in path.read_text().splitlines()
        if re.search(r"riffle (?!doctor)[a-z]+ --root|Correct --root", line)
    }
    assert old == set()
