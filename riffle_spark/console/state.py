"""The commands `riffle state ...`. Each is imported when it is used."""

import click

from riffle_spark.console.lazy_group import LazyGroup

__all__ = ["STATE_COMMANDS", "state_command"]

STATE_COMMANDS = {
    "delete": ("state_edits", "Delete keys from a query's state."),
    "set": ("state_edits", "Set the value of a key in a query's state."),
}


class _StateGroup(LazyGroup):
    """The commands on the state of a query."""

    lazy = STATE_COMMANDS


@click.group("state", cls=_StateGroup)
def state_command() -> None:
    """Repair the state of a query: delete keys, or set a key's value."""
