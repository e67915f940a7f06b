"""A group of commands that are imported when they are used."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

import click

from riffle_spark.unknown_names import nearest


def load_command(module: str, name: str) -> click.Command:
    """Import and return the object ``<name>_command`` of a module below ``riffle_spark.console``."""
    return cast(click.Command, getattr(import_module(f"riffle_spark.console.{module}"), f"{name}_command"))


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that its help is fast.

    ``lazy`` has the module of each command below ``riffle_spark.console``, and its line in the help. The module has an
    object ``<command>_command``.
    """

    lazy: Mapping[str, tuple[str, str]] = MappingProxyType({})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*self.lazy, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return ``None`` if its name is unknown."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        return load_command(self.lazy[cmd_name][0], cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. The error for an unknown one suggests the nearest name.

        Click suggests only commands that were imported already.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = nearest(args[0], self.list_commands(ctx))
            if not similar:
                raise
            raise click.UsageError(f"{error.message} Did you mean {similar!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._help_line(ctx, name)) for name in self.list_commands(ctx)])

    def _help_line(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=120) if command is not None else ""
