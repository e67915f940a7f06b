"""The command `riffle capacity`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from riffle_spark.console.options import check_root, conf_file_option, echo, json_option, read_settings
from riffle_spark.console.tables import show_facts
from riffle_spark.observe.units import show_bytes, show_count

if TYPE_CHECKING:
    from riffle_spark.simulate.capacity import Capacity


@click.command("capacity")
@click.argument("root", metavar="[ROOT]", required=False, callback=check_root)
@click.option("--s3-endpoint", help="With ROOT: base URL of an S3-compatible server.")
@conf_file_option("With ROOT: settings of the store.")
@click.option("--rows-per-second", type=float, required=True, help="Input rows per second at the peak.")
@click.option(
    "--rows-per-worker", type=float, required=True, help="Rows that one slot (worker) processes per second, measured."
)
@click.option("--state-bytes", type=float, help="Bytes of all state. This or ROOT is required.")
@click.option(
    "--row-bytes", type=float, help="Bytes of an input row in memory. With ROOT the default is that of a stored row."
)
@click.option(
    "--rows-in-flight",
    type=float,
    default=0.0,
    show_default=True,
    help="Rows of a batch that one worker has in memory.",
)
@click.option("--cache-fraction", type=float, default=0.1, show_default=True, help="Share of state kept in memory.")
@click.option("--cores", "cores_per_host", type=int, default=4, show_default=True, help="Cores of an executor's host.")
@click.option("--memory-bytes", "memory_per_host", type=float, help="Memory of a host for all its workers.")
@click.option(
    "--standbys", "num_standbys", type=click.IntRange(0), default=0, show_default=True, help="Standbys per key-group."
)
@click.option(
    "--changed-bytes-per-second",
    type=float,
    default=0.0,
    show_default=True,
    help="Bytes of state that change per second.",
)
@json_option
def capacity_command(
    root: str | None,
    s3_endpoint: str | None,
    conf_file: Path,
    as_json: bool,
    **figures: float | None,
) -> None:
    """Compute the workers, hosts, memory and disk of a query, from figures or from a root's sizes."""
    from riffle_spark.keygroups import few_key_groups_warning
    from riffle_spark.simulate.capacity import Need, compute_capacity

    key_groups = 128
    if (root is None) == (figures["state_bytes"] is None):
        raise click.UsageError(
            "Either --state-bytes or ROOT is required.\n  What to do: Give the bytes of state, or the root."
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
    capacity = compute_capacity(need)
    result = asdict(capacity)
    if as_json:
        echo(json.dumps(result))
    else:
        show_facts(_as_text(capacity))
    if warning := few_key_groups_warning(key_groups, result["total_workers"]):
        echo(f"warning: {warning}", err=True)


def _as_text(capacity: "Capacity") -> list[tuple[str, str]]:
    """Return a capacity as facts with units."""
    return [
        ("Workers (slots)", show_count(capacity.total_workers)),
        ("State per worker", show_bytes(round(capacity.state_per_worker))),
        ("Memory per worker", show_bytes(round(capacity.memory_per_worker))),
        ("Hosts", f"{show_count(capacity.num_hosts)}, limited by {capacity.bound_by}"),
        ("Workers per host", f"at most {show_count(capacity.workers_per_host)}"),
        ("Local disk, all hosts", show_bytes(round(capacity.disk_bytes))),
        ("Written to local disks", f"{show_bytes(round(capacity.written_bytes_per_second))} per second"),
    ]
