"""A query's watermark: how far event time has come, batch by batch. Pure; knows records, operators and receipts only.

Theory of operation. It is Spark's way, kept in the log. Each operator that has a watermark comes as far as its newest
event time less its delay; the query's watermark is the least of these, or with Spark's policy ``max`` the greatest,
begins at 0 and never goes back. An operator that has seen no event time yet counts as 0, so with ``min`` it holds the
others. What a batch brings counts from the next batch on:
timers there are due by the watermark, rows are late by the one before it. Where no batch may follow, a last pass stands
for the batch without rows that Spark would run: its timers are due by what the batch brought, and rows after it are
late by that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import IncomingBatch, Work
from riffle_spark.state.log.record import Record

__all__ = ["committed", "with_last_pass"]


def with_last_pass(tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], work: Work) -> IncomingBatch:
    """Return the batch with the watermark that its own rows make, where no batch may follow and timers go by it.

    That takes one job over the input.
    """
    if not incoming.available_now or all(operator.declared.time_mode != "EventTime" for operator in operators):
        return incoming
    columns = {operator.store: operator.watermark.column for operator in operators if operator.watermark}
    found = work.newest_event_times(sorted(set(columns.values())))
    newest = {store: found[column] for store, column in columns.items() if column in found}
    return replace(incoming, last_pass_ms=_watermark(tail, incoming, operators, _latest(tail.event_times, newest)))


def committed(
    tail: Record, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Iterable[Receipt]
) -> dict[str, object]:
    """Return what a batch's record says of event time. Without any operator's watermark it is Spark's own, if any."""
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
