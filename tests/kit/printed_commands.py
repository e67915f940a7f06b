"""Find the commands that messages print, so that tests can run them unchanged."""

from __future__ import annotations

import re
import shlex

import click

from riffle_spark.console.main import main

_VALUE = r"(?!--)(?:'[^']*'|[^\s;,']+)"
_COMMAND = re.compile(rf"riffle [a-z]+(?: {_VALUE})?(?: --[a-z0-9-]+(?: {_VALUE})?)+")


def printed(text: str) -> list[list[str]]:
    """Return the arguments of each ``riffle`` command in a text. Fail if Click does not accept them."""
    commands = [shlex.split(command)[1:] for command in _COMMAND.findall(text)]
    for verb, *arguments in commands:
        command = main.get_command(click.Context(main), verb)
        assert command is not None, verb
        command.make_context(verb, arguments)
    return commands
