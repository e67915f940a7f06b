"""The report of one batch: figures, warnings and how they are collected."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from operator import attrgetter
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

_FOLD: Final = "fold"
"""The step in which a slot brings its copies up to date."""

_SUMMED: Final = (
    "rows",
    "keys",
    "output_rows",
    "late_rows",
    "dead_rows",
    "timers_fired",
    "expired",
    "rows_added",
    "rows_updated",
    "rows_removed",
    "sealed_bytes",
    "fetched_bytes",
    "fetched_snapshot_bytes",
    "restores",
    "catch_ups",
    "hits",
    "folds",
)
"""Fields of a report that are sums of the same fields of its receipts."""


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The figures of the slots of one store in a batch. ``BatchReport`` defines the fields."""

    rows: int = 0
    keys: int = 0
    output_rows: int = 0
    late_rows: int = 0
    dead_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    rows_added: int = 0
    rows_updated: int = 0
    rows_removed: int = 0
    slots_that_wrote: int = 0
    sealed_bytes: int = 0
    fetched_bytes: int = 0
    restores: int = 0
    slot_seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The figures of one micro-batch, from its start to the end of its commit.

    Sums are over all slots. Figures of upkeep, moves and probes cover the time since the batch before.

    Attributes:
        version: the batch id.
        query_id: Spark's id of the query.
        decision: ``run``, or ``repeat`` for a batch that was already committed and is skipped.
        started_ms: when the batch started (milliseconds since the epoch).
        epoch: how many drivers have owned the state so far, including this one.
        seconds: seconds per phase: ``enter assign run deliver commit upkeep`` and ``total``.
        slot_seconds: seconds per step of the slots: ``touch fold read compute user seal put``.
        by_store: the figures per store. If an operator reads another's results, the totals count the rows of both.
        rows: input rows, including ``late_rows`` (left out) and ``dead_rows`` (dead letters).
        keys: distinct keys of the input rows.
        output_rows: rows for the sink.
        timers_fired: timers that were due.
        expired: state elements or keys that were due.
        rows_added: state rows that did not exist before the batch; ``rows_updated`` counts all rows that were written,
            and ``rows_removed`` rows that no longer exist.
        watermark_ms: the watermark after the batch. Timers use it from the next batch on, but timers of a query with
            Spark's watermark used it in this batch.
        slots: the number of slots; ``slots_that_wrote`` counts the slots that sealed a delta.
        runs: how often the slots ran. ``misplaced_runs`` ended early because a slot had no copy and a standby had one.
        plan_fallbacks: plans of slots, and of the rows of sinks, that Spark made again although the columns had not
            changed.
        placed: whether slots were placed on named executors; ``misses`` counts slots that ran elsewhere.
        owners: owned key-groups per executor id; ``standbys`` and ``warmups`` count likewise.
        members: the executor id of each member.
        lag_records: changed records that the standbys and warm-ups of each executor lack in total; ``lag_trends`` is
            the growth over the last ten batches.
        executor_seconds: ``slot_seconds`` per executor. ``executor_steps`` splits them into ``decode`` (``touch``),
            ``user_code`` (``user``), ``state`` (``fold read compute``) and ``commit`` (``seal put``).
        probes_run: probing rebalances that ran; ``probes_skipped`` counts the probes that were not needed.
        ran_on: slots per executor id.
        moves: one mapping per move with ``key_group role from to from_executor to_executor reason goal``, with
            dispatch by partition also ``topic`` and ``partition``, and in a named co-location group ``group``.
        requests: requests of the batch to the object store by kind; ``upkeep_requests`` counts the requests of upkeep.
        sealed_bytes: bytes of the sealed deltas.
        fetched_bytes: bytes fetched from the object store, ``fetched_snapshot_bytes`` of them from snapshots.
        restores: copies that slots fetched as a whole. ``catch_ups`` counts the copies for which they fetched only
            deltas, ``hits`` the copies that needed nothing from the object store. ``folds`` counts added deltas.
        restore_seconds: time in which slots brought their copies up to date and restored one or more of them;
            ``catch_up_seconds`` is that of slots that fetched only deltas.
        upkeep_restores: copies that upkeep fetched as a whole. Other fields with ``upkeep_`` are those of upkeep, too.
        upkeep_failures: failures of upkeep.
        snapshots: snapshots that the commit listed.
        peak_memory_mb: the largest peak memory of a Python worker in MiB.
        warnings: texts that start with the id of their message.
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
    rows_added: int = 0
    rows_updated: int = 0
    rows_removed: int = 0
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
    catch_ups: int = 0
    hits: int = 0
    folds: int = 0
    restore_seconds: float = 0.0
    catch_up_seconds: float = 0.0
    upkeep_fetched_bytes: int = 0
    upkeep_snapshot_bytes: int = 0
    upkeep_restores: int = 0
    upkeep_folds: int = 0
    upkeep_failures: int = 0
    snapshots: int = 0
    peak_memory_mb: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json_line(self)


def add_up(maps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of the values of each key over all maps."""
    total: dict[str, float] = {}
    for mapping in maps:
        for key, value in mapping.items():
            total[key] = total.get(key, 0) + value
    return total


def sums_of_receipts(receipts: Sequence[Receipt]) -> dict[str, object]:
    """Return the fields of a ``BatchReport`` that are sums over receipts."""
    return {
        **{name: sum(map(attrgetter(name), receipts)) for name in _SUMMED},
        "slots_that_wrote": sum(receipt.sealed_bytes > 0 for receipt in receipts),
        "ran_on": dict(Counter(receipt.executor for receipt in receipts)),
        "executor_seconds": add_up({receipt.executor: sum(receipt.seconds.values())} for receipt in receipts),
        "executor_steps": _steps_by_executor(receipts),
        "slot_seconds": add_up(receipt.seconds for receipt in receipts),
        "restore_seconds": sum(r.seconds.get(_FOLD, 0.0) for r in receipts if r.restores),
        "catch_up_seconds": sum(r.seconds.get(_FOLD, 0.0) for r in receipts if r.catch_ups and not r.restores),
        "peak_memory_mb": max((receipt.peak_memory_mb for receipt in receipts), default=0.0),
    }


def _steps_by_executor(receipts: Sequence[Receipt]) -> dict[str, dict[str, float]]:
    """Return the seconds of each step of ``BatchReport.executor_steps`` by executor, 0 for steps that took no time."""
    by_executor: dict[str, dict[str, float]] = {}
    for receipt in receipts:
        steps = by_executor.setdefault(receipt.executor, dict.fromkeys(_STEPS.values(), 0.0))
        for name, seconds in receipt.seconds.items():
            steps[_STEPS.get(name, "state")] += seconds
    return by_executor


def _figures_by_store(receipts: Sequence[Receipt], totals: Mapping[str, object]) -> dict[str, StoreFigures]:
    """Return the figures of each store, from the receipts of its slots. ``totals`` are the sums over all receipts."""
    figures: dict[str, StoreFigures] = {}
    stores = dict.fromkeys(receipt.store for receipt in receipts)
    for store in stores:
        of_store = [receipt for receipt in receipts if receipt.store == store]
        sums = sums_of_receipts(of_store) if len(stores) > 1 else totals
        figures[store] = StoreFigures(**{name.name: sums[name.name] for name in fields(StoreFigures)})  # type: ignore[arg-type]
    return figures


def _dead_letter_warnings(receipts: Sequence[Receipt]) -> Iterator[str]:
    """Yield a warning with the number and the first error of the dead letters of a batch, if there are any."""
    first = next((receipt for receipt in receipts if receipt.dead_rows), None)
    if first is not None:
        rows = sum(receipt.dead_rows for receipt in receipts)
        yield (
            f"[RIFFLE-0809] Batch {first.version} has {rows} dead letters. Store {first.store!r} raised "
            f"{first.dead_example} for the first.\n"
            "  What to do: Read the dead letters, and feed their rows to the source again once the function can "
            "process them."
        )


def _store_warnings(tail: Record, operators: Sequence[Operator]) -> Iterator[str]:
    """Yield a warning for each durable store that the batch after ``tail`` adds, leaves out or changes."""
    version = tail.version
    stale = tail.stale_stores
    durable = {operator.store for operator in operators if operator.durable}
    left_out = tail.schemas.keys() - {operator.store for operator in operators}
    added_stores = durable - tail.schemas.keys()
    if added_stores and left_out:
        yield (
            f"[RIFFLE-0810] Batch {version + 1} starts stores without state: {', '.join(sorted(added_stores))}. Stores "
            f"with state that the query no longer uses: {', '.join(sorted(left_out))}.\n  What to do: If a store was "
            f"renamed, stop the query, roll back to batch {version} (riffle rollback), and restore its name."
        )
    for store in sorted(tail.schemas.keys() - durable - stale.keys() - (left_out if added_stores else set())):
        # Cause: The operator was removed from the query, or is no longer durable.
        yield (
            f"[RIFFLE-0811] Store {store!r} gets no rows from batch {version + 1} on.\n  What to do: If that is not "
            f"intended, stop the query, roll back to batch {version} (riffle rollback), and start it with this store "
            "as a durable one."
        )
    for store in sorted(durable & stale.keys()):
        missing_rows = (
            f"from batch {stale[store]} without the rows of later batches up to {version}"
            if stale[store] >= 0
            else "without rows from before the first batch"
        )
        yield (
            f"[RIFFLE-0812] Store {store!r} continues {missing_rows}, because `accept` names it.\n"
            "  What to do: Remove it from `accept`."
        )
    for operator in operators:
        schema_text = tail.schemas.get(operator.store)
        if schema_text is not None and operator.durable:
            yield from _column_warnings(operator, schema_text, tail)


def _column_warnings(operator: Operator, schema_text: Mapping[str, str], tail: Record) -> Iterator[str]:
    """Yield a warning if the batch after ``tail`` adds or drops columns or variables of a store."""
    if operator.schema_after(tail.schemas, tail.epoch) is schema_text:
        return
    stored = {name for name, *_ in schema_of_text(operator.store, schema_text).column_and_field_names}
    declared = {name for name, *_ in operator.schema.column_and_field_names}
    changes = [
        *(f"{name} starts without stored values" for name in sorted(declared - stored)),
        *(f"{name} is dropped" for name in sorted(stored - declared)),
    ]
    if changes:
        # Cause: The declared columns or variables of the store differ from the stored ones.
        yield (
            f"[RIFFLE-0813] Store {operator.store!r} changes in batch {tail.version + 1}: {', '.join(changes)}.\n"
            f"  What to do: If a column was renamed, stop the query, roll back to batch {tail.version} (riffle "
            "rollback), and restore its name."
        )


@dataclass(frozen=True, slots=True)
class SlotPlacement:
    """The slots of a batch and the members they were placed on.

    ``by_name`` is false if slots were placed by hash. ``BatchReport`` defines ``plan_fallbacks``.
    """

    layout: SlotLayout
    by_name: bool
    ownership: Ownership
    plan_fallbacks: int = 0

    def count_misses(self, receipts: Sequence[Receipt]) -> int:
        """Count the slots that ran on another executor than the driver wanted."""
        stores = {receipt.store for receipt in receipts} if self.by_name else ()
        executors = {(store, slot.number): slot.executor for store in stores for slot in self.layout.of(store).slots}
        return sum(r.executor != executors.get((r.store, r.slot), r.executor) for r in receipts)

    def report_fields(self) -> dict[str, object]:
        """Return the fields of a ``BatchReport`` about members and rebalances since the last call."""
        ownership = self.ownership
        rebalance = ownership.take_rebalance()
        executors = {name: living.executor.id for name, living in ownership.membership.live.items()}
        assignment = ownership.placement.present
        probes_run, probes_skipped = ownership.placement.triggers.probes.take_counts()
        lags = {executor: ownership.copies.trend.of(member) for member, executor in executors.items()}

        def count_by_executor(copies: Iterable[Iterable[str]]) -> dict[str, int]:
            return dict(Counter(executors[member] for members in copies for member in members if member in executors))

        return {
            "members": executors,
            "moves": rebalance.moves,
            "probes_run": probes_run,
            "probes_skipped": probes_skipped,
            "standbys": count_by_executor(assignment.standbys.values()),
            "warmups": count_by_executor(assignment.warmups.values()),
            "warnings": rebalance.warnings,
            "lag_records": {executor: lag for executor, (lag, _, _) in lags.items()},
            "lag_trends": {executor: trend for executor, (_, _, trend) in lags.items()},
        }


class BatchMeasures:
    """Collects the seconds, requests and warnings of one batch."""

    def __init__(self, clock: Clock, objects: ObjectStore) -> None:
        """Start to measure a batch. ``objects`` is the driver's store, whose requests are counted."""
        self._clock = clock
        self._objects = objects
        self._requests_before = dict(objects.requests)
        self._started_ms = clock.wall_ms()
        self._started = clock.seconds()
        self._seconds: dict[str, float] = {}
        self.runs = 0
        self.misplaced = 0
        self.snapshots = 0
        self._warnings: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as phase ``name`` of the batch. Its time is added to earlier times of that phase."""
        started_seconds = self._clock.seconds()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.seconds() - started_seconds

    def warn_of_failed_run(self, version: int, error: Exception, attempts: int) -> None:
        """Add the warning that a run failed with ``error`` and is repeated, up to ``attempts`` runs.

        A local disk that refuses has its own warning.
        """
        self.misplaced += isinstance(error, Misplaced)
        if not isinstance(error, LocalDiskError):
            problem = str(error).partition("\n")[0]
            self._warnings.append(
                f"[RIFFLE-0814] Run {self.runs} of at most {attempts} of batch {version} failed and was repeated: "
                f"{problem}\n  What to do: If this happens often, find out why executors or copies are lost, or why "
                "tasks run elsewhere."
            )

    def warn_of_changed_stores(self, tail: Record, operators: Sequence[Operator]) -> None:
        """Add warnings of stores that the batch after record ``tail`` adds, leaves out or changes."""
        self._warnings += _store_warnings(tail, operators)

    def report_repeat(self, incoming: IncomingBatch, epoch: int) -> BatchReport:
        """Return the report of a batch that was skipped, because it is already committed."""
        return BatchReport(
            incoming.version,
            incoming.query_id,
            "repeat",
            self._started_ms,
            epoch,
            self._seconds_with_total(),
            requests=self._requests([]),
        )

    def report_commit(
        self,
        incoming: IncomingBatch,
        record: Record,
        receipts: Sequence[Receipt],
        placement: SlotPlacement,
        upkeep: UpkeepFacts,
    ) -> BatchReport:
        """Return the report of a batch that was run and committed with ``record``."""
        slots = [slot for layout in placement.layout.all_groups for slot in layout.slots]
        owners: Counter[str] = Counter()
        for slot in slots:
            owners[slot.executor] += len(slot.key_groups)
        sums = sums_of_receipts(receipts)
        fields: dict[str, object] = {
            **{f"upkeep_{name}": count for name, count in upkeep.sums.items()},
            **sums,
            **placement.report_fields(),
        }
        own_warnings = (*self._warnings, *_dead_letter_warnings(receipts))
        fields["warnings"] = (*own_warnings, *fields["warnings"], *upkeep.warnings)  # type: ignore[misc]
        return BatchReport(
            incoming.version,
            incoming.query_id,
            "run",
            self._started_ms,
            record.epoch,
            self._seconds_with_total(),
            slots=len(slots),
            runs=self.runs,
            misplaced_runs=self.misplaced,
            placed=placement.by_name,
            owners=dict(owners),
            misses=placement.count_misses(receipts),
            plan_fallbacks=placement.plan_fallbacks,
            snapshots=self.snapshots,
            requests=self._requests(receipts),
            upkeep_requests=upkeep.requests,
            watermark_ms=record.watermark_ms,
            by_store=_figures_by_store(receipts, sums),
            **fields,  # type: ignore[arg-type]
        )

    def _requests(self, receipts: Sequence[Receipt]) -> dict[str, int]:
        """Return the requests by kind: the driver's since the start of the batch, and those of the receipts."""
        of_driver = sent_since(self._requests_before, self._objects.requests)
        total = add_up([of_driver, *(receipt.requests for receipt in receipts)])
        return {kind: int(count) for kind, count in total.items() if count}

    def _seconds_with_total(self) -> dict[str, float]:
        """Return the seconds by phase, with the time since the start of the batch as ``total``."""
        return {**self._seconds, "total": self._clock.seconds() - self._started}
