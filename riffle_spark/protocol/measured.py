"""What one batch took, on its way to a report. Knows clocks and counters. Does not know the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from riffle_spark.protocol.ports import Clock, Incoming, Layout
from riffle_spark.protocol.report import BatchReport, add_up, of_receipts
from riffle_spark.protocol.seating import Seating
from riffle_spark.protocol.upkeep import Facts
from riffle_spark.state.objects import ObjectStore, sent_since
from riffle_spark.state.record import Record
from riffle_spark.worker.order import Receipt

__all__ = ["Measured", "Placed"]


@dataclass(frozen=True, slots=True)
class Placed:
    """The slots of a batch, whether they were placed by name, and the seats they were placed on."""

    layout: Layout
    by_name: bool
    seating: Seating

    def facts(self) -> dict[str, object]:
        """Return the fields of a report that tell of members and what was changed for them."""
        seating, news = self.seating, self.seating.take_news()
        names = {name: seat.executor.id for name, seat in seating.members.live.items()}
        present, probes = seating.present, seating.probes.take()

        def by_executor(groups: Iterable[Iterable[str]]) -> dict[str, int]:
            return dict(Counter(names[member] for members in groups for member in members if member in names))

        return {
            "members": names, "moves": news.moves, "probes_run": probes[0], "probes_skipped": probes[1],
            "standbys": by_executor(present.standbys.values()), "warmups": by_executor(present.warmups.values()),
            "warnings": news.warnings,
        }  # fmt: skip


class Measured:
    """Seconds by phase and requests of one batch."""

    def __init__(self, clock: Clock, objects: ObjectStore) -> None:
        self._clock = clock
        self._objects = objects
        self._requests = dict(objects.requests)
        self._started_ms = clock.wall_ms()
        self._started = clock.seconds()
        self._seconds: dict[str, float] = {}
        self.runs = 0
        self.misplaced = 0
        self.snapshots = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to phase ``name``."""
        started = self._clock.seconds()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.seconds() - started

    def repeated(self, incoming: Incoming, epoch: int) -> BatchReport:
        """Return the report of a batch that was skipped."""
        return BatchReport(
            incoming.version,
            incoming.query_id,
            "repeat",
            self._started_ms,
            epoch,
            self._total(),
            requests=self._sent([]),
        )

    def ran(
        self, incoming: Incoming, record: Record, receipts: Sequence[Receipt], where: Placed, upkeep: Facts
    ) -> BatchReport:
        """Return the report of a batch that was run and committed."""
        slots = where.layout.slots
        wanted = {slot.number: slot.executor for slot in slots}
        owners: Counter[str] = Counter()
        for slot in slots:
            owners[slot.executor] += len(slot.key_groups)
        facts = where.facts()
        facts["warnings"] = (*facts["warnings"], *upkeep.warnings)  # type: ignore[misc]
        beside: dict[str, object] = {f"upkeep_{name}": count for name, count in upkeep.done.items()}
        return BatchReport(
            incoming.version, incoming.query_id, "run", self._started_ms, record.epoch, self._total(),
            slots=len(slots), runs=self.runs, misplaced_runs=self.misplaced, placed=where.by_name, owners=dict(owners),
            misses=sum(where.by_name and r.executor != wanted[r.slot] for r in receipts), snapshots=self.snapshots,
            requests=self._sent(receipts), upkeep_requests=upkeep.requests,
            watermark_ms=record.watermark_ms,
            **beside, **facts, **of_receipts(receipts),  # type: ignore[arg-type]
        )  # fmt: skip

    def _sent(self, receipts: Sequence[Receipt]) -> dict[str, int]:
        driver = sent_since(self._requests, self._objects.requests)
        total = add_up([driver, *(receipt.requests for receipt in receipts)])
        return {kind: int(count) for kind, count in total.items() if count}

    def _total(self) -> dict[str, float]:
        return {**self._seconds, "total": self._clock.seconds() - self._started}
