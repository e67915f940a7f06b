"""The settings of earlier versions, with their replacements."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from riffle_spark.errors import ConfigError

_OWN_ASSIGNOR = (
    "Set it in your own assignor: "
    "`assign(view, replace(settings, assignor='high_availability', {name}=...))` (docs/own-assignor.md)."
)
_TIMEOUTS = "Remove it. The timeout is {seconds} s. To survive longer outages, raise `s3_patience`."
_DISK = "Set `local_disk_limit`. This limit is {place} between `local_disk_limit` and 100 %."

REMOVED: Final = MappingProxyType(
    {
        "s3_connect_timeout": _TIMEOUTS.format(seconds=5),
        "s3_read_timeout": _TIMEOUTS.format(seconds=20),
        "s3_max_attempts": "Remove it. A call has 4 attempts, and more until `s3_patience` is over. Set `s3_patience`.",
        "s3_max_connections": "Remove it. A process keeps 16 connections open.",
        "dispatch_columns": "Rename the two columns of the batch to `topic` and `partition` (`withColumnRenamed`).",
        "allow_rebalance": _OWN_ASSIGNOR.format(name="allow_rebalance"),
        "moves_at_once": "Set `max_warmup_replicas` to limit warm-ups, or `rebalance_enable` to stop moves. For "
        "another limit, set `moves_at_once` in your own assignor (docs/own-assignor.md).",
        "instance_balance": _OWN_ASSIGNOR.format(name="instance_balance"),
        "store_balance": _OWN_ASSIGNOR.format(name="store_balance"),
        "store_weights": "Remove it. A changed row counts as the same work in each store. If the stores have their own "
        "groups, change `Task.weight` of the view in your own assignor (docs/own-assignor.md).",
        "user_cost": _OWN_ASSIGNOR.format(name="user_cost"),
        "goals": _OWN_ASSIGNOR.format(name="goals"),
        "hard_goals": _OWN_ASSIGNOR.format(name="hard_goals"),
        "topology_script": "Set `member_racks` (host name patterns), or `RIFFLE_RACK` in the executors' environment.",
        "ec2_metadata": "Set `RIFFLE_RACK` to the zone in the workers' environment, such as in `conf/spark-env.sh`.",
        "local_disk_high": _DISK.format(place="half-way"),
        "local_disk_flood": _DISK.format(place="three quarters of the way"),
        "local_memory_high": "Set `local_memory_limit`. This limit is half-way between `local_memory_limit` and 100 %.",
        "snapshot_chain_share": "Remove it. A snapshot is due when the changes exceed twice its bytes. For earlier "
        "snapshots, lower `snapshot_chain_links`.",
    }
)
"""The remedy for each removed setting."""


def check_not_removed(names: Iterable[object], source: str, prefix: str = "") -> None:
    """Raise ``ConfigError`` with all replacements if ``names`` contains removed settings.

    ``source`` is the place that sets them, such as ``code`` or a file. ``prefix`` is the text before each name in this
    place.
    """
    removed = [name for name in names if isinstance(name, str) and name in REMOVED]
    if removed:
        raise ConfigError(
            f"{source} sets removed settings: {', '.join(removed)}.",
            remedy="\n".join(f"Remove {name}. {REMOVED[name].removeprefix('Remove it. ')}" for name in removed),
            where=", ".join(f"{prefix}{name}" for name in removed),
            id="RIFFLE-0247",
        )
