"""Write docs/commands.md from the commands of `riffle` (`./run reference`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from riffle_spark.console.main import COMMANDS, main
from tests.kit.folders import CHECKOUT

__all__ = ["PAGE", "page"]

PAGE = CHECKOUT / "docs" / "commands.md"
_OPTION_HEAD = "| option | meaning |\n| --- | --- |\n"
_INTRODUCTION = """\
# Commands

This page lists every command of `riffle` with its options. Operators use the commands to watch, steer and repair
queries. `./run reference` writes this page from the source; `riffle COMMAND --help` shows the same text.

## Conventions

- Most commands take the root of a query as their first argument: `riffle status s3://bucket/state/totals`.
- A command that changes a root only prints its plan. With `--execute` it changes the root.
- `--json` prints one JSON object for programs. Names of fields end with their unit, such as `commit_age_seconds`.
- Times are in UTC. Sizes are in binary units: 1 KiB is 1,024 bytes.
- On a terminal tables have borders. In pipes and files they are aligned columns without colours.
- Commands use only the root, without access to the driver. Only the commands that steer a query need a running query.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | the command failed, or found a problem, such as damage or a stuck query. The help of the command lists the cases |
| 2 | the command was called wrongly |
| 3 | the store cannot be reached or read, so nothing is known |
| 4 | only commands that steer a query: no answer arrived in time |
| 5 | only commands that steer a query: the query does not run |

### Complete commands in your shell

`riffle` completes commands and options with the Tab key. Add one line to the start file of your shell:

| shell | file | line |
| --- | --- | --- |
| Bash 4.4 or newer | `~/.bashrc` | `eval "$(_RIFFLE_COMPLETE=bash_source riffle)"` |
| Zsh | `~/.zshrc` | `eval "$(_RIFFLE_COMPLETE=zsh_source riffle)"` |
| Fish | `~/.config/fish/completions/riffle.fish` | `_RIFFLE_COMPLETE=fish_source riffle \\| source` |

### Probe a query

`riffle status ROOT --max-age 5m` exits with 1 if the query is stuck or silent. Use it as a liveness probe of
Kubernetes, in cron, or as a task of Airflow.

| query | exit code |
| --- | --- |
| committed a batch in the last 5 minutes | 0 |
| idle, and all records are read | 0 |
| paused, or its lag is unknown (sources other than Kafka); no batch runs | 0 while the driver writes its status |
| failed | 1 |
| stopped | 1 once its last status is older |
| records are unread, and the last commit is older | 1 |
| the driver's status is older, because the driver is gone or cannot reach the store | 1 |
| the driver's times are more than 60 s in the future, because the clocks differ | 1 |
| `status_interval = 0`, so there is no status | 1 |

Choose a duration of at least twice `status_interval`, and longer than the longest batch.

"""


def page() -> str:
    """Return the page."""
    return _INTRODUCTION + "\n".join(_section(name) for name in sorted(COMMANDS))


def _section(name: str) -> str:
    """Return the section of a command, followed by the sections of its subcommands."""
    context = click.Context(main, info_name="riffle")
    command = main.get_command(context, name)
    assert command is not None
    sections = [_section_of(name, command, context)]
    if isinstance(command, click.Group):
        inner = click.Context(command, info_name=name, parent=context)
        for subcommand in command.list_commands(inner):
            nested = command.get_command(inner, subcommand)
            assert nested is not None
            sections.append(_section_of(f"{name} {subcommand}", nested, context))
    return "\n".join(sections)


def _section_of(name: str, command: click.Command, context: click.Context) -> str:
    """Return the section of one command. ``name`` starts with the names of the command's groups."""
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name, parent=context)))
    text = "\n\n".join(_paragraphs(command.help or ""))
    rows = "".join(_rows(command))
    return f"## {name}\n\n```\nriffle {name} {usage}\n```\n\n{text}\n" + (f"\n{_OPTION_HEAD}{rows}" if rows else "")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as lines of Markdown."""
    for paragraph in inspect.cleandoc(text).replace("\b\n", "").split("\n\n"):
        yield _escaped(" ".join(paragraph.split()))


def _rows(command: click.Command) -> Iterator[str]:
    """Yield a row of the table for each option of a command."""
    context = click.Context(command, info_name=command.name)
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            names, meaning = record
            yield f"| `{names.replace('|', chr(92) + '|')}` | {_escaped(' '.join(meaning.split()))} |\n"


def _escaped(text: str) -> str:
    """Return a text in which the special characters of Markdown and HTML are escaped."""
    return re.sub(r"(?<!`)([<>|*\[\]])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page())
