"""Help is fast, because it imports neither numerical libraries nor clients of object stores."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import click
import pytest
from click.testing import CliRunner

from riffle_spark.assign.model import Strategy
from riffle_spark.console.main import COMMANDS, main
from riffle_spark.console.plan import STRATEGIES

HEAVY = ("numpy", "pyarrow", "pandas", "boto3", "botocore", "requests", "pyspark", "scipy", "rich", "kafka")
MODULES_MAX = 190
_PROGRAM = f"""
import sys
sys.argv = ["riffle", *sys.argv[1:]]
from riffle_spark.console.process import run
try:
    run()
except SystemExit as exit:
    heavy = sorted(set(sys.modules) & set({HEAVY!r}))
    print(exit.code, len(sys.modules), *heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in sorted(COMMANDS))])
@pytest.mark.sample(step=8)
def test_help_imports_few_modules(arguments: list[str]) -> None:
    """The help of riffle and of each command imports only click, the settings and the command's own module."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    code, modules, *heavy = done.stderr.split()
    assert (code, heavy) == ("0", [])
    assert int(modules) < MODULES_MAX


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_line_of_each_command_starts_its_own_help(name: str) -> None:
    """The line of each command in `riffle --help` starts with the same verb as the command's own help."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.help is not None
    assert command.help.split()[0] == COMMANDS[name][1].split()[0]


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [
        (["stat"], "No such command 'stat'. Did you mean 'state'?"),
        (["savepoint", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
    ],
)
def test_the_error_for_an_unknown_command_names_the_nearest_one(arguments: list[str], ending: str) -> None:
    """If no name is similar, none is suggested."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert done.output.rstrip().endswith(ending)


def test_help_lists_all_commands() -> None:
    """`riffle --help` lists all commands."""
    shown = CliRunner().invoke(main, ["--help"]).output
    for name, (_, line) in COMMANDS.items():
        assert name in shown
        assert " ".join(line.split()[:4]) in shown


def test_the_strategy_choices_equal_the_assignors() -> None:
    """The hard-coded choices of `--strategy` equal the assignor's, which the help does not import."""
    assert get_args(Strategy) == STRATEGIES
