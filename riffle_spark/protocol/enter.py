"""What to do with the batch that Spark hands over: run it, skip it, or refuse it with the remedy. Pure; knows the
rules only.
"""

from __future__ import annotations

from enum import Enum

from riffle_spark.errors import ConflictError
from riffle_spark.protocol.ports import Incoming
from riffle_spark.state.record import Record

__all__ = ["Decision", "decide"]


class Decision(Enum):
    """What becomes of a batch."""

    RUN = "run"
    REPEAT = "repeat"


def decide(tail: Record | None, incoming: Incoming, root: str) -> Decision:
    """Check what Spark hands us against the log's newest record.

    The next id runs. The head's own id with the same query and the same input is a repeat. Everything else raises
    ``ConflictError`` with the remedy.
    """
    if tail is None:
        if incoming.version > 0:
            raise ConflictError(
                f"Spark's checkpoint is at batch {incoming.version}, but {root} is empty",
                remedy="point `root` at the state that belongs to this checkpoint, or start with no state on purpose: "
                f"riffle adopt --root {root} --checkpoint CHECKPOINT --empty --execute",
                where=root,
            )
        return Decision.RUN
    if tail.query_id != incoming.query_id:
        raise ConflictError(
            f"{root} belongs to query {tail.query_id}, this is {incoming.query_id} (a new checkpoint on old state)",
            remedy="start with the checkpoint that belongs to this state, use another root, or take the state over: "
            f"riffle adopt --root {root} --checkpoint CHECKPOINT --execute",
            where=root,
        )
    if incoming.version == tail.version + 1:
        return Decision.RUN
    if incoming.version == tail.version and _same_input(tail, incoming):
        return Decision.REPEAT
    raise _conflict(tail, incoming, root)


def _same_input(tail: Record, incoming: Incoming) -> bool:
    if tail.offsets is not None and incoming.offsets is not None:
        return tail.offsets == incoming.offsets
    return tail.input_digest is not None and tail.input_digest == incoming.input_digest


def _conflict(tail: Record, incoming: Incoming, root: str) -> ConflictError:
    command = f"riffle rollback --root {root} --checkpoint CHECKPOINT --execute --to"
    if incoming.version > tail.version:
        return ConflictError(
            f"Spark hands over batch {incoming.version}, the state in {root} is at {tail.version}: batches are missing",
            remedy=f"take Spark's offsets back to the state: {command} {tail.version}",
            where=root,
        )
    if incoming.version == tail.version:
        return ConflictError(
            f"batch {incoming.version} comes again with other input than the one {root} has committed",
            remedy=f"take the state back to before that batch: {command} {incoming.version - 1}",
            where=root,
        )
    return ConflictError(
        f"Spark hands over batch {incoming.version}, but {root} is already at {tail.version} (an older checkpoint?)",
        remedy=f"take the state back to the checkpoint: {command} {incoming.version - 1}; or restore the newer one",
        where=root,
    )
