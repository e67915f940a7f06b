"""The command `riffle import`."""

import click

from riffle_spark.console.dispatch import load_function
from riffle_spark.console.options import (
    check_folder,
    check_location,
    checkpoint_option,
    root_options,
    show_plan,
    usage_errors,
)
from riffle_spark.settings import Settings


@click.command("import")
@root_options
@checkpoint_option
@click.option(
    "--query",
    required=True,
    metavar="MODULE:FUNCTION",
    help="A function that gets a Spark session, and returns the wrapped query: a frame of riffle_spark.on, or its "
    "writeStream. It must not start the query.",
)
@click.option(
    "--new-checkpoint",
    metavar="CHECKPOINT",
    callback=check_folder,
    help="The checkpointLocation of the wrapped query. By default that of --checkpoint with -riffle at its end.",
)
def import_command(
    root: str,
    checkpoint: str,
    settings: Settings,
    execute: bool,
    as_json: bool,
    query: str,
    new_checkpoint: str | None,
) -> None:
    """Move the state of a stopped Spark query to riffle_spark.

    Spark keeps this state in the query's checkpoint. The command writes it to ROOT, which must be empty. It also writes
    a new checkpoint, with which the wrapped query continues at the next batch. The old checkpoint is only read. The
    command needs PySpark 4.0 or newer.
    """
    from riffle_spark.spark.imports.command import run_import
    from riffle_spark.worker.member_folders import options_of

    check_location(checkpoint, options_of(settings))
    with usage_errors():
        function = load_function(query, "--query")
    show_plan(
        run_import(root, checkpoint, function, new_checkpoint=new_checkpoint, settings=settings, execute=execute),
        as_json=as_json,
    )
