"""One query's driver: every micro-batch from Enter to its report. Knows the order of steps. Does not know Spark.

The steps are numbered as in docs/architecture.md: 0 enter, 1 observe, 2 assign, 3 to 5 run, 6 deliver, 7 commit, 8
upkeep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from riffle_spark.errors import ConfigError, FencedError, Misplaced, OutOfDate, UnavailableError
from riffle_spark.protocol.drafts import Stamp, batch_record, claim_record
from riffle_spark.protocol.enter import Decision, decide
from riffle_spark.protocol.measured import Measured, Placed
from riffle_spark.protocol.operator import Operator, check_schemas
from riffle_spark.protocol.ports import (
    Delivery,
    Incoming,
    Layout,
    StaleRows,
    Work,
)
from riffle_spark.protocol.receipts import changes_of, check_counts, check_receipts
from riffle_spark.protocol.report import BatchReport
from riffle_spark.protocol.seating import Seating
from riffle_spark.protocol.surroundings import Surroundings
from riffle_spark.protocol.upkeep import Upkeep
from riffle_spark.settings import Settings
from riffle_spark.state.log import Log
from riffle_spark.state.record import Record
from riffle_spark.worker.order import Home, Order, Receipt

__all__ = ["Driver", "Surroundings"]

_LINKS_TOLD = 2
"""An owner misses one link, two if a batch came between; with more, the record costs less than telling all slots."""


class Driver:
    """Runs one query's micro-batches, one at a time."""

    def __init__(self, settings: Settings, home: Home, surroundings: Surroundings) -> None:
        self._settings = settings
        self._home = home
        self._objects = surroundings.objects
        self._clock = surroundings.clock
        self._reached = surroundings.reached
        self._new_id = surroundings.new_id
        self._log = Log(surroundings.objects, home.root)
        self._cluster = surroundings.cluster
        self._upkeep = Upkeep(settings, surroundings.upkeep_objects or surroundings.objects, surroundings.background)
        self._run_id: str | None = None
        self._seating = Seating(settings)
        self._fenced: FencedError | None = None

    def process(self, incoming: Incoming, operators: Sequence[Operator], work: Work) -> BatchReport:
        """Run one micro-batch to its commit, or skip it if it was committed before; return what was done.

        Raises ``ConflictError`` with the remedy if the batch does not fit the log, ``FencedError`` if a newer driver
        took over, what the user's code or the sink raise, and ``UnavailableError``; in all these cases nothing of the
        batch is committed (or, where the error says "unclear", it is found out before anything runs again).
        """
        if self._fenced and self._run_id == incoming.run_id:
            raise self._fenced
        batch = Measured(self._clock, self._objects)
        try:
            with batch.phase("enter"):
                decision = self._enter(incoming, operators)
            if decision is Decision.REPEAT:
                return self._repeat(incoming, batch, work)
            return self._run(incoming, operators, work, batch)
        except FencedError as error:
            self._fenced = error
            raise
        finally:
            work.release()

    def _enter(self, incoming: Incoming, operators: Sequence[Operator]) -> Decision:
        fresh = self._run_id != incoming.run_id
        if self._log.unclear:
            self._settle(fresh)
        if fresh:
            self._fenced = None
            self._log.open()
        tail = self._log.tail
        decision = decide(tail, incoming, self._home.root)
        self._check_fixed(tail, operators)
        if fresh:
            self._claim(incoming)
            self._run_id = incoming.run_id
        return decision

    def _settle(self, fresh: bool) -> None:
        """Find out what became of an unclear append. A query that was started again takes over from whoever won."""
        try:
            tail = self._log.settle()
        except FencedError:
            if not fresh:
                raise
        else:
            self._upkeep.start(self._log.first, tail, self._log.manifest, self._clock.wall_ms())

    def _check_fixed(self, tail: Record | None, operators: Sequence[Operator]) -> None:
        if tail is None:
            return
        if tail.total != self._settings.key_groups:
            raise ConfigError(
                f"key_groups = {self._settings.key_groups}, but the state in {self._home.root} has {tail.total}",
                remedy=f"set key_groups = {tail.total}: the number is fixed for the state's life",
                where="key_groups",
            )
        check_schemas(tail.schemas, operators)

    def _claim(self, incoming: Incoming) -> None:
        stamp = Stamp(self._new_id(), self._clock.wall_ms())
        draft = claim_record(
            self._log.tail, incoming.query_id, self._settings.key_groups, self._settings.dispatch, stamp
        )
        tail = self._log.append(draft, self._log.manifest)
        self._upkeep.start(self._log.first, tail, self._log.manifest, stamp.written_ms)

    def _repeat(self, incoming: Incoming, batch: Measured, work: Work) -> BatchReport:
        with batch.phase("deliver"):
            work.drain()
            self._deliver_sealed(work)
        return batch.repeated(incoming, self._epoch)

    def _deliver_sealed(self, work: Work) -> None:
        tail = self._log.tail
        assert tail is not None
        if tail.delivers_after_commit:
            work.deliver_sealed(tail.outputs, _delivery(tail.query_id, tail.rollbacks, tail.version))

    @property
    def _epoch(self) -> int:
        assert self._log.tail is not None
        return self._log.tail.epoch

    def _run(self, incoming: Incoming, operators: Sequence[Operator], work: Work, batch: Measured) -> BatchReport:
        self._reached("before run")
        layout, receipts = self._run_and_deliver(incoming, operators, work, batch)
        with batch.phase("commit"):
            record = self._commit(incoming, operators, receipts, batch)
        self._reached("after record")
        if self._settings.deliver_after_commit:
            with batch.phase("deliver"):
                self._deliver_sealed(work)
        with batch.phase("upkeep"):
            self._upkeep.plan(record, self._log, operators, self._order_home(), self._seating.owners, self._cluster)
        placed = Placed(layout, work.placed(), self._seating.take_news())
        return batch.ran(incoming, record, receipts, placed, self._upkeep.take_facts())

    def _run_and_deliver(
        self, incoming: Incoming, operators: Sequence[Operator], work: Work, batch: Measured
    ) -> tuple[Layout, Sequence[Receipt]]:
        """Steps 1 to 6, again if slots were misplaced or a block was lost; the sink then sees the same batch id
        again.
        """
        for last in range(self._settings.batch_attempts, 0, -1):
            batch.runs += 1
            try:
                return self._run_once(incoming, operators, work, batch)
            except (StaleRows, Misplaced, OutOfDate) as error:
                work.release()
                self._seating.forget()
                self._check_not_fenced()
                if last == 1:
                    raise UnavailableError(
                        f"batch {incoming.version} was run {batch.runs} times and each time lost its place: {error}",
                        remedy="look at why executors are lost; the query can be restarted, nothing was committed",
                        where=self._home.root,
                    ) from error
        raise AssertionError("unreachable: batch_attempts is at least 1")

    def _run_once(
        self, incoming: Incoming, operators: Sequence[Operator], work: Work, batch: Measured
    ) -> tuple[Layout, Sequence[Receipt]]:
        with batch.phase("assign"):
            layout = self._seating.layout_for(work.executors())
            orders = [self._order(incoming, operator, layout, again=batch.runs > 1) for operator in operators]
        with batch.phase("upkeep"):
            self._upkeep.catch_up(self._log, operators, self._order_home(), self._seating.owners, self._cluster)
        with batch.phase("run"):
            receipts = work.run(layout, orders)
            check_receipts(receipts, orders)
            check_counts(receipts, work)
        self._reached("after seal")
        if not self._settings.deliver_after_commit:
            with batch.phase("deliver"):
                self._check_not_fenced()
                work.deliver(receipts, _delivery(incoming.query_id, self._rollbacks, incoming.version))
            self._reached("after sink")
        return layout, receipts

    def _check_not_fenced(self) -> None:
        if not self._log.next_is_absent():
            raise FencedError(
                f"another driver has appended to {self._home.root}",
                remedy="stop this query: a newer driver owns its state",
                where=self._home.root,
            )

    @property
    def _rollbacks(self) -> int:
        return self._log.tail.rollbacks if self._log.tail else 0

    def _order_home(self) -> Home:
        live = frozenset(f"{self._home.application}/{executor.id}" for executor in self._seating.executors)
        tail = self._log.tail
        return replace(self._home, live=live, log_id=tail.log_id if tail else "")

    def _order(self, incoming: Incoming, operator: Operator, layout: Layout, *, again: bool) -> Order:
        every, tail, mine = self._log.manifest.entries, self._log.tail, operator.store
        assert tail is not None
        entries = {kg: entry.recent(_LINKS_TOLD) for (store, kg), entry in every.items() if store == mine}
        return Order(
            home=self._order_home(), schema=operator.schema, compute=operator.compute, output=operator.declared.output,
            rows=operator.rows,
            per_key_group=operator.declared.per_key_group, order_by=operator.order_by, total=self._settings.key_groups,
            epoch=self._epoch, version=incoming.version, time_ms=incoming.time_ms,
            watermark_ms=tail.watermark_ms, slots=layout.orders(), entries=entries, sequence=tail.sequence,
            seal_output=self._settings.deliver_after_commit, newest=again,
        )  # fmt: skip

    def _commit(
        self, incoming: Incoming, operators: Sequence[Operator], receipts: Sequence[Receipt], batch: Measured
    ) -> Record:
        before = self._log.manifest
        snapshots = self._upkeep.snapshots(before)
        changes = changes_of(before.changed(snapshots), receipts)
        changes = {**snapshots, **changes}
        manifest = before.changed(changes)
        tail = self._log.tail
        assert tail is not None
        owners = {str(key_group): owner for key_group, owner in self._seating.owners.items()}
        stamp = Stamp(self._new_id(), self._clock.wall_ms())
        draft = batch_record(
            tail, incoming, operators, receipts, owners, stamp, after_commit=self._settings.deliver_after_commit
        )
        record = self._log.append(draft, manifest)
        self._upkeep.committed(record, before, changes)
        batch.snapshots = len(snapshots)
        return record


def _delivery(query_id: str, rollbacks: int, version: int) -> Delivery:
    return Delivery(version, f"{query_id}/{rollbacks}/{version}")
