"""Records as a driver drafts them, before the log numbers them, and the watermark that they carry. Pure; knows records,
operators and receipts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.batch.initial import loaded
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.groups import task_name
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import IncomingBatch, Work
from riffle_spark.protocol.receipts import outputs_of
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import with_key

__all__ = [
    "Stamp",
    "batch_record",
    "claim_record",
    "first_record",
    "requests_record",
    "watermark_fields",
    "with_last_pass",
]


class Stamp:
    """What makes a record this driver's own: a commit id and when it was written (milliseconds since the epoch)."""

    __slots__ = ("commit_id", "written_ms")

    def __init__(self, commit_id: str, written_ms: int) -> None:
        self.commit_id = commit_id
        self.written_ms = written_ms


def first_record(query_id: str, total: int, dispatch: str, stamp: Stamp) -> Record:
    """Return the draft of a log's first record: epoch 0, no version, no state."""
    return Record(
        sequence=0, kind="claim", previous="", commit_id=stamp.commit_id, log_id=stamp.commit_id, epoch=0,
        query_id=query_id, version=-1,
        rollbacks=0, written_ms=stamp.written_ms, total=total, dispatch=dispatch, full=0,
    )  # fmt: skip


def claim_record(tail: Record | None, query_id: str, total: int, dispatch: str, stamp: Stamp) -> Record:
    """Return the draft by which a driver takes over: the tail's facts under the next epoch."""
    base = tail or first_record(query_id, total, dispatch, stamp)
    return _after(base, stamp, kind="claim", epoch=base.epoch + 1)


def requests_record(tail: Record, ownership: Ownership, orders: Mapping[str, object], stamp: Stamp) -> Record:
    """Return the draft that says what stands asked for where no batch comes: the tail's facts, and who owns by then."""
    return _after(tail, stamp, kind="orders", orders=orders, **_placement(ownership))


def _placement(ownership: Ownership) -> dict[str, object]:
    """Return what a record tells of owners, standbys, members and their load."""
    present, live = ownership.placement.present, ownership.membership.live
    return {
        "owners": {task_name(t): owner for t, owner in present.owners.items()},
        "standbys": {task_name(t): members for t, members in present.standbys.items()},
        "weights": ownership.placement.weights.to_record(),
        "members": tuple(living.recorded() for _, living in sorted(live.items())),
    }


def batch_record(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Sequence[Receipt],
    ownership: Ownership, stamp: Stamp, *, after_commit: bool, key: str = "",
) -> Record:  # fmt: skip
    """Return the draft that commits a batch, whose parts are encrypted with ``key``. Schemas of stores that are not run
    now are kept.
    """
    shards, texts = ownership.placement.shards, tail.schemas
    durable = {one.store: with_key(one.schema_after(texts, tail.epoch), key) for one in operators if one.durable}
    return _after(
        tail, stamp, kind="batch", version=incoming.version, offsets=incoming.offsets,
        input_digest=incoming.input_digest,
        time_ms=incoming.time_ms, schemas={**tail.schemas, **durable},
        outputs=outputs_of(receipts), delivers_after_commit=after_commit, delivers_as=None,
        shards=shards.partitions if shards else (),
        initial_states=loaded(tail, operators), stale_stores=_stale_after(tail, durable), **_placement(ownership),
        **watermark_fields(tail, incoming, operators, receipts),
    )  # fmt: skip


def _stale_after(tail: Record, durable: Collection[str]) -> dict[str, int]:
    """Return the stores that lack rows after a batch with these durable stores follows ``tail``, each with the last
    version whose rows it has.
    """
    left_out = sorted(tail.schemas.keys() - set(durable))
    return {store: tail.stale_stores.get(store, tail.version) for store in left_out}


def _after(tail: Record, stamp: Stamp, **changes: object) -> Record:
    fresh = {"target": None, "outputs": tail.outputs, **changes}
    return replace(tail, commit_id=stamp.commit_id, written_ms=stamp.written_ms, **fresh)  # type: ignore[arg-type]


def with_last_pass(tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], work: Work) -> IncomingBatch:
    """Return the batch with the watermark that its own rows make, where no batch may follow and timers go by it.

    That takes one job over the input. By Spark's watermark there is no such pass: another batch may follow in the run,
    and rows that this one would have closed a window for are in time there.
    """
    if incoming.watermark_source == "spark":
        return incoming
    if not incoming.available_now or all(operator.declared.time_mode != "EventTime" for operator in operators):
        return incoming
    columns = {operator.store: operator.watermark.column for operator in operators if operator.watermark}
    found = work.newest_event_times(sorted(set(columns.values())))
    newest = {store: found[column] for store, column in columns.items() if column in found}
    return replace(incoming, last_pass_ms=_watermark(tail, incoming, operators, _latest(tail.event_times, newest)))


def watermark_fields(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Iterable[Receipt]
) -> dict[str, object]:
    """Return what a batch's record says of event time. Without any operator's watermark it is Spark's own, if any.

    Where Spark's is the query's, it is the batch's own: the next batch's rows are late by it.
    """
    if incoming.watermark_source == "spark":
        reached = incoming.watermark_ms or 0
        return {"watermark_ms": reached, "late_watermark_ms": reached}
    if not any(operator.watermark for operator in operators):
        known = [ms for ms in (tail.watermark_ms, incoming.watermark_ms) if ms is not None]
        return {"watermark_ms": max(known, default=None)}
    seen = [(receipt.store, receipt.event_time_max_ms) for receipt in receipts]
    event_times = _latest(tail.event_times, *({store: ms} for store, ms in seen if ms is not None))
    reached, last_pass = _watermark(tail, incoming, operators, event_times), incoming.last_pass_ms
    late = tail.watermark_ms or 0
    if last_pass is not None:
        late, reached = max(late, last_pass), max(reached, last_pass)
    return {"watermark_ms": reached, "late_watermark_ms": late, "event_times": event_times}


def _watermark(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], event_times: Mapping[str, int]
) -> int:  # fmt: skip
    timed = [(operator.store, operator.watermark.delay_ms) for operator in operators if operator.watermark]
    own = [event_times[store] - delay_ms if store in event_times else 0 for store, delay_ms in timed]
    chosen = max if incoming.watermark_policy == "max" else min
    return max(tail.watermark_ms or 0, chosen(own, default=0))


def _latest(*maps: Mapping[str, int]) -> dict[str, int]:
    stores = sorted({store for each in maps for store in each})
    return {store: max(each[store] for each in maps if store in each) for store in stores}
