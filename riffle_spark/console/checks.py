"""The commands `riffle verify` and `riffle policy`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import (
    UNREACHABLE,
    check_folder,
    check_location,
    echo,
    json_option,
    root_argument,
    store_options,
    usage_errors,
)
from riffle_spark.settings import Settings

if TYPE_CHECKING:
    from riffle_spark.offline.finding import Verified

_PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-eusc", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f")


@click.command("verify")
@root_argument
@click.option(
    "--checkpoint",
    callback=check_folder,
    help="Also check whether this checkpointLocation of the query matches the state.",
)
@store_options
@json_option
def verify_command(
    root: str,
    checkpoint: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Check every object that a root's retained records list. Changes nothing.

    Exit code 1: something is damaged. 3: the object store cannot be reached or read. Notes are harmless.
    """
    from riffle_spark.offline import verify as verification
    from riffle_spark.worker.member_folders import options_of

    options = options_of(settings)
    if checkpoint is not None:
        check_location(checkpoint, options)
    result = verification.verify(root, checkpoint, options=options, encryption_keys=settings.encryption_keys)
    if as_json:
        echo(json.dumps({**asdict(result), "is_whole": result.is_whole}))
    else:
        for finding in result.findings:
            echo(str(finding))
        newest = "none" if result.version is None else result.version
        echo(
            f"Checked {result.records} records, {result.objects} objects and {result.checked_bytes} bytes of parts. "
            f"Newest batch: {newest}. {_verdict(result)}"
        )
        if result.way_back:
            echo(f"Newest undamaged batch: {result.way_back}")
    click.get_current_context().exit(0 if result.is_whole else 1 if result.is_damaged else UNREACHABLE)


def _verdict(result: "Verified") -> str:
    """Return the result of a verification as a sentence."""
    if result.is_whole:
        return "No problems found."
    if result.is_damaged:
        return "Problems found: see above."
    return "Not everything could be checked: see above."


@click.command("policy")
@root_argument
@click.option("--kms-key", metavar="ARN", help="With SSE-KMS: the key that encrypts objects.")
@click.option("--partition", type=click.Choice(_PARTITIONS), default="aws", show_default=True, help="AWS partition.")
@click.option("--read-only", is_flag=True, help="Only for commands that change nothing.")
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the policy is JSON.")
def policy_command(root: str, kms_key: str | None, partition: str, read_only: bool) -> None:
    """Print the least rights that a job needs on its root: an AWS IAM policy, or a role in Google Cloud or Azure.

    They do not cover Spark's checkpoint. If that is in an object store, the job, rollback and adopt need rights there
    too.
    """
    from riffle_spark.offline.rights import access_policy

    with usage_errors():
        statements = access_policy(root, kms_key=kms_key, partition=partition, read_only=read_only)
    echo(json.dumps(statements, indent=2))
