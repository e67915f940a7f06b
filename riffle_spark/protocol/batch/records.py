"""Build drafts of log records, with the watermarks in them. The log adds the number and the digest."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.batch.initial import loaded_names
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import IncomingBatch, Work
from riffle_spark.protocol.receipts import outputs_of
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import with_encryption_key


@dataclass(frozen=True, slots=True)
class Stamp:
    """A record's unique commit id, and the time of writing (milliseconds since the epoch)."""

    commit_id: str
    written_ms: int


def first_record(query_id: str, total: int, dispatch: str, stamp: Stamp) -> Record:
    """Return the draft of a log's first record, with epoch 0 and without state.

    ``total`` is the number of key-groups.
    """
    return Record(
        sequence=0,
        kind="claim",
        previous="",
        commit_id=stamp.commit_id,
        log_id=stamp.commit_id,
        epoch=0,
        query_id=query_id,
        version=-1,
        rollbacks=0,
        written_ms=stamp.written_ms,
        total=total,
        dispatch=dispatch,
        full=0,
    )


def claim_record(tail: Record | None, query_id: str, total: int, dispatch: str, stamp: Stamp) -> Record:
    """Return the draft of a claim: the fields of the newest record with the next epoch.

    ``query_id``, ``total`` and ``dispatch`` are used only if there is no record yet.
    """
    base = tail or first_record(query_id, total, dispatch, stamp)
    return _after(base, stamp, kind="claim", epoch=base.epoch + 1)


def requests_record(tail: Record, ownership: Ownership, requests: Mapping[str, object], stamp: Stamp) -> Record:
    """Return the draft that stores operator requests and the present owners while no batch runs.

    ``requests`` are the requests as JSON.
    """
    weights = ownership.placement.weights.to_record()
    return _after(tail, stamp, kind="orders", orders=requests, weights=weights, **_placement_fields(ownership))


def batch_record(
    tail: Record,
    incoming: IncomingBatch,
    operators: Sequence[Operator],
    receipts: Sequence[Receipt],
    ownership: Ownership,
    stamp: Stamp,
    *,
    after_commit: bool,
    key_id: str = "",
) -> Record:
    """Return the draft that commits a batch. ``key_id`` is the id of the key that encrypts its parts.

    The schemas of stores that this batch does not use are kept. The caller sets the weights.
    """
    shards = ownership.placement.shards
    schemas = {
        operator.store: with_encryption_key(operator.schema_after(tail.schemas, tail.epoch), key_id)
        for operator in operators
        if operator.durable
    }
    return _after(
        tail,
        stamp,
        kind="batch",
        version=incoming.version,
        offsets=incoming.offsets,
        input_digest=incoming.input_digest,
        time_ms=incoming.time_ms,
        schemas={**tail.schemas, **schemas},
        outputs=outputs_of(receipts),
        delivers_after_commit=after_commit,
        delivers_as=None,
        previous_offsets=None,
        shards=shards.partitions if shards else (),
        initial_states=loaded_names(tail, operators),
        stale_stores=_stale_stores(tail, schemas),
        row_counts=_row_counts(tail, schemas, receipts),
        **_placement_fields(ownership),
        **watermark_fields(tail, incoming, operators, receipts),
    )


def _placement_fields(ownership: Ownership) -> dict[str, object]:
    """Return a record's fields for owners, standbys and members."""
    assignment = ownership.placement.present
    return {
        "owners": {task_name(task): owner for task, owner in assignment.owners.items()},
        "standbys": {task_name(task): members for task, members in assignment.standbys.items()},
        "members": tuple(member.to_recorded() for _, member in sorted(ownership.membership.live.items())),
    }


def _stale_stores(tail: Record, used_stores: Collection[str]) -> dict[str, int]:
    """Return the stores that the batch after ``tail`` does not use, each with the last batch that it has."""
    return {
        store: tail.stale_stores.get(store, tail.version) for store in sorted(tail.schemas.keys() - set(used_stores))
    }


def _row_counts(
    tail: Record, used_schemas: Mapping[str, Mapping[str, str]], receipts: Sequence[Receipt]
) -> dict[str, int]:
    """Return the number of state rows of each store after a batch, without the stores for which it is unknown.

    It is known if all batches of the store had the same variables, and a version of the software that counts rows wrote
    them. ``used_schemas`` are the schemas of the batch's durable stores.
    """
    counts = dict(tail.row_counts)
    for store, schema in used_schemas.items():
        before = tail.schemas.get(store)
        if before is None:
            counts[store] = 0
        elif before.get("variables") != schema.get("variables"):
            counts.pop(store, None)
    for receipt in receipts:
        if receipt.store in counts:
            counts[receipt.store] += receipt.rows_added - receipt.rows_removed
    return counts


def _after(tail: Record, stamp: Stamp, **changes: object) -> Record:
    """Return the draft after ``tail``: the fields of ``tail`` with these changes."""
    fields = {"target": None, "commit_id": stamp.commit_id, "written_ms": stamp.written_ms, **changes}
    return replace(tail, **fields)  # type: ignore[arg-type]


def with_last_pass(tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], work: Work) -> IncomingBatch:
    """Return the batch with the watermark of its own rows, if it may be the last batch and has event-time timers.

    Only batches with ``availableNow`` may be the last. A job reads the newest event times of the input.

    With Spark's watermark the batch is returned unchanged: the run may have another batch, whose rows may be in time
    for a window that this batch would close.
    """
    if incoming.watermark_source == "spark" or not incoming.available_now:
        return incoming
    if all(operator.declared.time_mode != "EventTime" for operator in operators):
        return incoming
    columns = {operator.store: operator.watermark.column for operator in operators if operator.watermark}
    newest_by_column = work.newest_event_times(sorted(set(columns.values())))
    newest_by_store = {
        store: newest_by_column[column] for store, column in columns.items() if column in newest_by_column
    }
    event_times = _latest(tail.event_times, newest_by_store)
    return replace(incoming, last_pass_ms=_watermark_ms(tail, incoming, operators, event_times))


def watermark_fields(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Iterable[Receipt]
) -> dict[str, object]:
    """Return the event-time fields of a batch's record.

    If the query uses Spark's watermark, rows of the next batch are late by the watermark of this batch.
    """
    if incoming.watermark_source == "spark":
        spark_watermark_ms = incoming.watermark_ms or 0
        return {"watermark_ms": spark_watermark_ms, "late_watermark_ms": spark_watermark_ms}
    if not any(operator.watermark for operator in operators):
        watermarks = [ms for ms in (tail.watermark_ms, incoming.watermark_ms) if ms is not None]
        return {"watermark_ms": max(watermarks, default=None)}
    newest = ({r.store: r.event_time_max_ms} for r in receipts if r.event_time_max_ms is not None)
    event_times = _latest(tail.event_times, *newest)
    watermark_ms = _watermark_ms(tail, incoming, operators, event_times)
    late_watermark_ms = tail.watermark_ms or 0
    if incoming.last_pass_ms is not None:
        late_watermark_ms = max(late_watermark_ms, incoming.last_pass_ms)
        watermark_ms = max(watermark_ms, incoming.last_pass_ms)
    return {"watermark_ms": watermark_ms, "late_watermark_ms": late_watermark_ms, "event_times": event_times}


def _watermark_ms(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], event_times: Mapping[str, int]
) -> int:
    """Return riffle_spark's watermark after a batch, given the newest event time of each store. It never decreases."""
    delays_ms = {operator.store: operator.watermark.delay_ms for operator in operators if operator.watermark}
    watermarks = [event_times[store] - delay_ms if store in event_times else 0 for store, delay_ms in delays_ms.items()]
    chosen = max if incoming.watermark_policy == "max" else min
    return max(tail.watermark_ms or 0, chosen(watermarks, default=0))


def _latest(*event_times: Mapping[str, int]) -> dict[str, int]:
    """Return the newest event time of each store over all mappings."""
    stores = sorted({store for times in event_times for store in times})
    return {store: max(times[store] for times in event_times if store in times) for store in stores}
