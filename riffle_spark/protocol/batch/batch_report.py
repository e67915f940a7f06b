"""What one batch did and took, for people and programs. Knows receipts, records, clocks and counters. Does not know who
reads it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Final

from riffle_spark.errors import LocalDiskError, Misplaced
from riffle_spark.messages.slot_orders import Receipt, json_line
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import Clock, IncomingBatch, SlotLayout
from riffle_spark.protocol.upkeep.upkeep import UpkeepFacts
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore, sent_since
from riffle_spark.state.schemas.store_schema import schema_of_text

__all__ = ["BatchMeasures", "BatchReport", "SlotPlacement", "StoreFigures", "add_up"]

_STEPS: Final = {
    "touch": "decode",
    "user": "user_code",
    "fold": "state",
    "read": "state",
    "compute": "state",
    "seal": "commit",
    "put": "commit",
}
"""Maps the steps of a receipt to those of ``BatchReport.executor_steps``."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What the slots of one store did in a batch, as ``BatchReport`` has it of all stores together."""

    rows: int = 0
    keys: int = 0
    output_rows: int = 0
    late_rows: int = 0
    dead_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    slots_that_wrote: int = 0
    sealed_bytes: int = 0
    fetched_bytes: int = 0
    restores: int = 0
    slot_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One micro-batch, from Enter to the end of its commit. The demo, benchmarks and logs read only this.

    ``decision`` is ``run`` or ``repeat`` (skipped, committed before). ``seconds`` are by phase: ``enter assign run
    deliver commit`` and ``total``; ``slot_seconds`` sums, over slots, ``touch fold read compute user seal put``.
    ``requests`` counts what the batch itself sent to the store, ``upkeep_requests`` what ran beside it since the
    batch before, as do the other ``upkeep`` figures. ``misses`` are slots that ran elsewhere than wanted,
    ``misplaced_runs`` runs that were given up because a slot found no copy where a standby has one.
    ``plan_fallbacks`` counts operators' plans that Spark made anew although columns had not changed. ``owners``,
    ``standbys`` and ``warmups`` count key-groups by executor id, ``members`` names each member's executor. ``moves``
    are those of the assignments since the batch before: ``key_group``, ``role``, ``from`` and ``to`` (members),
    ``from_executor``, ``to_executor``, ``reason``, ``goal``, where dispatch is by partition ``topic`` and
    ``partition``, and in a named co-location group ``group``. ``probes_run`` and ``probes_skipped`` count probing
    rebalances since the batch before. ``lag_records`` are the changed records that the standbys and warm-ups of each
    executor lack together, ``lag_trends`` by how many that has grown over the last ten batches, ``executor_seconds``
    the ``slot_seconds`` of each executor's slots together. ``executor_steps`` splits these, by executor, into four
    steps: ``decode`` (``touch``: cast, sort and group input rows), ``user_code`` (``user``: call the computation),
    ``state`` (``fold read compute``: read local copies, turn new state into changes) and ``commit`` (``seal put``).
    ``rows`` counts ``late_rows`` too, which were left out, and
    ``dead_rows``, which are dead letters. ``timers_fired`` and ``expired`` count timers, and elements of state, whose
    time had come. ``watermark_ms`` is the watermark that the batch leads to; timers go by it from the next batch on.
    Where it is Spark's own, it is that of the batch itself. ``by_store`` has the figures of each store's slots: where
    one operator reads another's results, ``rows`` and ``output_rows`` count those of both.
    """

    version: int
    query_id: str
    decision: str
    started_ms: int
    epoch: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    slot_seconds: Mapping[str, float] = field(default_factory=dict)
    by_store: Mapping[str, StoreFigures] = field(default_factory=dict)
    rows: int = 0
    keys: int = 0
    output_rows: int = 0
    late_rows: int = 0
    dead_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    watermark_ms: int | None = None
    slots: int = 0
    slots_that_wrote: int = 0
    runs: int = 0
    misplaced_runs: int = 0
    plan_fallbacks: int = 0
    placed: bool = True
    misses: int = 0
    owners: Mapping[str, int] = field(default_factory=dict)
    standbys: Mapping[str, int] = field(default_factory=dict)
    warmups: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    lag_records: Mapping[str, int] = field(default_factory=dict)
    lag_trends: Mapping[str, int] = field(default_factory=dict)
    executor_seconds: Mapping[str, float] = field(default_factory=dict)
    executor_steps: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    probes_run: int = 0
    probes_skipped: int = 0
    ran_on: Mapping[str, int] = field(default_factory=dict)
    moves: tuple[Mapping[str, str | int], ...] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    upkeep_requests: Mapping[str, int] = field(default_factory=dict)
    sealed_bytes: int = 0
    fetched_bytes: int = 0
    fetched_snapshot_bytes: int = 0
    restores: int = 0
    folds: int = 0
    upkeep_fetched_bytes: int = 0
    upkeep_snapshot_bytes: int = 0
    upkeep_restores: int = 0
    upkeep_folds: int = 0
    snapshots: int = 0
    peak_memory_mb: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json_line(self)


def add_up(maps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of each key over the maps."""
    total: Counter[str] = Counter()
    for each in maps:
        total.update(each)
    return dict(total)


def of_receipts(receipts: Iterable[Receipt]) -> dict[str, object]:
    """Return the fields of a report that are sums over receipts."""
    all_of = list(receipts)
    return {
        "rows": sum(r.rows for r in all_of),
        "keys": sum(r.keys for r in all_of),
        "output_rows": sum(r.output_rows for r in all_of),
        "late_rows": sum(r.late_rows for r in all_of),
        "dead_rows": sum(r.dead_rows for r in all_of),
        "timers_fired": sum(r.timers_fired for r in all_of),
        "expired": sum(r.expired for r in all_of),
        "slots_that_wrote": sum(r.sealed_bytes > 0 for r in all_of),
        "sealed_bytes": sum(r.sealed_bytes for r in all_of),
        "fetched_bytes": sum(r.fetched_bytes for r in all_of),
        "fetched_snapshot_bytes": sum(r.fetched_snapshot_bytes for r in all_of),
        "restores": sum(r.restores for r in all_of),
        "folds": sum(r.folds for r in all_of),
        "ran_on": dict(Counter(r.executor for r in all_of)),
        "executor_seconds": add_up({r.executor: sum(r.seconds.values())} for r in all_of),
        "executor_steps": _steps_by_executor(all_of),
        "slot_seconds": add_up(r.seconds for r in all_of),
        "peak_memory_mb": max((r.peak_memory_mb for r in all_of), default=0.0),
    }


def _steps_by_executor(receipts: Sequence[Receipt]) -> dict[str, dict[str, float]]:
    """Return the seconds of each step by executor. Steps that a receipt does not have count as zero."""
    by_executor: dict[str, dict[str, float]] = {}
    for receipt in receipts:
        steps = by_executor.setdefault(receipt.executor, dict.fromkeys(_STEPS.values(), 0.0))
        for name, seconds in receipt.seconds.items():
            steps[_STEPS.get(name, "state")] += seconds
    return by_executor


def _by_store(receipts: Sequence[Receipt]) -> dict[str, StoreFigures]:
    names = [one.name for one in fields(StoreFigures)]
    figures = {
        store: of_receipts(receipt for receipt in receipts if receipt.store == store)
        for store in dict.fromkeys(receipt.store for receipt in receipts)
    }
    return {
        store: StoreFigures(**{name: told[name] for name in names})  # type: ignore[arg-type] # they are of these types
        for store, told in figures.items()
    }


def _of_dead(receipts: Sequence[Receipt]) -> Iterator[str]:
    """Yield what is told of a batch's dead letters, if there are any."""
    first = next((receipt for receipt in receipts if receipt.dead_rows), None)
    if first is not None:
        rows = sum(receipt.dead_rows for receipt in receipts)
        yield (
            f"{rows} rows of batch {first.version} are dead letters, the first since store {first.store!r} raised "
            f"{first.dead_example}\n"
            "  What to do: look at them where dead_letters go; once the function takes them, give them to the query's "
            "source again"
        )


def _of_changed_stores(before: Record, operators: Sequence[Operator]) -> Iterator[str]:
    """Yield a warning for each durable store that the batch after ``before`` adds or leaves out."""
    version, stale = before.version, before.stale_stores
    durable = {operator.store for operator in operators if operator.durable}
    left = before.schemas.keys() - {operator.store for operator in operators}
    begun = durable - before.schemas.keys()
    if begun and left:
        yield (
            f"new in batch {version + 1}, without state: {', '.join(sorted(begun))}. No longer used, with state in the "
            f"root: {', '.join(sorted(left))}\n  What to do: nothing, if that is intended; if a store was renamed, "
            f"stop the query, roll back to batch {version} (riffle rollback), and give the store its former name"
        )
    for store in sorted(before.schemas.keys() - durable - stale.keys() - (left if begun else set())):
        yield (
            f"store {store!r} gets no rows from batch {version + 1} on\n  What to do: nothing, if that is meant; else "
            f"stop the query, roll back to batch {version} (riffle rollback), and start it with this store as a "
            "durable one"
        )
    for store in sorted(durable & stale.keys()):
        lacking = f"from batch {stale[store]} without the rows of later batches up to {version}"
        if stale[store] < 0:
            lacking = "without rows from before the first batch"
        yield f"store {store!r} continues {lacking}, as accepted\n  What to do: remove it from `accept`"
    for operator in operators:
        text = before.schemas.get(operator.store)
        if text is not None and operator.durable:
            yield from _of_changed_columns(operator, text, before)


def _of_changed_columns(operator: Operator, text: Mapping[str, str], before: Record) -> Iterator[str]:
    """Yield a warning if the batch after ``before`` adds or drops columns or variables of a store."""
    if operator.schema_after(before.schemas, before.epoch) is text:
        return
    stored, declared = (
        {name for name, *_ in schema.names_read} for schema in (schema_of_text(operator.store, text), operator.schema)
    )
    begun, dropped = sorted(declared - stored), sorted(stored - declared)
    if begun or dropped:
        changes = [f"{', '.join(begun)} starts without stored values"] if begun else []
        changes += [f"{', '.join(dropped)} is dropped"] if dropped else []
        yield (
            f"store {operator.store!r}: from batch {before.version + 1} on {', and '.join(changes)}\n  What to do: "
            "nothing, if that is meant; if a column was renamed, stop the query, roll back to batch "
            f"{before.version} (riffle rollback), and give it its former name"
        )


@dataclass(frozen=True, slots=True)
class SlotPlacement:
    """The slots of a batch, whether they were placed by name, the living members they were placed on, and how many
    plans were made anew (``BatchReport.plan_fallbacks``).
    """

    layout: SlotLayout
    by_name: bool
    ownership: Ownership
    plan_fallbacks: int = 0

    def misses(self, receipts: Sequence[Receipt]) -> int:
        """Count the slots that ran elsewhere than wanted."""
        stores = {receipt.store for receipt in receipts} if self.by_name else ()
        wanted = {(store, slot.number): slot.executor for store in stores for slot in self.layout.of(store).slots}
        return sum(r.executor != wanted.get((r.store, r.slot), r.executor) for r in receipts)

    def facts(self) -> dict[str, object]:
        """Return the fields of a report on members and what was changed for them."""
        ownership, rebalance = self.ownership, self.ownership.take_rebalance()
        names = {name: living.executor.id for name, living in ownership.membership.live.items()}
        present, probes = ownership.placement.present, ownership.placement.triggers.probes.take()
        lags = {executor: ownership.copies.trend.of(name) for name, executor in names.items()}

        def by_executor(groups: Iterable[Iterable[str]]) -> dict[str, int]:
            return dict(Counter(names[member] for members in groups for member in members if member in names))

        return {
            "members": names, "moves": rebalance.moves, "probes_run": probes[0], "probes_skipped": probes[1],
            "standbys": by_executor(present.standbys.values()), "warmups": by_executor(present.warmups.values()),
            "warnings": rebalance.warnings, "lag_records": {name: lag for name, (lag, _, _) in lags.items()},
            "lag_trends": {name: trend for name, (_, _, trend) in lags.items()},
        }  # fmt: skip


class BatchMeasures:
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
        self._own: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to phase ``name``."""
        started = self._clock.seconds()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.seconds() - started

    def gave_up(self, version: int, error: Exception, most: int) -> None:
        """Note why a run was given up, of at most so many. Of a disk that refuses another warning tells."""
        self.misplaced += isinstance(error, Misplaced)
        if not isinstance(error, LocalDiskError):
            why = str(error).partition("\n")[0]
            self._own.append(
                f"batch {version} was run again, run {self.runs} of at most {most} was given up: {why}\n"
                "  What to do: nothing; if it comes often, look at why executors or copies are lost, or tasks run "
                "elsewhere"
            )

    def began(self, before: Record, operators: Sequence[Operator]) -> None:
        """Warn of stores that this batch adds or leaves out, compared with the record before it."""
        self._own += _of_changed_stores(before, operators)

    def repeated(self, incoming: IncomingBatch, epoch: int) -> BatchReport:
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
        self,
        incoming: IncomingBatch,
        record: Record,
        receipts: Sequence[Receipt],
        where: SlotPlacement,
        upkeep: UpkeepFacts,
    ) -> BatchReport:
        """Return the report of a batch that was run and committed."""
        slots = [slot for layout in where.layout.all_groups for slot in layout.slots]
        owners: Counter[str] = Counter()
        for slot in slots:
            owners[slot.executor] += len(slot.key_groups)
        facts = where.facts()
        own = (*self._own, *_of_dead(receipts))
        facts["warnings"] = (*own, *facts["warnings"], *upkeep.warnings)  # type: ignore[misc]
        beside: dict[str, object] = {f"upkeep_{name}": count for name, count in upkeep.done.items()}
        return BatchReport(
            incoming.version, incoming.query_id, "run", self._started_ms, record.epoch, self._total(),
            slots=len(slots), runs=self.runs, misplaced_runs=self.misplaced, placed=where.by_name, owners=dict(owners),
            misses=where.misses(receipts), plan_fallbacks=where.plan_fallbacks, snapshots=self.snapshots,
            requests=self._sent(receipts), upkeep_requests=upkeep.requests,
            watermark_ms=record.watermark_ms, by_store=_by_store(receipts),
            **beside, **facts, **of_receipts(receipts),  # type: ignore[arg-type]
        )  # fmt: skip

    def _sent(self, receipts: Sequence[Receipt]) -> dict[str, int]:
        driver = sent_since(self._requests, self._objects.requests)
        total = add_up([driver, *(receipt.requests for receipt in receipts)])
        return {kind: int(count) for kind, count in total.items() if count}

    def _total(self) -> dict[str, float]:
        return {**self._seconds, "total": self._clock.seconds() - self._started}
