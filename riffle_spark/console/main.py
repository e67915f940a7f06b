"""The command `riffle`.

Each command is imported when it is used, so that `riffle --help` is fast.
"""

from importlib import import_module
from typing import cast

import click

from riffle_spark.console.options import UNREACHABLE
from riffle_spark.errors import RefusedError, RiffleError, UnavailableError

__all__ = ["COMMANDS", "exit_code", "main"]

COMMANDS = {
    "adopt": ("recovery", "Bind the state below a root to the query of another checkpoint."),
    "capacity": ("capacity", "Compute the workers, hosts, memory and disk of a query."),
    "dispatch": ("dispatch", "Switch a stopped query's state to another dispatch."),
    "doctor": ("doctor", "Check this machine, the store and the configuration before a query starts."),
    "drain": ("steering", "Move all key-groups of a running query away from a member."),
    "import": ("imports", "Move a stopped Spark query to riffle with its state."),
    "keys": ("dispatch", "Show which keys encrypt the parts of a query's state."),
    "ls": ("listing", "List the queries below a prefix with their age, lag and health."),
    "log": ("contents", "List the newest records of a query's log, and what a rollback may return to."),
    "moves": ("moves", "Show which key-groups of a query moved, when and why."),
    "pause": ("steering", "Hold a running query after its current batch."),
    "pin": ("steering", "Keep a key-group of a running query on a member."),
    "plan": ("plan", "Show the assignment of a scenario, or of a query with changed members."),
    "policy": ("checks", "Print the least rights that a job needs on its root."),
    "rebalance": ("steering", "Compute an assignment of a running query now."),
    "requests": ("steering", "List the requests to a running query and their answers."),
    "resume": ("steering", "Continue a paused query."),
    "rollback": ("recovery", "Roll a query's state and Spark's offsets back together."),
    "set": ("steering", "Change live settings of a running query."),
    "shadow": ("shadow", "Run a query on Spark's own operators and on riffle, and compare what both return."),
    "simulate": ("plan", "Simulate a cluster over time."),
    "status": ("status", "Show how a query runs: last commit, lag, watermark, members, last moves and warnings."),
    "stores": ("contents", "Show the stores of a query: columns, rows, bytes, parts and the largest key-groups."),
    "undrain": ("steering", "Let a drained member of a running query own key-groups again."),
    "unpin": ("steering", "Remove the pin of a key-group of a running query."),
    "verify": ("checks", "Check every object that a root's retained records list."),
    "where": ("contents", "Show the key-group of a key, its owner and its standbys."),
}
"""The module of each command below ``riffle_spark.console``, and its line in the help. The module has an object
``<command>_command``."""


def exit_code(error: type[RiffleError]) -> int:
    """Return the exit code after an error of this class. Usage errors have 2."""
    return UNREACHABLE if issubclass(error, UnavailableError | RefusedError) else 1


class _Group(click.Group):
    """Imports a command when it is used, and shows errors of this package without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return ``None`` if its name is unknown."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"riffle_spark.console.{COMMANDS[cmd_name][0]}")
        return cast(click.Command, getattr(module, f"{cmd_name}_command"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. An error of this package ends it with the exit code of its class."""
        try:
            return super().invoke(ctx)
        except RiffleError as error:
            click.ClickException(str(error)).show()
            ctx.exit(exit_code(type(error)))


@click.group(cls=_Group)
@click.version_option(package_name="riffle-spark")
def main() -> None:
    """Show and maintain the state of riffle_spark queries.

    Most commands take the root of a query as their first argument: where its state is stored, such as
    s3://bucket/prefix or file:///path.
    """
