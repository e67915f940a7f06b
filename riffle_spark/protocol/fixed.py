"""What a state is bound to: key-groups, dispatch, schemas, and the partitions that it must know before rows are routed.
Knows the newest record and settings. Does not know steps or rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.initial import check_initial
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Incoming, Work
from riffle_spark.protocol.schemas import check_schemas
from riffle_spark.protocol.shards import Shards, partitions_in
from riffle_spark.settings import Settings
from riffle_spark.state.record import Record

__all__ = ["check_fixed", "shards_of"]


def check_fixed(tail: Record | None, settings: Settings, operators: Sequence[Operator], root: str) -> None:
    """Raise ``ConfigError`` unless settings and operators are those that the state was written with, and can go
    together.
    """
    if tail is not None:
        _check_same(tail, settings, operators, root)
    check_initial(tail, settings.dispatch, operators)


def _check_same(tail: Record, settings: Settings, operators: Sequence[Operator], root: str) -> None:
    if tail.dispatch != settings.dispatch:
        raise ConfigError(
            f"dispatch = {settings.dispatch}, but the state in {root} is that of dispatch = {tail.dispatch}",
            remedy=f"set dispatch = {tail.dispatch}, or switch the state while the query is stopped: "
            f"riffle dispatch --root {root} --to {settings.dispatch} --execute",
            where="dispatch",
        )
    if tail.total != settings.key_groups:
        raise ConfigError(
            f"key_groups = {settings.key_groups}, but the state in {root} has {tail.total}",
            remedy=f"set key_groups = {tail.total}, or change the state while the query is stopped: "
            f"riffle dispatch --root {root} --to {tail.dispatch} --key-groups {settings.key_groups} --execute",
            where="key_groups",
        )
    check_schemas(tail.schemas, operators)


def shards_of(tail: Record, incoming: Incoming, work: Work) -> Shards | None:
    """Return the registry with the batch's partitions, new ones appended; ``None`` where keys are dispatched.

    Where Spark's offsets do not tell the partitions, the rows are asked, with one job.
    """
    if tail.dispatch == "key_group":
        return None
    found = partitions_in(incoming.offsets)
    return Shards(tail.shards).extended(work.partitions(tail.total + 1) if found is None else found, tail.total)
