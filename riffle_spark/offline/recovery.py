"""Bind state to a new checkpoint (`riffle adopt`), or roll state and checkpoint back together (`riffle rollback`)."""

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, UnavailableError, command
from riffle_spark.offline.checkpoint import Checkpoint, describe_missing_entries
from riffle_spark.offline.checkpoint_comparison import rollback_command
from riffle_spark.offline.command_errors import machine_clocks, translated_errors
from riffle_spark.offline.rollback_targets import current_history, find_target, offsets_before, read_intact
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.batch.stored_requests import without_key_groups
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

_DEFAULT_KEY_GROUPS = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a command, one sentence each. ``executed`` is false if nothing was changed.

    ``version`` is the batch that the state is at, ``offsets`` Spark's offset-log entry of that batch. ``next_step`` is
    what the operator does after the steps were executed, as a sentence. It is empty if the command never changes
    anything, or found nothing to change.
    """

    steps: tuple[str, ...]
    executed: bool
    version: int
    offsets: str | None
    next_step: str = ""


def adopt(
    root: str,
    checkpoint: str,
    *,
    options: StoreOptions | None = None,
    empty: bool = False,
    key_groups: int = _DEFAULT_KEY_GROUPS,
    dispatch: str = "key_group",
    delivered: bool | str = False,
    execute: bool = False,
) -> Plan:
    """Bind the state below a root to the query of another checkpoint.

    The next batch of that query runs on the state. The query must start reading at the offsets of the plan. Otherwise
    rows are missed or counted twice.

    Args:
        root: where the state is stored.
        checkpoint: the ``checkpointLocation`` of the new query. The query must have been started once.
        options: how to reach the object store.
        empty: allow a root without state, and fix its number of key-groups and dispatch.
        key_groups: with ``empty``, the number of key-groups.
        dispatch: with ``empty``, the dispatch: ``key_group``, ``partition`` or ``hashed``.
        delivered: with ``deliver_after_commit``, whether the newest batch's output was delivered, as ``True`` or as
            the checkpoint of the query that had the state.
        execute: change the root. Without it nothing is changed.

    Returns:
        The steps, and the offsets from which the query must start.

    Raises:
        ConfigError: the root has no state, the checkpoint is invalid or belongs to the same query, or it is unknown
            whether output was delivered.
        FencedError: the query continued during the call.

    Example:
        >>> adopt("s3://bucket/state/visits", "s3://bucket/checkpoints/new", execute=True)  # doctest: +SKIP
    """
    new_settings = Settings(key_groups=key_groups, dispatch=dispatch)  # refuses invalid values
    root = only_root(root, options or StoreOptions())
    objects = open_store(root, options or StoreOptions())
    log = Log(objects, root, machine_clocks)
    spark = Checkpoint(checkpoint, options)
    tail = log.open()
    query_id = spark.query_id()
    version = spark.next_batch() - 1
    _check_state(root, log, empty=empty)
    if tail is not None:
        if tail.delivers_after_commit and tail.version >= 0:
            deliverer = Checkpoint(delivered if isinstance(delivered, str) else checkpoint, options)
            _check_delivered(tail, query_id, deliverer, root, is_confirmed=delivered is True)
        _check_not_run(log, tail, spark, version, root)
    stamp = _stamp()
    base = tail or first_record(query_id, new_settings.key_groups, new_settings.dispatch, stamp)
    if empty:
        base = replace(_with_dispatch(base, new_settings), stale_stores={})
    steps = [f"bind the state of batch {base.version} in {root} to query {query_id}, whose next batch is {version + 1}"]
    if empty:
        steps.append(f"fix dispatch {base.dispatch} and {base.total} key-groups")
    steps += [f"warning: {gap}" for gap in spark.describe_start_gaps(version, base.offsets)]
    if execute:
        with translated_errors(log, f"bind the state to query {query_id}"):
            log.append(_adopt_draft(base, stamp, query_id, version, spark.watermark_ms(version)), log.manifest)
    next_step = f"Start query {query_id}. It continues with batch {version + 1}."
    return Plan(tuple(steps), execute, version, base.offsets, next_step)


def _adopt_draft(base: Record, stamp: Stamp, query_id: str, version: int, spark_watermark_ms: int | None) -> Record:
    """Return the record that binds the state of ``base`` to a query after batch ``version``.

    A query with Spark's watermark continues with that of its checkpoint, so its first batch drops the same late rows.
    """
    # A log with newest event times has the query's own watermark instead.
    watermark_ms = None if base.event_times else spark_watermark_ms
    return replace(
        base,
        kind="adopt",
        commit_id=stamp.commit_id,
        written_ms=stamp.written_ms,
        epoch=base.epoch + 1,
        query_id=query_id,
        version=version,
        offsets=None,
        input_digest=None,
        target=None,
        outputs=(),
        watermark_ms=watermark_ms,
        late_watermark_ms=watermark_ms,
        event_times={},
        delivers_as=None,
        previous_offsets=None,
        delivers_after_commit=False,
        # The new query numbers its batches from its own beginning, so its stale stores lack rows from before it.
        stale_stores=dict.fromkeys(base.stale_stores, -1),
    )


def _check_state(root: str, log: Log, *, empty: bool) -> None:
    """Raise ``ConfigError`` unless the root has state, or has none and ``empty`` is set."""
    if log.tail is None and not empty:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(
            f"{root} holds no state.",
            remedy="Correct the root, or use --empty to start without state.",
            where=root,
            id="RIFFLE-0133",
        )
    if empty and log.manifest.entries:
        raise ConfigError(
            f"{root} holds state.",
            remedy="Adopt it without --empty, or name an empty root.",
            where=root,
            id="RIFFLE-0134",
        )


def _with_dispatch(base: Record, settings: Settings) -> Record:
    """Return a record without state, with the dispatch and key-groups of ``settings`` and no entry by key-group."""
    if (base.total, base.dispatch) == (settings.key_groups, settings.dispatch):
        return base
    return replace(
        base,
        total=settings.key_groups,
        dispatch=settings.dispatch,
        shards=(),
        owners={},
        standbys={},
        orders=without_key_groups(base.orders),
    )


def _check_not_run(log: Log, tail: Record, spark: Checkpoint, version: int, root: str) -> None:
    """Raise ``ConfigError`` if the query already owns the state, or ran batches on it that its checkpoint lacks.

    In the first case adopting would delete its event time. In the second, delivery ids would repeat with other rows.
    ``version`` is the last batch of the checkpoint.
    """
    query_id = spark.query_id()
    if tail.query_id == query_id and tail.kind != "adopt" and version >= tail.version:
        if version == tail.version:
            remedy = "Start the query. It needs no adopt."
        else:
            remedy = f"Run {rollback_command(root, spark, tail.version)}, or restore the root of that batch."
        raise ConfigError(
            f"Query {query_id} already owns this state, at batch {tail.version}. Its checkpoint is at batch {version}.",
            remedy=remedy,
            where=root,
            id="RIFFLE-0135",
        )
    for record in [tail] if tail.query_id == query_id else current_history(log, tail):
        if record.query_id == query_id and record.rollbacks == tail.rollbacks and record.version > version:
            # Cause: The checkpoint was restored from an older backup.
            raise ConfigError(
                f"Query {query_id} ran batch {record.version} on this state, but its checkpoint is at batch {version}. "
                "Rows would be counted twice.",
                remedy=f"Run {rollback_command(root, spark, version)}, or use --to record:{record.sequence}.",
                where=root,
                id="RIFFLE-0136",
            )


def _check_delivered(tail: Record, query_id: str, spark: Checkpoint, root: str, *, is_confirmed: bool) -> None:
    """Raise ``ConfigError`` if sealed output may be undelivered, according to the checkpoint ``spark`` of its query.

    ``query_id`` is the query that adopts the state. ``is_confirmed`` is whether the operator confirms the delivery. A
    confirmation is refused if ``query_id`` already owns the state, because that query will deliver the batch itself.
    """
    next_batch = spark.next_batch() if spark.query_id() == tail.query_id else -1
    if next_batch == tail.version and tail.query_id == query_id:
        raise ConfigError(
            f"Query {query_id} already owns this state, and will run batch {tail.version} again to deliver it.",
            remedy="Start the query. It needs no adopt.",
            where=root,
            id="RIFFLE-0137",
        )
    if is_confirmed or next_batch > tail.version or not any(link.rows for _, link in tail.outputs):
        return
    # Cause: With `deliver_after_commit` the sink gets a batch after its commit. The query stopped in between.
    raise ConfigError(
        f"The output of batch {tail.version} may be undelivered, and only query {tail.query_id} can deliver it.",
        remedy="Start that query once more, then pass its checkpoint with --previous CHECKPOINT. Or check that the "
        f"sink has delivery {tail.query_id}/{tail.delivery_rollbacks}/{tail.version}, and pass --delivered.",
        where=root,
        id="RIFFLE-0138",
    )


def rollback(
    root: str, to: int | str, checkpoint: str, *, options: StoreOptions | None = None, execute: bool = False
) -> Plan:
    """Roll the state below a root and Spark's checkpoint back to a retained batch or a savepoint, together.

    A batch with undelivered output stays planned in the checkpoint, so that Spark runs it again and delivers it. The
    query must be stopped.

    Args:
        root: where the state is stored.
        to: the batch, -1 for the state before the first one. ``record:17`` names a record of the log instead, also
            one that an earlier rollback discarded. ``savepoint:NAME`` names a savepoint. ``time:2026-11-26T14:00Z`` is
            the state that the query had at that time.
        checkpoint: the query's ``checkpointLocation``. It may be behind the batch.
        options: how to reach the object store.
        execute: change the root and the checkpoint. Without it nothing is changed.

    Returns:
        The steps, the batch, and its offsets.

    Raises:
        ConfigError: the batch is not retained, or the checkpoint belongs to another query.
        CorruptStateError: objects of the batch are missing.
        FencedError: the query continued during the call.

    Example:
        >>> rollback("s3://bucket/state/visits", 4711, "s3://bucket/checkpoints/visits")  # doctest: +SKIP
    """
    root = only_root(root, options or StoreOptions())
    objects = open_store(root, options or StoreOptions())
    log = Log(objects, root, machine_clocks)
    spark = Checkpoint(checkpoint, options)
    tail = log.open(broken=True)
    if tail is None:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(
            f"{root} holds no state.",
            remedy="Correct the root.",
            where=root,
            id="RIFFLE-0139",
        )
    query_id = spark.query_id()
    with translated_errors(log, f"roll the state back to {to}"):
        target = find_target(log, tail, to, objects)
        _check_query(query_id, spark, tail, target)
        _check_sources(spark, target, root)
        offsets = _offsets_of(spark, target)
        manifest = log.manifest_of(target)
        runs_again = target.delivers_after_commit and target.version >= 0
        needed_objects = manifest.object_names() | (
            {link.object for _, link in target.outputs} if runs_again else set()
        )
        _check_present(objects, needed_objects)
        is_tail_intact = _is_intact(log, tail)
        if is_tail_intact:
            way_back = f"--to record:{tail.sequence} returns to batch {tail.version} while that record is retained"
        else:
            way_back = f"record {tail.sequence}, the newest, is damaged, so nothing returns to it"
        step = f"append a rollback of {root} to batch {target.version} (record {target.sequence}); {way_back}"
        if execute:
            previous_offsets = offsets_before(log, target)
            log.append(_rollback_draft(target, tail, query_id, runs_again=runs_again), manifest)
    steps = [step]
    if execute:
        with _half_done_errors(target, way_back):
            _check_present(objects, () if is_tail_intact else needed_objects)
            steps += spark.restore(target.version, offsets, previous_offsets, runs_again=runs_again)
    else:
        suffix = ", which runs again to deliver its output" if runs_again else ""
        steps.append(f"make batch {target.version} the last batch of the checkpoint {spark.shown}{suffix}")
    resumed = f"runs batch {target.version} again" if runs_again else f"continues with batch {target.version + 1}"
    return Plan(tuple(steps), execute, target.version, target.offsets, f"Start the query. It {resumed}.")


def _rollback_draft(target: Record, tail: Record, query_id: str, *, runs_again: bool) -> Record:
    """Return the record that follows ``tail`` with the state of ``target``."""
    stamp = _stamp()
    same_key_groups = (target.dispatch, target.total) == (tail.dispatch, tail.total)
    return replace(
        target,
        savepoints=tail.savepoints,
        kind="rollback",
        commit_id=stamp.commit_id,
        written_ms=stamp.written_ms,
        epoch=tail.epoch + 1,
        query_id=query_id,
        rollbacks=tail.rollbacks + 1,
        target=target.sequence,
        promised=tail.promised,
        members=tail.members,
        delivers_as=target.delivery_rollbacks if runs_again else None,
        orders=tail.orders if same_key_groups else without_key_groups(tail.orders),
    )


def _is_intact(log: Log, tail: Record) -> bool:
    """Return whether ``tail`` is the newest record of the log. Then its promise holds.

    If the newest record is damaged, ``tail`` is an older record. The damaged record may have released objects, so their
    presence is checked again once the rollback's record keeps other drivers out.
    """
    return any(record.commit_id == tail.commit_id for record in read_intact(log, [tail.sequence]).values())


@contextmanager
def _half_done_errors(target: Record, way_back: str) -> Iterator[None]:
    """Add the finished steps to the errors of the block, which runs after the rollback is already in the log."""
    try:
        yield
    except (CorruptStateError, RefusedError, UnavailableError) as error:
        remedy = error.remedy
        if not isinstance(error, CorruptStateError):
            remedy += " Run the same command before you start the query, which is refused until then."
        raise type(error)(
            f"{error.problem} The log was rolled back to batch {target.version}, but the checkpoint was not, or only "
            f"in part ({way_back}).",
            remedy=remedy,
            where=error.where,
            id="RIFFLE-0900",
        ) from error


def _check_query(query_id: str, spark: Checkpoint, tail: Record, target: Record) -> None:
    """Raise ``ConfigError`` if the checkpoint's query owns the state neither now nor at ``target``."""
    if query_id not in {tail.query_id, target.query_id}:
        raise ConfigError(
            f"Checkpoint {spark.shown} belongs to query {query_id}, but this state belongs to query {tail.query_id}. "
            f"Rolling back would delete batches of query {query_id}.",
            remedy="Name the checkpoint of the state's query. Use riffle adopt to give the state to another query.",
            where="--checkpoint",
            id="RIFFLE-0140",
        )


def _check_sources(spark: Checkpoint, target: Record, root: str) -> None:
    """Raise ``ConfigError`` if a file source's log ends before ``target``, because it cannot be moved forward."""
    missing = describe_missing_entries(target.offsets, spark.newest_source_entries())
    if missing:
        # Cause: A file source lists the files that it has read in the checkpoint. This list ends before that batch.
        raise ConfigError(
            f"{spark.shown} cannot move to batch {target.version} (record {target.sequence}): {missing}.",
            remedy="Restore a newer checkpoint, or find an older batch that fits: "
            + command("verify", root=root, checkpoint=spark.shown),
            where="--checkpoint",
            id="RIFFLE-0141",
        )


def _offsets_of(spark: Checkpoint, target: Record) -> str | None:
    """Return Spark's offset-log entry of a record's batch, from the log or else from the checkpoint.

    Raises ``ConfigError`` if neither has it.
    """
    if target.version < 0:
        return target.offsets
    offsets = spark.offsets(target.version) if target.offsets is None else target.offsets
    if offsets is None:
        raise ConfigError(
            f"Neither the log nor checkpoint {spark.shown} has Spark's offsets of batch {target.version}. The state "
            "was adopted at this batch.",
            remedy="Name a newer checkpoint of this query, or roll back to another batch.",
            where="--checkpoint",
            id="RIFFLE-0142",
        )
    return offsets


def _stamp() -> Stamp:
    """Return a new commit id with the present time."""
    return Stamp(uuid.uuid4().hex, time.time_ns() // 1_000_000)


def _check_present(objects: ObjectStore, object_names: Iterable[str]) -> None:
    """Raise ``CorruptStateError`` if one of these objects is missing."""
    names = sorted(object_names)
    missing = [name for name, exists in zip(names, in_parallel(objects.exists, names), strict=True) if not exists]
    if missing:
        # Cause: A person or a lifecycle rule deleted them, or the batch is no longer retained.
        raise CorruptStateError(
            f"{len(missing)} objects of this batch's state are missing.",
            remedy="Choose a newer batch.",
            where=missing[0],
            id="RIFFLE-0143",
        )
