"""The command `riffle shadow`."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.dispatch import load_function
from riffle_spark.console.options import check_root, echo, json_option, usage_errors
from riffle_spark.console.periods import duration_parser
from riffle_spark.console.tables import Table, show_facts, show_table

if TYPE_CHECKING:
    from riffle_spark.spark.shadow.shadow_run import ShadowReport

_DIFFERENCES_SHOWN = 5


@click.command("shadow")
@click.option(
    "--query",
    required=True,
    metavar="MODULE:FUNCTION",
    help="A function that gets a Spark session, and returns the wrapped query: a frame of riffle_spark.on, or its "
    "writeStream. It must not start the query.",
)
@click.option("--batches", type=click.IntRange(1), metavar="NUMBER", help="Compare at most this many batches.")
@click.option(
    "--follow",
    metavar="DURATION",
    callback=duration_parser(),
    help="Also read rows that arrive in the sources during this time, such as 10m. By default only rows that exist now "
    "are read.",
)
@click.option(
    "--folder",
    help="An empty folder that all executors can reach, for the compared rows. By default a temporary folder of this "
    "machine, which is deleted at the end.",
)
@click.option(
    "--root",
    callback=check_root,
    help="An empty root for the state. Required with --folder. By default in the temporary folder.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=1e-9,
    show_default=True,
    help="The relative difference up to which floating-point numbers are equal.",
)
@json_option
def shadow_command(
    query: str,
    batches: int | None,
    follow: float | None,
    folder: str | None,
    root: str | None,
    tolerance: float,
    as_json: bool,
) -> None:
    """Run a query on Spark's own operators and on riffle_spark, and compare the results.

    Spark and riffle_spark run each batch one after the other, on the same rows. The sink, trigger, checkpoint and root
    of the query are replaced. So nothing is delivered, and the query's own state does not change. The command prints
    rows that only one of the two returned.

    Exit code 0: all batches are equal. 1: a batch differs, there was no batch, or the query failed on one of the two.
    """
    from riffle_spark.spark.command_session import command_session
    from riffle_spark.spark.shadow.shadow_run import shadow

    if folder is not None and root is None:
        raise click.UsageError(
            "--folder requires --root.\n"
            "  What to do: Give the URL of an empty root for the state, such as s3://bucket/try."
        )
    with usage_errors():
        function = load_function(query, "--query")
    own_folder = None if folder is not None else Path(tempfile.mkdtemp(prefix="riffle-shadow-"))
    try:
        with command_session("riffle shadow", [folder]) as spark:
            if own_folder is not None:
                _check_is_local(spark.sparkContext.master or "")
            report = shadow(
                function,
                spark=spark,
                folder=folder or f"{own_folder}",
                root=root or f"file://{own_folder}/state",
                local_dir=None if own_folder is None else f"{own_folder}/local",
                batches=batches,
                follow_seconds=follow,
                tolerance=tolerance,
            )
    finally:
        if own_folder is not None:
            shutil.rmtree(own_folder, ignore_errors=True)
    if as_json:
        echo(json.dumps(report.to_json(), default=str))
    else:
        _show(report)
    click.get_current_context().exit(0 if report.is_equal and report.batches else 1)


def _check_is_local(master: str) -> None:
    """Raise a usage error if executors do not reach a folder of this machine: they would record on their own disks."""
    if not master.startswith("local"):
        raise click.UsageError(
            f"The executors of {master} cannot reach a folder of this machine.\n"
            "  What to do: Give --folder and --root, such as s3a://bucket/try and s3://bucket/try-state."
        )


def _show(report: "ShadowReport") -> None:
    close = f", {report.close_rows:,} of them equal within the tolerance" if report.close_rows else ""
    show_facts(
        [
            ("batches", f"{report.batches:,} with {report.input_rows:,} rows"),
            ("output", f"{report.output_rows:,} rows{close}"),
            ("different", f"{len(report.differences):,} batches"),
        ]
    )
    if report.columns:
        echo(f"columns differ: {report.columns}")
    for difference in report.differences[:_DIFFERENCES_SHOWN]:
        echo(
            f"batch {difference.batch}: {difference.only_spark} rows only in Spark's output, "
            f"{difference.only_riffle} only in riffle's"
        )
        for engine, rows in (("Spark", difference.spark_examples), ("riffle", difference.riffle_examples)):
            for row in rows:
                echo(f"  {engine:<6}  {json.dumps(row, default=str)}")
    table = Table("", ("ENGINE", "SECONDS PER BATCH", "STATE ROWS", "MEMORY"))
    table.right = frozenset(table.columns[1:])
    for engine, figures in (("Spark", report.spark), ("riffle", report.riffle)):
        seconds = None if figures.batch_seconds is None else f"{figures.batch_seconds:.3f}"
        table.add(engine, seconds, f"{figures.state_rows:,}", f"{figures.memory_bytes / 1e6:,.1f} MB")
    show_table(table)
    if report.batches == 0:
        echo(
            "Nothing was compared, because the sources have no rows now.\n"
            "  What to do: Read them from an earlier start, such as startingOffsets = earliest "
            "for Kafka, or use --follow."
        )
