"""One query's driver: every micro-batch from Enter to its report. Knows the order of steps. Does not know Spark.

The steps are numbered as in docs/architecture.md: 0 enter, 1 observe, 2 assign, 3 to 5 run, 6 deliver, 7 commit, 8
upkeep.
"""

from collections.abc import Sequence
from dataclasses import replace

from riffle_spark.assign.assignor import with_loaded_assignor
from riffle_spark.errors import CorruptStateError, FencedError, LocalDiskError, Misplaced, OutOfDate
from riffle_spark.messages.slot_orders import Home, Receipt
from riffle_spark.messages.upkeep_orders import UpkeepOrder
from riffle_spark.protocol.batch.acceptance import acceptance_warnings
from riffle_spark.protocol.batch.batch_report import BatchMeasures, BatchReport, SlotPlacement
from riffle_spark.protocol.batch.enter import Decision, check_fixed, decide, groups_of, shards_of
from riffle_spark.protocol.batch.idle_loop import IdleLoop
from riffle_spark.protocol.batch.orders import BatchRun, CacheEntries, order_for
from riffle_spark.protocol.batch.records import Stamp, batch_record, claim_record, with_last_pass
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.discovery import Discovery
from riffle_spark.protocol.ownership.operations import Operations
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import Delivery, DriverPorts, Executor, IncomingBatch, SlotLayout, StaleRows, Work
from riffle_spark.protocol.receipts import changes_of, check_counts, check_receipts, lost_place, no_disk_left
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.upkeep import Upkeep, UpkeepInput
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record

__all__ = ["Driver", "DriverPorts"]


class Driver:
    """Runs one query's micro-batches, one at a time."""

    def __init__(self, settings: Settings, home: Home, ports: DriverPorts) -> None:
        self._settings = settings = with_loaded_assignor(settings)
        self._home = home
        self._objects = ports.objects
        self._clock = ports.clock
        self._reached = ports.reached
        self._new_id = ports.new_id
        self._log = Log(ports.objects, home.root, lambda: (ports.clock.seconds(), ports.clock.wall_ms() / 1000))
        self._rounds = Rounds(ports.cluster, ports.background, ports.clock)
        upkeep_objects = ports.upkeep_objects or ports.objects
        self._upkeep = Upkeep(settings, upkeep_objects, ports.background, self._rounds, ports.clock)
        self._run_id: str | None = None
        self.operations = Operations(settings.key_groups, settings.dispatch, ports.background.lock())
        discovery = Discovery(settings, ports.cluster, ports.background, ports.racks_of)
        self.ownership = Ownership(settings, discovery, self.operations)
        self._idle_loop = IdleLoop(
            settings, self._log, self.operations, self.ownership, self._upkeep, self._rounds, ports
        )
        self._turn = ports.background.lock()
        self.watched: Sequence[Operator] = ()
        """The last batch's operators, while the query is to be looked after until the next one."""
        self._fenced: FencedError | None = None
        self._caches = CacheEntries()
        self._requests_obeyed = 0

    def process(self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work) -> BatchReport:
        """Run one micro-batch to its commit, or skip it if it was committed before; return what was done.

        Raises ``ConflictError`` with the remedy if the batch does not fit the log, ``FencedError`` if a newer driver
        took over, what the user's code or the sink raise, and ``UnavailableError``; in all these cases nothing of the
        batch is committed (or, where the error says "unclear", it is found out before anything runs again).
        """
        if self._fenced and self._run_id == incoming.run_id:
            raise self._fenced
        self._rounds.in_batch, self.watched = True, ()
        with self._turn:
            batch = BatchMeasures(self._clock, self._objects)
            self._obey()
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
                self._rounds.in_batch = False
                work.release()

    def between_batches(self, executors: Sequence[Executor]) -> bool:
        """Look after the query while no batch runs, with the executors that live; tell whether there was anything to
        do. From any thread: a batch that comes meanwhile waits for the end of it.

        Raises ``FencedError`` if a newer driver took over, ``UnavailableError`` if the store does not answer.
        """
        with self._turn:
            watched = self.watched
            if not watched:
                return False
            self._obey()
            try:
                return self._idle_loop.look(
                    executors, self._settings, lambda: replace(self._place(watched), home=self._home_for(executors))
                )
            except FencedError as error:
                self._fenced, self.watched = error, ()
                raise

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    def stored_rows(self) -> dict[str, int]:
        """Return how many rows the parts of each store have: those of a key that is in several count each."""
        return self._log.manifest.rows()

    def first_due_ms(self, operators: Sequence[Operator]) -> int | None:
        """Return at which processing time the first is due of what these operators keep as of the last commit;
        ``None`` where nothing ever is.
        """
        stores = {o.store for o in operators if o.declared.time_mode == "ProcessingTime"}
        every = [*self._log.manifest.entries.items(), *self._caches.entries.items()] if stores else []
        told = (entry.timer_ms for (store, _), entry in every if store in stores)
        return min((ms for ms in told if ms is not None), default=None)

    def clean_up(self) -> None:
        """Remove all local copies of all live members. Only while no batch is under way.

        Raises ``UnavailableError`` if a member does not come to it.
        """
        with self._turn:
            self.watched = ()  # or standbys would be fetched anew at once
            live, seconds = self.ownership.membership.live, self._settings.upkeep_timeout
            order = UpkeepOrder(self._order_home(), "", 0, 0, {}, wipe=True, timeout_seconds=seconds)
            self._rounds.at_once({living.executor.id: order for living in live.values()})
            self._upkeep.gather(self.ownership)
            for member in live:
                self.ownership.copies.known.remove_member(member)

    def _obey(self) -> None:
        """Take live settings that were changed since the last batch. Who asks for anything wants what upkeep gave up
        tried again, too.
        """
        changed, asked = self.operations.requests.settings, self.operations.requests.revision
        if asked != self._requests_obeyed:
            self._requests_obeyed = asked
            self._rounds.setbacks.start_over()
        if changed is not None and changed is not self._settings:
            self._settings = changed
            self.ownership.change_settings(changed)
            self._upkeep.obey(changed)

    def _enter(self, incoming: IncomingBatch, operators: Sequence[Operator]) -> Decision:
        fresh = self._run_id != incoming.run_id
        if self._log.unclear:
            self._clear_up(fresh)
        if fresh:
            self._fenced = None
            self._log.open()
        tail = self._log.tail
        decision = decide(tail, incoming, self._home.root, self._settings)
        check_fixed(tail, self._settings, operators, self._home.root, self._home.key, decision)
        if fresh:
            self._claim(incoming)
            self._begin(tail, operators)
            self._run_id = incoming.run_id
        return decision

    def _begin(self, tail: Record | None, operators: Sequence[Operator]) -> None:
        """Keep nothing of an earlier run but what an operator asked for: the state may have been taken back, and
        another driver may have been at work.
        """
        self._rounds.forget()
        self._caches.forget()
        self.ownership.begin(tail, groups_of(self._settings, operators))
        self._idle_loop.begin(tail)
        for warning in acceptance_warnings(tail, operators, self._settings.accept):
            self.ownership.placement.warn(warning)
        self._obey()

    def _clear_up(self, fresh: bool) -> None:
        """Find out what became of an unclear append. A query that was started again takes over from whoever won."""
        try:
            tail = self._log.settle()
        except FencedError:
            if not fresh:
                raise
        else:
            if tail.kind == "batch":
                self._caches.forget()  # the batch that was found to be committed told them nothing
            self._upkeep.start(None, tail, self._log.manifest)

    def _claim(self, incoming: IncomingBatch) -> None:
        stamp, before = Stamp(self._new_id(), self._clock.wall_ms()), self._log.tail
        draft = claim_record(before, incoming.query_id, self._settings.key_groups, self._settings.dispatch, stamp)
        promised = self._upkeep.promise_after(self._log.first, before) if before else 0
        tail = self._log.append(replace(draft, promised=promised), self._log.manifest)
        after_claims = before is not None and before.kind == "claim"
        self._upkeep.start(self._log.first, tail, self._log.manifest, after_claims=after_claims)

    def _repeat(self, incoming: IncomingBatch, batch: BatchMeasures, work: Work) -> BatchReport:
        with batch.phase("deliver"):
            work.drain()
            self._deliver_sealed(work)
        assert self._log.tail is not None
        return batch.repeated(incoming, self._log.tail.epoch)

    def _deliver_sealed(self, work: Work) -> None:
        tail = self._log.tail
        assert tail is not None
        if tail.delivers_after_commit:
            work.deliver_sealed(tail.outputs, _delivery(tail.query_id, tail.line, tail.version, tail.time_ms or 0))

    def _run(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> BatchReport:
        self._reached("before run")
        with batch.phase("assign"):
            assert self._log.tail is not None
            shards = shards_of(self._log.tail, incoming, work, self.ownership.placement.warn)
            self.ownership.placement.set_tasks(groups_of(self._settings, operators), shards)
            incoming = with_last_pass(self._log.tail, incoming, operators, work)
        layout, receipts = self._run_and_deliver(incoming, operators, work, batch)
        with batch.phase("commit"):
            record = self._commit(incoming, operators, receipts, batch)
        self._reached("after record")
        if self._settings.deliver_after_commit:
            with batch.phase("deliver"):
                self._deliver_sealed(work)
        with batch.phase("upkeep"):
            self._upkeep.plan(self._place(operators), self._clock.seconds())
        self._idle_loop.ran()
        self.watched = operators
        placed = SlotPlacement(layout, work.placed(), self.ownership, work.plan_fallbacks())
        return batch.ran(incoming, record, receipts, placed, self._upkeep.take_facts())

    def _place(self, operators: Sequence[Operator]) -> UpkeepInput:
        tail, durable = self._log.tail, [operator for operator in operators if operator.durable]
        assert tail is not None
        return UpkeepInput(tail, self._log.manifest, durable, self.ownership, self._order_home())

    def _run_and_deliver(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> tuple[SlotLayout, Sequence[Receipt]]:
        """Steps 1 to 6, again if slots were misplaced, an executor's disk refused or a block was lost; the sink then
        sees the same batch id again.
        """
        ran_on: set[str] = set()
        for last in range(self._settings.batch_attempts, 0, -1):
            batch.runs += 1
            try:
                return self._run_once(incoming, operators, work, batch)
            except (StaleRows, Misplaced, OutOfDate, LocalDiskError, CorruptStateError) as error:
                work.release()
                batch.gave_up(incoming.version, error, self._settings.batch_attempts)
                self.ownership.placement.forget_layout()
                self._check_not_fenced()
                if isinstance(error, CorruptStateError):
                    raise
                ran_on |= {executor.id for executor in self.ownership.membership.executors}
                if isinstance(error, LocalDiskError):
                    self._check_others_are_left(error)
                    if last == 1:
                        raise
                elif last == 1:
                    gone = ran_on - {executor.id for executor in work.executors()}
                    raise lost_place(incoming.version, batch.runs, error, gone, self._home.root) from error
        raise AssertionError("unreachable: batch_attempts is at least 1")

    def _check_others_are_left(self, error: LocalDiskError) -> None:
        """Raise the error of a disk that refused if there is no other executor to run the batch on."""
        if not self.ownership.discovery.any_usable(self.ownership.membership.executors, self._clock.seconds()):
            raise no_disk_left(error) from error

    def _run_once(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> tuple[SlotLayout, Sequence[Receipt]]:
        with batch.phase("assign"):
            layout = self._layout(work.executors(), operators)
            run = self._base(incoming, batch.runs)
            orders = [order_for(run, operator, layout) for operator in operators]
        with batch.phase("upkeep"):
            self._upkeep.catch_up(self._place(operators))
        with batch.phase("run"):
            receipts = work.run(layout, orders)
            self.ownership.record_receipts(receipts, self._clock.seconds())
            check_receipts(receipts, orders)
            check_counts(receipts, work)
        self._reached("after seal")
        if not self._settings.deliver_after_commit:
            with batch.phase("deliver"):
                delivery = _delivery(incoming.query_id, self._rollbacks, incoming.version, incoming.time_ms)
                work.deliver(receipts, delivery, self._check_not_fenced)
            self._reached("after sink")
        return layout, receipts

    def _layout(self, executors: Sequence[Executor], operators: Sequence[Operator]) -> SlotLayout:
        self._upkeep.gather(self.ownership)
        durable = tuple(operator.store for operator in operators if operator.durable)
        home, now = self._home_for(executors), self._clock.seconds()
        return self.ownership.layout_for(executors, self._log.manifest, durable, home, now)

    def _check_not_fenced(self) -> None:
        if not self._log.next_is_absent():
            raise FencedError(
                f"another driver has appended to {self._home.root}",
                remedy="stop this query: a newer driver owns its state",
                where=self._home.root,
                id="RIFFLE-0208",
            )

    @property
    def _rollbacks(self) -> int:
        return self._log.tail.rollbacks if self._log.tail else 0

    def _order_home(self) -> Home:
        return self._home_for(self.ownership.membership.executors)

    def _home_for(self, executors: Sequence[Executor]) -> Home:
        live = frozenset(f"{self._home.application}/{executor.id}" for executor in executors)
        tail = self._log.tail
        return replace(self._home, live=live, log_id=tail.log_id if tail else "")

    def _base(self, incoming: IncomingBatch, number: int) -> BatchRun:
        tail = self._log.tail
        assert tail is not None
        return BatchRun(
            incoming, number, self._settings, self._order_home(), tail, self._log.manifest, self._caches.entries,
            self.ownership,
        )  # fmt: skip

    def _commit(
        self, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Sequence[Receipt], batch: BatchMeasures
    ) -> Record:
        before, caches = self._log.manifest, {operator.store for operator in operators if not operator.durable}
        snapshots = self._upkeep.snapshots(before, self.ownership)
        durable = [receipt for receipt in receipts if receipt.store not in caches]
        changes = {**snapshots, **changes_of(before.changed(snapshots), durable)}
        manifest = before.changed(changes)
        tail = self._log.tail
        assert tail is not None
        stamp = Stamp(self._new_id(), self._clock.wall_ms())
        after, given = self._settings.deliver_after_commit, (incoming, operators, receipts, self.ownership, stamp)
        draft = batch_record(tail, *given, after_commit=after, key=self._home.key)
        promised = self._upkeep.promise(tail.sequence + 1)
        record = self._log.append(replace(draft, promised=promised, orders=self._idle_loop.orders()), manifest)
        self._upkeep.committed(record, before, changes)
        self.ownership.record_commit(record, before, changes, durable)
        self._caches.committed(receipt for receipt in receipts if receipt.store in caches)
        batch.snapshots = len(snapshots)
        batch.began(tail, operators)
        return record


def _delivery(query_id: str, rollbacks: int, version: int, time_ms: int) -> Delivery:
    return Delivery(version, f"{query_id}/{rollbacks}/{version}", time_ms)
