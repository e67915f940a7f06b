"""The command `riffle`.

Each command is imported when it is used, so that `riffle --help` is fast.
"""

import click

from riffle_spark.console.lazy_group import LazyGroup
from riffle_spark.console.options import UNREACHABLE
from riffle_spark.errors import RefusedError, RiffleError, UnavailableError

COMMANDS = {
    "adopt": ("recovery", "Bind the state below a root to the query of another checkpoint."),
    "capacity": ("capacity", "Compute the workers, hosts, memory and disk of a query."),
    "dispatch": ("dispatch", "Switch a stopped query's state to another dispatch."),
    "doctor": ("doctor", "Check this machine, the store and the configuration before a query starts."),
    "drain": ("steering", "Move all key-groups of a running query away from a member."),
    "export": ("export", "Export the newest state of a store to Parquet files."),
    "fork": ("fork", "Copy the state of a batch or savepoint to a new root, for another query."),
    "import": ("imports", "Move the state of a stopped Spark query to riffle_spark."),
    "keys": ("dispatch", "Show which keys encrypt the parts of a query's state."),
    "ls": ("listing", "List the queries below a prefix with their age, lag and health."),
    "log": ("contents", "List the newest records of a query's log, and the batches to which a rollback can return."),
    "moves": ("moves", "Show which key-groups of a query moved, when and why."),
    "pause": ("steering", "Pause a running query after its current batch."),
    "pin": ("steering", "Keep a key-group of a running query on a member."),
    "plan": ("plan", "Show the assignment of a scenario, or of a query with changed members."),
    "policy": ("checks", "Print the least rights that a job needs on its root."),
    "rebalance": ("steering", "Compute a new assignment of a running query now."),
    "requests": ("steering", "List the requests to a running query and their answers."),
    "resume": ("steering", "Continue a paused query."),
    "rollback": ("recovery", "Roll a query's state and Spark's offsets back together."),
    "savepoint": ("savepoints", "Keep batches of a query until their savepoints are deleted, and list them."),
    "set": ("steering", "Change live settings of a running query."),
    "shadow": ("shadow", "Run a query on Spark's own operators and on riffle_spark, and compare the results."),
    "simulate": ("plan", "Simulate a cluster over time."),
    "state": ("state", "Show the state of keys, what changed in it, and repair it."),
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


class _Group(LazyGroup):
    """Shows errors of this package without a traceback."""

    lazy = COMMANDS

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
