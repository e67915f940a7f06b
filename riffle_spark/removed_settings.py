"""The settings that earlier versions had, each with what replaces it."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from riffle_spark.errors import ConfigError

__all__ = ["REMOVED", "check_not_removed"]

_OWN_ASSIGNOR = (
    "leave it out, and set it in an assignor of your own: "
    "`assign(view, replace(settings, assignor='high_availability', {name}=...))` (docs/own-assignor.md)"
)
_ATTEMPTS = "leave it out: a call is sent 4 times, and again until `s3_patience` is over. Change `s3_patience`"
_TIMEOUTS = "leave it out: it is {seconds} s now. To survive longer outages, raise `s3_patience`"
_DISK = "leave it out, and set `local_disk_limit`: this mark is {where} between `local_disk_limit` and 100 %"

REMOVED: Final = MappingProxyType(
    {
        "s3_connect_timeout": _TIMEOUTS.format(seconds=5),
        "s3_read_timeout": _TIMEOUTS.format(seconds=20),
        "s3_max_attempts": _ATTEMPTS,
        "s3_max_connections": "leave it out: a process keeps 16 connections open",
        "dispatch_columns": "leave it out, and name the two columns of the batch `topic` and `partition` "
        "(`withColumnRenamed`)",
        "allow_rebalance": _OWN_ASSIGNOR.format(name="allow_rebalance"),
        "moves_at_once": "leave it out: `max_warmup_replicas` bounds warm-ups, and `rebalance_enable` stops moves. For "
        "another bound, set `moves_at_once` in an assignor of your own (docs/own-assignor.md)",
        "instance_balance": _OWN_ASSIGNOR.format(name="instance_balance"),
        "store_balance": _OWN_ASSIGNOR.format(name="store_balance"),
        "store_weights": "leave it out: a changed row of each store counts as the same work. For stores in groups of "
        "their own, change `Task.weight` of the view in an assignor of your own (docs/own-assignor.md)",
        "user_cost": _OWN_ASSIGNOR.format(name="user_cost"),
        "goals": _OWN_ASSIGNOR.format(name="goals"),
        "hard_goals": _OWN_ASSIGNOR.format(name="hard_goals"),
        "topology_script": "leave it out, and set `member_racks` (patterns of host names), or `RIFFLE_RACK` in each "
        "executor's environment",
        "ec2_metadata": "leave it out, and set `RIFFLE_RACK` to the zone in each worker's environment, for example in "
        "`conf/spark-env.sh`",
        "local_disk_high": _DISK.format(where="half-way"),
        "local_disk_flood": _DISK.format(where="three quarters of the way"),
        "local_memory_high": "leave it out, and set `local_memory_limit`: this mark is half-way between "
        "`local_memory_limit` and 100 %",
        "snapshot_chain_share": "leave it out: a snapshot is due when the changes exceed twice its bytes. For earlier "
        "snapshots, lower `snapshot_chain_links`",
    }
)
"""What to do instead, by the name of the setting."""


def check_not_removed(names: Iterable[object], source: str, prefix: str = "") -> None:
    """Raise ``ConfigError`` with the replacements if ``names`` has removed settings.

    ``source`` is what sets them, such as ``code`` or a file. It writes ``prefix`` before each name.
    """
    removed = [name for name in names if isinstance(name, str) and name in REMOVED]
    if not removed:
        return
    listed = ", ".join(repr(name) for name in removed)
    where = ", ".join(f"{prefix}{name}" for name in removed)
    if len(removed) == 1:
        fact = f"setting {listed} was removed, but {source} sets it"
        raise ConfigError(fact, remedy=REMOVED[removed[0]], where=where, id="RIFFLE-0247")
    fact = f"settings {listed} were removed, but {source} sets them"
    remedies = "\n".join(f"  {name}: {REMOVED[name]}" for name in removed)
    raise ConfigError(fact, remedy=f"replace each of them\n{remedies}", where=where, id="RIFFLE-0248")
