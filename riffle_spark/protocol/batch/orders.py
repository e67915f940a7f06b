"""Build the orders of one run of a batch: one order for the slots of each store."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from riffle_spark.messages.slot_orders import Home, Order, Receipt
from riffle_spark.protocol.batch.initial import is_initial_state_due
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import IncomingBatch, SlotLayout
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import CLAIM_DIGITS, EMPTY, Address, Entry, Manifest
from riffle_spark.state.log.record import Record

_LINKS_SENT = 2
"""An owner lacks one link, or two after a repeated batch. If it lacks more, reading the record is cheaper."""


@dataclass(frozen=True)
class BatchRun:
    """The common parts of the orders of one run of a batch.

    ``number`` is 1 for the first run. ``claim`` is the result of ``claim_digits``. ``caches`` has the entries of stores
    that are not durable.
    """

    incoming: IncomingBatch
    number: int
    claim: str
    settings: Settings
    home: Home
    tail: Record
    manifest: Manifest
    caches: Mapping[Address, Entry]
    ownership: Ownership


def order_for(run: BatchRun, operator: Operator, layout: SlotLayout) -> Order:
    """Return the order for the slots of an operator in one run of a batch.

    In the last allowed run, slots fetch missing copies. In earlier runs they fail as misplaced.
    """
    incoming = run.incoming
    settings = run.settings
    tail = run.tail
    declared = operator.declared
    placement = run.ownership.placement
    is_last_run = run.number == settings.batch_attempts
    entries = run.manifest.entries if operator.durable else run.caches
    return Order(
        home=run.home,
        store=operator.store,
        key=tuple(operator.schema.key.names),
        schema=operator.schema_after(tail.schemas, tail.epoch),
        output=declared.output,
        rows=operator.rows,
        per_key_group=declared.per_key_group,
        order_by=operator.order_by,
        total=settings.key_groups,
        epoch=tail.epoch,
        version=incoming.version,
        time_ms=incoming.time_ms,
        watermark_ms=_due_watermark_ms(run, operator),
        slots=layout.of(operator.store).key_groups_by_slot(),
        entries={key_group: entry for (store, key_group), entry in entries.items() if store == operator.store},
        sequence=tail.sequence,
        seal_output=settings.deliver_after_commit and operator.delivers,
        newest=run.number > 1,
        standbys={} if is_last_run else placement.ready_standbys(run.manifest, operator.store),
        followed_by=placement.followers(operator.store),
        durable=operator.durable,
        read_by=operator.read_by,
        by_key=layout.shards is None,
        time_mode=declared.time_mode,
        watermark=operator.watermark,
        late_watermark_ms=_shifted_ms(tail.late_watermark_ms, operator.shift_ms),
        late=operator.late,
        last_pass_ms=incoming.last_pass_ms if declared.time_mode == "EventTime" else None,
        initial=operator.initial if is_initial_state_due(tail, operator) else None,
        shown=operator.shown,
        whole=declared.whole,
        keyless=declared.keyless,
        routed_by=declared.routed_by,
        claim=run.claim,
        links_sent=_LINKS_SENT,
    )


def claim_digits(commit_id: str) -> str:
    """Return the digits that the attempt ids of a claim start with: 4 bytes of the hash of the claim's commit id.

    Commit ids are random, so claims with the same epoch have different digits.
    """
    return blake2b(commit_id.encode(), digest_size=CLAIM_DIGITS // 2).hexdigest()


def _due_watermark_ms(run: BatchRun, operator: Operator) -> int | None:
    """Return the watermark by which keys are due.

    This is the batch's watermark if the query uses Spark's, else the watermark in the newest record.
    """
    by_spark = run.incoming.watermark_source == "spark"
    return _shifted_ms(run.incoming.watermark_ms if by_spark else run.tail.watermark_ms, operator.shift_ms)


def _shifted_ms(watermark_ms: int | None, shift_ms: int) -> int | None:
    """Return the watermark moved by ``shift_ms``, at least 0; ``None`` without a watermark."""
    return None if watermark_ms is None else max(0, watermark_ms + shift_ms)


class CacheEntries:
    """The manifest entries of all caches (stores without objects), each with only its newest link.

    Records do not list them, so they are lost when the driver restarts.
    """

    def __init__(self) -> None:
        self.entries: dict[Address, Entry] = {}

    def forget(self) -> None:
        """Forget all entries, so that all caches start empty.

        Otherwise a cache could lack a batch, or contain a batch that was rolled back.
        """
        self.entries.clear()

    def replace_entries(self, receipts: Iterable[Receipt]) -> None:
        """Replace the entries of the key-groups that a committed batch changed. ``receipts`` are those of caches."""
        for receipt in receipts:
            for part, link in zip(receipt.parts, receipt.links(), strict=True):
                address = (receipt.store, part.key_group)
                previous = self.entries.get(address, EMPTY)
                self.entries[address] = Entry(None, (link,), part.timer_ms, cut=previous.head)
