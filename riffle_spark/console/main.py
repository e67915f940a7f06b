"""The command `riffle`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.dispatch import dispatch_command, keys_command
from riffle_spark.console.doctor import doctor_command
from riffle_spark.console.options import (
    check_folder,
    check_root,
    conf_file_option,
    echo,
    read_settings,
    required_root,
    root_option,
    root_options,
    show_plan,
    store_options,
    usage_errors,
)
from riffle_spark.console.plan import plan_command, simulate_command
from riffle_spark.console.steering import STEERING_COMMANDS
from riffle_spark.errors import RefusedError, RiffleError, UnavailableError
from riffle_spark.settings import DISPATCHES

if TYPE_CHECKING:
    from riffle_spark.state.objects.options import StoreOptions

__all__ = ["exit_code", "main"]

_UNREACHABLE = 3
"""Exit code if a store cannot be reached or read, so that nothing is known about the state."""
_PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-eusc", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f")
_checkpoint = click.option("--checkpoint", required=True, callback=check_folder, help="The query's checkpointLocation.")


def exit_code(error: type[RiffleError]) -> int:
    """Return the exit code after an error of this class. Usage errors have 2."""
    return _UNREACHABLE if issubclass(error, UnavailableError | RefusedError) else 1


class _Group(click.Group):
    """Shows errors of this package without a traceback."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except RiffleError as error:
            click.ClickException(str(error)).show()
            context.exit(exit_code(type(error)))


def _check_location(checkpoint: str, options: "StoreOptions") -> None:
    """Refuse a checkpoint on an unknown file system."""
    from riffle_spark.offline.checkpoint import Checkpoint

    with usage_errors():
        Checkpoint(checkpoint, options).find_query_id()


@click.group(cls=_Group)
@click.version_option(package_name="riffle-spark")
def main() -> None:
    """Maintain the state of riffle_spark queries."""


@main.command()
@root_options
@_checkpoint
@click.option("--empty", is_flag=True, help="Start without state.")
@click.option(
    "--key-groups",
    type=click.IntRange(1, 32_768),
    help="With --empty: the number of key-groups. By default that of the settings file.",
)
@click.option("--dispatch", type=click.Choice(DISPATCHES), help="With --empty: the dispatch. By default the file's.")
@click.option(
    "--previous",
    metavar="CHECKPOINT",
    callback=check_folder,
    help="With deliver_after_commit: checkpoint of the previous query. It shows whether output was delivered.",
)
@click.option("--delivered", is_flag=True, help="Sealed output was delivered, or is not needed.")
def adopt(  # noqa: PLR0913 - the command's options
    root: str,
    checkpoint: str,
    s3_endpoint: str | None,
    conf_file: Path,
    execute: bool,
    empty: bool,
    key_groups: int | None,
    dispatch: str | None,
    previous: str | None,
    delivered: bool,
) -> None:
    """Bind the state below a root to the query of another checkpoint."""
    from riffle_spark.offline import recovery
    from riffle_spark.worker.member_folders import options_of

    settings = read_settings(conf_file, s3_endpoint)
    _check_location(checkpoint, options_of(settings))
    plan = recovery.adopt(
        root,
        checkpoint,
        options=options_of(settings),
        empty=empty,
        key_groups=settings.key_groups if key_groups is None else key_groups,
        dispatch=dispatch or settings.dispatch,
        delivered=delivered or previous or False,
        execute=execute,
    )
    show_plan(plan)
    if plan.offsets:
        echo(f"The state is at these offsets. The new query must start there:\n{plan.offsets}")


@main.command()
@root_options
@_checkpoint
@click.option(
    "--to",
    required=True,
    metavar="BATCH|record:N",
    help="The batch to return to, -1 for the state before the first. Or a record of the log, also one that an earlier "
    "rollback gave up.",
)
def rollback(root: str, checkpoint: str, s3_endpoint: str | None, conf_file: Path, execute: bool, to: str) -> None:
    """Roll a query's state and Spark's offsets back to a retained batch, together."""
    from riffle_spark.offline import recovery
    from riffle_spark.offline.rollback_targets import parse_target
    from riffle_spark.worker.member_folders import options_of

    with usage_errors():
        parse_target(to)
    options = options_of(read_settings(conf_file, s3_endpoint))
    _check_location(checkpoint, options)
    show_plan(recovery.rollback(root, to, checkpoint, options=options, execute=execute))


@main.command()
@click.option("--root", callback=check_root, help="Take the size of state and rows from this root.")
@click.option("--s3-endpoint", help="With --root: base URL of an S3-compatible server.")
@conf_file_option("With --root: settings of the store.")
@click.option("--rows-per-second", type=float, required=True, help="At the peak.")
@click.option("--rows-per-worker", type=float, required=True, help="Rows that one slot processes per second, measured.")
@click.option("--state-bytes", type=float, help="Bytes of all state. This or --root is required.")
@click.option("--row-bytes", type=float, help="Bytes of a row in flight. With --root by default those of a stored row.")
@click.option("--rows-in-flight", type=float, default=0.0, show_default=True, help="Rows of a batch in a worker.")
@click.option("--cache-fraction", type=float, default=0.1, show_default=True, help="Share of state kept in memory.")
@click.option("--cores", "cores_per_box", type=int, default=4, show_default=True, help="Cores of an executor's host.")
@click.option("--memory-bytes", "memory_per_box", type=float, help="Memory of a host for its workers.")
@click.option("--standbys", "num_standbys", type=click.IntRange(0), default=0, show_default=True)
@click.option("--changed-bytes-per-second", type=float, default=0.0, show_default=True, help="Written to the store.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def capacity(
    root: str | None, s3_endpoint: str | None, conf_file: Path, as_json: bool, **figures: float | None
) -> None:
    """Compute the workers, hosts, memory and disk of a query, from figures or from a root's sizes."""
    from riffle_spark.keygroups import few_key_groups_warning
    from riffle_spark.simulate.capacity import Need, compute_capacity

    key_groups = 128
    if (root is None) == (figures["state_bytes"] is None):
        raise click.UsageError(
            "Either --state-bytes or --root is required.\n  What to do: Give the bytes of state, or the root."
        )
    if root is not None:
        from riffle_spark.offline.scenario_of_root import sizes_of_root
        from riffle_spark.worker.member_folders import options_of

        sizes = sizes_of_root(root, options_of(read_settings(conf_file, s3_endpoint)))
        figures["state_bytes"] = sizes.state_bytes
        if figures["row_bytes"] is None and sizes.rows:
            figures["row_bytes"] = sizes.state_bytes / sizes.rows
        key_groups = sizes.key_groups
    need = Need(**{name: value for name, value in figures.items() if value is not None})  # type: ignore[arg-type]
    result = asdict(compute_capacity(need))
    echo(json.dumps(result) if as_json else "\n".join(f"{name:<26}{value}" for name, value in result.items()))
    if warning := few_key_groups_warning(key_groups, result["total_workers"]):
        echo(f"warning: {warning}", err=True)


@main.command()
@root_option
@click.option("--checkpoint", callback=check_folder, help="The query's checkpointLocation: check whether it matches.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    root: str | None,
    root_argument: str | None,
    checkpoint: str | None,
    s3_endpoint: str | None,
    conf_file: Path,
    as_json: bool,
) -> None:
    """Check every object that a root's retained records list. Changes nothing.

    Exit code 1: something is damaged. 3: the store cannot be reached or read. Notes are harmless.
    """
    from riffle_spark.offline import verify as verification
    from riffle_spark.worker.member_folders import options_of

    root = required_root(root, root_argument)
    settings = read_settings(conf_file, s3_endpoint)
    options = options_of(settings)
    if checkpoint is not None:
        _check_location(checkpoint, options)
    result = verification.verify(root, checkpoint, options=options, encryption_keys=settings.encryption_keys)
    if as_json:
        echo(json.dumps({**asdict(result), "is_whole": result.is_whole}))
    else:
        for finding in result.findings:
            echo(str(finding))
        checked = f"{result.records} records, {result.objects} objects, {result.checked_bytes} bytes of parts checked"
        newest = "none" if result.version is None else result.version
        echo(f"{checked}; newest batch: {newest}; {'whole' if result.is_whole else 'NOT whole'}")
        if result.way_back:
            echo(f"newest undamaged batch: {result.way_back}")
    click.get_current_context().exit(0 if result.is_whole else 1 if result.is_damaged else _UNREACHABLE)


@main.command()
@root_option
@click.option("--kms-key", metavar="ARN", help="With SSE-KMS: the key that encrypts objects.")
@click.option("--partition", type=click.Choice(_PARTITIONS), default="aws", show_default=True, help="AWS partition.")
@click.option("--read-only", is_flag=True, help="Only for commands that change nothing.")
def policy(root: str | None, root_argument: str | None, kms_key: str | None, partition: str, read_only: bool) -> None:
    """Print the least rights that a job needs on its root: an AWS IAM policy, or a role in Google Cloud or Azure.

    They do not cover Spark's checkpoint. If that is in an object store, the job, rollback and adopt need rights there
    too.
    """
    from riffle_spark.offline.rights import access_policy

    with usage_errors():
        statements = access_policy(
            required_root(root, root_argument), kms_key=kms_key, partition=partition, read_only=read_only
        )
    echo(json.dumps(statements, indent=2))


for command in (dispatch_command, doctor_command, keys_command, plan_command, simulate_command, *STEERING_COMMANDS):
    main.add_command(command)
