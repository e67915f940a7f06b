"""The command ``riffle``. Knows its verbs. Does not know how they work."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from riffle_spark.console.dispatch import dispatch_command, keys_command
from riffle_spark.console.options import (
    a_folder,
    a_root,
    called,
    conf_file_option,
    echo,
    of_a_root,
    of_a_store,
    settings_in,
    show,
)
from riffle_spark.console.plan import plan_command, simulate_command
from riffle_spark.errors import RefusedError, RiffleError, UnavailableError
from riffle_spark.settings import DISPATCHES

__all__ = ["exit_code", "main"]

_AWAY = 3  # what a command ends with where a store is away or refuses: of what is there nothing is known
_PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-eusc", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f")
_TO = "The batch to go back to, -1 is before the first; or a record of the log, also of a line that was given up."
_SIZES = "Take state and the bytes of a row from this root; this or --state-bytes is needed."
_PREVIOUS = "With deliver_after_commit: checkpoint of the query that had the state; tells whether output was delivered."
_checkpoint = click.option("--checkpoint", required=True, callback=a_folder, help="The query's checkpointLocation.")


def exit_code(error: type[RiffleError]) -> int:
    """Return the code that a command ends with after an error of this class; usage errors end with 2."""
    return _AWAY if issubclass(error, UnavailableError | RefusedError) else 1


class _Group(click.Group):
    """Shows our errors as a sentence with its remedy, not as a traceback."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except RiffleError as error:
            click.ClickException(str(error)).show()
            context.exit(exit_code(type(error)))


@click.group(cls=_Group)
@click.version_option(package_name="riffle-spark")
def main() -> None:
    """Look after the state of riffle_spark queries."""


@main.command()
@of_a_root
@_checkpoint
@click.option("--empty", is_flag=True, help="Begin with no state on purpose.")
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="With --empty: the number of key-groups, else that of the settings file.",
)
@click.option("--dispatch", type=click.Choice(DISPATCHES), help="With --empty: the dispatch, else the file's.")
@click.option("--previous", metavar="CHECKPOINT", callback=a_folder, help=_PREVIOUS)
@click.option("--delivered", is_flag=True, help="Sealed output was delivered, or nobody wants it.")
def adopt(  # noqa: PLR0913 - the command's options
    root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, empty: bool,
    key_groups: int | None, dispatch: str | None, previous: str | None, delivered: bool,
) -> None:  # fmt: skip
    """Bind the state below a root to the query of another checkpoint."""
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(conf_file, s3_endpoint)
    plan = recovery.adopt(
        root, checkpoint, options=options_of(settings), empty=empty,
        key_groups=settings.key_groups if key_groups is None else key_groups, dispatch=dispatch or settings.dispatch,
        delivered=delivered or previous or False, execute=execute,
    )  # fmt: skip
    show(plan)
    if plan.offsets:
        echo(f"the state is at these offsets; the new query must start there:\n{plan.offsets}")


@main.command()
@of_a_root
@_checkpoint
@click.option("--to", required=True, metavar="BATCH|record:N", help=_TO)
def rollback(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, to: str) -> None:
    """Take a query's state and Spark's offsets back to a retained batch, together."""
    from riffle_spark.offline import recovery
    from riffle_spark.offline.record_line import check_target
    from riffle_spark.worker.member_folders import options_of

    with called():
        check_target(to)
    options = options_of(settings_in(conf_file, s3_endpoint))
    show(recovery.rollback(root, to, checkpoint, options=options, execute=execute))


@main.command()
@click.option("--root", callback=a_root, help=_SIZES)
@click.option("--s3-endpoint", help="With --root: base URL of an S3-compatible server.")
@conf_file_option("With --root: settings of the store.")
@click.option("--rows-per-second", type=float, required=True, help="At the peak.")
@click.option("--rows-per-worker", type=float, required=True, help="What one slot takes in a second, measured.")
@click.option("--state-bytes", type=float, help="Of all keys; this or --root is needed.")
@click.option("--row-bytes", type=float, help="Of a row in flight; with --root, that of a stored one if not given.")
@click.option("--rows-in-flight", type=float, default=0.0, show_default=True, help="Rows of a batch in a worker.")
@click.option("--cache-fraction", type=float, default=0.1, show_default=True, help="Share of state kept in memory.")
@click.option("--cores", "cores_per_box", type=int, default=4, show_default=True, help="Of a box (an executor's host).")
@click.option("--memory-bytes", "memory_per_box", type=float, help="Of a box, for its workers.")
@click.option("--standbys", "num_standbys", type=click.IntRange(0), default=0, show_default=True)
@click.option("--changed-bytes-per-second", type=float, default=0.0, show_default=True, help="Written to the store.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def capacity(root: str | None, s3_endpoint: str | None, conf_file: Path, as_json: bool, **asked: float | None) -> None:
    """Work out workers, boxes, memory and disk of a query, from figures or from a root's sizes."""
    from riffle_spark.keygroups import few_key_groups_warning
    from riffle_spark.simulate.capacity import Need, capacity_of

    key_groups = 128
    if (root is None) == (asked["state_bytes"] is None):
        raise click.UsageError(
            "it takes either --state-bytes or --root\n  What to do: say how large the state is, or where"
        )
    if root is not None:
        from riffle_spark.offline.scenario_of_root import sizes_of_root
        from riffle_spark.worker.member_folders import options_of

        sizes = sizes_of_root(root, options_of(settings_in(conf_file, s3_endpoint)))
        per_row = sizes.state_bytes / sizes.rows if sizes.rows else None
        asked = {
            **asked,
            "state_bytes": sizes.state_bytes,
            "row_bytes": per_row if asked["row_bytes"] is None else asked["row_bytes"],
        }
        key_groups = sizes.key_groups
    need = Need(**{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
    found = asdict(capacity_of(need))
    echo(json.dumps(found) if as_json else "\n".join(f"{name:<26}{value}" for name, value in found.items()))
    if warning := few_key_groups_warning(key_groups, found["total_workers"]):
        echo(f"warning: {warning}", err=True)


@main.command()
@click.argument("root", callback=a_root)
@click.option("--checkpoint", callback=a_folder, help="The query's checkpointLocation: looked at too, whether it fits.")
@of_a_store
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(root: str, checkpoint: str | None, s3_endpoint: str | None, conf_file: Path, as_json: bool) -> None:
    """Read all that a root's retained records list, and say what is wrong with it. Changes nothing.

    Ends with 1 if something is, with 3 if the store cannot be reached or read. Notes harm nothing.
    """
    from riffle_spark.offline import verify as verification
    from riffle_spark.worker.member_folders import options_of

    settings = settings_in(conf_file, s3_endpoint)
    keys = settings.encryption_keys
    found = verification.verify(root, checkpoint, options=options_of(settings), encryption_keys=keys)
    if as_json:
        echo(json.dumps({**asdict(found), "is_whole": found.is_whole}))
    else:
        for finding in found.findings:
            echo(str(finding))
        looked = f"{found.records} records, {found.objects} objects, {found.checked_bytes} bytes of parts checked"
        newest = "none" if found.version is None else found.version
        echo(f"{looked}; newest batch: {newest}; {'whole' if found.is_whole else 'NOT whole'}")
        if found.way_back:
            echo(f"newest batch that is whole: {found.way_back}")
    click.get_current_context().exit(0 if found.is_whole else 1 if found.is_damaged else _AWAY)


@main.command()
@click.argument("root")
@click.option("--kms-key", metavar="ARN", help="The key that objects are encrypted with, where SSE-KMS is used.")
@click.option("--partition", type=click.Choice(_PARTITIONS), default="aws", show_default=True, help="Of AWS.")
@click.option("--read-only", is_flag=True, help="For commands that change nothing alone.")
def policy(root: str, kms_key: str | None, partition: str, read_only: bool) -> None:
    """Print the AWS IAM policy with the least that a job on this root needs.

    Of Spark's checkpoint it says nothing: where that is in S3 too, the job, rollback and adopt need rights there.
    """
    from riffle_spark.offline.rights import iam_policy

    with called():
        found = iam_policy(root, kms_key=kms_key, partition=partition, read_only=read_only)
    echo(json.dumps(found, indent=2))


for command in (dispatch_command, keys_command, plan_command, simulate_command):
    main.add_command(command)
