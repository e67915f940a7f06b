"""Compare a checkpoint with the newest record of a root."""

from collections.abc import Callable, Iterable, Mapping

from riffle_spark.errors import command
from riffle_spark.offline.checkpoint import Checkpoint, describe_missing_entries
from riffle_spark.protocol.batch.enter import describe_take_over, has_same_offsets
from riffle_spark.state.log.record import Record


def describe_mismatch(
    checkpoint: Checkpoint,
    root: str,
    tail: Record | None,
    records: Mapping[int, Record],
    newer_records: Callable[[], Iterable[Record]],
) -> tuple[str, str] | None:
    """Return why a query cannot continue with this checkpoint after ``tail``, and the remedy, or ``None`` if it can.

    ``records`` are the intact records of the root, by number. ``newer_records`` reads those that were appended since.
    A running query commits to the log, and then to its checkpoint. So the checkpoint is read after ``tail``, and must
    match it or a record that was appended before the second read of the log.
    """
    query_id = checkpoint.find_query_id()
    if query_id is None:
        problem = f"{checkpoint.shown} is not a checkpoint of a streaming query."
        return problem, f"Name the folder that is set as checkpointLocation. If it is lost, {describe_take_over(root)}"
    if tail is None:
        return None
    if query_id != tail.query_id:
        problem = f"The checkpoint belongs to query {query_id}, the state to query {tail.query_id}."
        return problem, f"Name the checkpoint of the state's query, or {describe_take_over(root, checkpoint.shown)}"
    batch = checkpoint.next_batch()
    mismatch = _describe_batch_mismatch(checkpoint, root, tail, records, batch)
    for record in newer_records() if mismatch is not None else ():
        mismatch = _describe_batch_mismatch(checkpoint, root, record, records, batch)
        if mismatch is None:
            return None
    return mismatch


def _describe_batch_mismatch(
    checkpoint: Checkpoint, root: str, tail: Record, records: Mapping[int, Record], batch: int
) -> tuple[str, str] | None:
    """Return problem and remedy if the next ``batch`` of a checkpoint does not continue the state, else ``None``."""
    forward = f"move the checkpoint to the state's batch: {rollback_command(root, checkpoint, tail.version)}"
    if batch == tail.version and tail.offsets is not None and checkpoint.offsets(batch) not in (None, tail.offsets):
        problem = f"The checkpoint plans batch {batch} with other offsets than those it was committed with."
        return problem, f"To continue, {forward}"
    if batch == tail.version + 1 and not has_same_offsets(tail.offsets, checkpoint.offsets(tail.version)):
        problem = f"Batch {tail.version} has other offsets in the checkpoint than those it was committed with."
        return problem, f"Restore the matching root or checkpoint from a backup, or {forward}"
    problem = f"Spark's next batch is {batch}, but the state is at batch {tail.version}."
    newer = "Restore the newer root or checkpoint from a backup"
    if batch > tail.version + 1:
        return problem, f"{newer}, or {forward}"
    newest_entries = checkpoint.newest_source_entries()
    missing = describe_missing_entries(tail.offsets, newest_entries)
    if batch >= tail.version and not missing:
        return None
    if missing:
        problem = f"The checkpoint is older than the state: {missing}."
    versions = _fitting_versions(tail, records, min(batch - 1, tail.version), newest_entries)
    if not missing and batch - 1 not in versions:
        alternative = f", or {forward}"
    elif versions:
        alternative = f", or roll back: {rollback_command(root, checkpoint, max(versions))}"
    else:
        alternative = ". No retained batch matches this checkpoint."
    return problem, newer + alternative


def _fitting_versions(
    tail: Record, records: Mapping[int, Record], newest: int, newest_entries: Mapping[int, int]
) -> list[int]:
    """Return the promised batches up to ``newest`` whose file sources' entries the checkpoint has."""
    promised_records = {
        records[number].version: records[number] for number in sorted(records) if number >= tail.promised
    }
    return [
        version
        for version, record in promised_records.items()
        if version <= newest and not describe_missing_entries(record.offsets, newest_entries)
    ]


def rollback_command(root: str, checkpoint: Checkpoint, target: object) -> str:
    """Return the command that rolls state and checkpoint back to ``target``."""
    return command("rollback", "--execute", root=root, checkpoint=checkpoint.shown, to=target)
