"""Commands as messages print them, for who would run them as they are."""

from __future__ import annotations

import re
import shlex

import click

from riffle_spark.console.main import main

_VALUE = r"(?!--)(?:'[^']*'|[^\s;,']+)"
_COMMAND = re.compile(rf"riffle [a-z]+(?: {_VALUE})?(?: --[a-z0-9-]+(?: {_VALUE})?)+")


def printed(text: str) -> list[list[str]]:
    """Return the arguments of each command in a text. Click must take them: an option may be missing, or be none."""
    commands = [shlex.split(command)[1:] for command in _COMMAND.findall(text)]
    for verb, *arguments in commands:
        command = main.get_command(click.Context(main), verb)
        assert command is not None, verb
        command.make_context(verb, arguments)
    return commands
