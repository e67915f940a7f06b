"""What each slot of one run of a batch is told. Knows the log's head, stores that are not durable and owners. Does not
know steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from riffle_spark.messages.slot_orders import Home, Order, Receipt
from riffle_spark.protocol.batch.initial import is_due
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import IncomingBatch, SlotLayout
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Manifest
from riffle_spark.state.log.record import Record

__all__ = ["BatchRun", "CacheEntries", "order_for"]

_LINKS_TOLD = 2
"""An owner misses one link, two if a batch came between; with more, the record costs less than telling all slots."""


@dataclass(frozen=True)
class BatchRun:
    """What all orders of one run of a batch share: ``number`` is 1 for the first, ``caches`` are the entries of stores
    that are not durable.
    """

    incoming: IncomingBatch
    number: int
    settings: Settings
    home: Home
    tail: Record
    manifest: Manifest
    caches: Mapping[Address, Entry]
    ownership: Ownership


def order_for(run: BatchRun, operator: Operator, layout: SlotLayout) -> Order:
    """Return an operator's order. In the last run that there may be, slots fetch what they do not find."""
    incoming, settings, tail, mine = run.incoming, run.settings, run.tail, operator.store
    by_event_time = operator.declared.time_mode == "EventTime"
    last = run.number == settings.batch_attempts
    standbys = {} if last else run.ownership.placement.ready_standbys(run.manifest, mine)
    told = run.manifest.entries if operator.durable else run.caches
    entries = {kg: entry.recent(_LINKS_TOLD) for (store, kg), entry in told.items() if store == mine}
    return Order(
        home=run.home, store=mine, key=tuple(operator.schema.key.names),
        schema=operator.schema_after(tail.schemas, tail.epoch),
        output=operator.declared.output, rows=operator.rows, per_key_group=operator.declared.per_key_group,
        order_by=operator.order_by, total=settings.key_groups, epoch=tail.epoch, version=incoming.version,
        time_ms=incoming.time_ms, watermark_ms=_watermark(run, operator), slots=layout.of(mine).orders(),
        entries=entries, sequence=tail.sequence, seal_output=settings.deliver_after_commit and operator.delivers,
        newest=run.number > 1, standbys=standbys,
        followed_by=run.ownership.placement.followers(mine), durable=operator.durable, read_by=operator.read_by,
        by_key=layout.shards is None, time_mode=operator.declared.time_mode, watermark=operator.watermark,
        late_watermark_ms=_shifted(tail.late_watermark_ms, operator.shift_ms), late=operator.late,
        last_pass_ms=incoming.last_pass_ms if by_event_time else None,
        initial=operator.initial if is_due(tail, operator) else None, shown=operator.shown,
        whole=operator.declared.whole, keyless=operator.declared.keyless,
        routed_by=operator.declared.routed_by,
    )  # fmt: skip


def _watermark(run: BatchRun, operator: Operator) -> int | None:
    """Return the watermark by which things are due: that of the batch where it is Spark's, else the record's."""
    by_spark = run.incoming.watermark_source == "spark"
    return _shifted(run.incoming.watermark_ms if by_spark else run.tail.watermark_ms, operator.shift_ms)


def _shifted(watermark_ms: int | None, shift_ms: int) -> int | None:
    return None if watermark_ms is None else max(0, watermark_ms + shift_ms)


class CacheEntries:
    """The entries of all caches, each cut to its last link."""

    def __init__(self) -> None:
        self.entries: dict[Address, Entry] = {}

    def forget(self) -> None:
        """Begin all caches anew: what they hold may be of a line that was given up, or lack a batch."""
        self.entries.clear()

    def committed(self, receipts: Iterable[Receipt]) -> None:
        """Take the receipts of a committed batch."""
        for receipt in receipts:
            for part in receipt.parts:
                address = (receipt.store, part.key_group)
                before = self.entries.get(address, EMPTY)
                self.entries[address] = Entry(None, (receipt.link(part),), part.timer_ms, cut=before.head)
