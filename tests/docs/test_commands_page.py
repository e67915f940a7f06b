"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

from riffle_spark.console.main import COMMANDS
from tests.kit.commands_reference import PAGE, page


def test_the_page_has_the_help_of_every_command() -> None:
    """Write it again with `./run reference`."""
    assert PAGE.read_text() == page()


def test_every_command_documents_its_exit_codes_and_options() -> None:
    """Each option has a meaning."""
    text = page()
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
    assert "|  |" not in text
