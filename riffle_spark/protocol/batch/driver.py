"""The driver of a query: runs every micro-batch from Enter to its report.

The steps are numbered as in docs/architecture.md: 0 enter, 1 observe, 2 assign, 3 to 5 run, 6 deliver, 7 commit, 8
upkeep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from riffle_spark.assign.assignor import load_assignor_setting
from riffle_spark.errors import CorruptStateError, FencedError, LocalDiskError, Misplaced, OutOfDate
from riffle_spark.garbage import collect_garbage_rarely
from riffle_spark.messages.slot_orders import Home, Receipt
from riffle_spark.messages.upkeep_orders import UpkeepOrder
from riffle_spark.protocol.batch.acceptance import acceptance_warnings
from riffle_spark.protocol.batch.batch_report import BatchMeasures, BatchReport, SlotPlacement
from riffle_spark.protocol.batch.driver_facts import FactCollector
from riffle_spark.protocol.batch.enter import Decision, check_matches_stored_state, decide, groups_of, shards_of
from riffle_spark.protocol.batch.idle_loop import IdleLoop
from riffle_spark.protocol.batch.mailbox import last_number
from riffle_spark.protocol.batch.mailbox_reader import MailboxReader
from riffle_spark.protocol.batch.orders import BatchRun, CacheEntries, claim_digits, order_for
from riffle_spark.protocol.batch.records import Stamp, batch_record, claim_record, with_last_pass
from riffle_spark.protocol.batch.state_changes import StateChanges
from riffle_spark.protocol.facts import DriverFacts, FailureFacts
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.discovery import Discovery
from riffle_spark.protocol.ownership.operations import RequestRegister
from riffle_spark.protocol.ownership.ownership import Ownership
from riffle_spark.protocol.ports import Delivery, DriverPorts, Executor, IncomingBatch, SlotLayout, StaleRows, Work
from riffle_spark.protocol.receipts import (
    all_disks_refused_error,
    changes_of,
    check_counts,
    check_receipts,
    last_run_error,
)
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.protocol.upkeep.upkeep import Upkeep, UpkeepInput
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record

__all__ = ["Driver", "DriverPorts"]


class Driver:
    """Runs the micro-batches of a query one after the other."""

    def __init__(self, settings: Settings, home: Home, ports: DriverPorts) -> None:
        """Create the driver of the query whose state is below the root of ``home``. Sends no request."""
        settings = load_assignor_setting(settings)
        self._settings = settings
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
        self._claim_digits = ""
        self.operations = RequestRegister(settings.key_groups, settings.dispatch, ports.background.lock())
        discovery = Discovery(settings, ports.cluster, ports.background, ports.racks_of)
        self.ownership = Ownership(settings, discovery, self.operations, ports.clock)
        self.mailbox = MailboxReader(ports, self._log, self.operations, self.ownership.placement)
        self._idle_loop = IdleLoop(
            settings, self._log, self.operations, self.ownership, self._upkeep, self._rounds, self.mailbox, ports
        )
        self._state_changes = StateChanges(ports, self._log, self.mailbox, self._idle_loop, self._present_home)
        self._facts = FactCollector(self.ownership, self.operations, ports.clock, home.root)
        self._turn = ports.background.lock()
        self.idle_operators: Sequence[Operator] = ()
        """The last batch's operators until the next batch starts; empty if there is no housekeeping."""
        self._fenced: FencedError | None = None
        self._caches = CacheEntries()
        self._requests_applied = 0

    def process(self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work) -> BatchReport:
        """Run one micro-batch to its commit, or skip it if it is a repeat; return the report.

        Raises ``ConflictError`` if the batch does not fit the log, ``FencedError`` if a newer driver took over,
        ``UnavailableError``, and errors of the user's code or the sink. After an error nothing of the batch is
        committed, unless the error says that the commit is unknown. Then the next call reads the log first.
        """
        if self._fenced and self._run_id == incoming.run_id:
            raise self._fenced
        self._rounds.in_batch = True
        self.idle_operators = ()
        with self._turn, collect_garbage_rarely():
            batch = BatchMeasures(self._clock, self._objects)
            self._apply_requests()
            try:
                with batch.phase("enter"):
                    decision = self._enter(incoming, operators)
                    if decision is not Decision.REPEAT:
                        self._poll_mailbox()
                if decision is Decision.REPEAT:
                    report = self._repeat(incoming, batch, work)
                else:
                    report = self._run(incoming, operators, work, batch)
            except BaseException as error:
                self._facts.counters.add_failure(error)
                if isinstance(error, FencedError):
                    self._fenced = error
                raise
            else:
                self._facts.failure = None
                self._facts.counters.add_report(report)
                return report
            finally:
                self._rounds.in_batch = False
                work.release()

    def between_batches(self, executors: Sequence[Executor]) -> bool:
        """Do the housekeeping that is due, given the live executors; return whether there was any.

        May be called from any thread. A batch that arrives at this time waits until the housekeeping ends. Raises
        ``FencedError`` if a newer driver took over, ``UnavailableError`` if the store does not answer.
        """
        with self._turn:
            operators = self.idle_operators
            if not operators:
                return False
            try:
                if executors and self._idle_loop.is_idle():
                    self._poll_mailbox()
                self._apply_requests()
                return self._idle_loop.do_housekeeping(
                    executors,
                    self._settings,
                    lambda: replace(self._upkeep_input(operators), home=self._home_for(executors)),
                )
            except FencedError as error:
                self._facts.counters.add_fencing()
                self._fenced = error
                self.idle_operators = ()
                raise

    def facts(self) -> DriverFacts:
        """Return the present figures and settings of the query. Sends no request.

        May be called from any thread. A call during a batch waits until the batch ends.
        """
        with self._turn:
            answered = last_number(self.mailbox.answers)
            return self._facts.collect(self._log.tail, self._log.manifest, self._run_id, answered)

    @property
    def run_id(self) -> str | None:
        """The id of the query's run for which this driver has claimed the log, ``None`` before its first claim."""
        return self._run_id

    def record_failure(self, error: str, error_id: str) -> None:
        """Record the class of the error that ended the query, unless one is recorded. The next batch removes it."""
        if self._facts.failure is None:
            self._facts.failure = FailureFacts(error, error_id, self._clock.wall_ms())

    def show_pauses(self, paused_since_ms: Callable[[], int | None]) -> None:
        """Add the start of a pause to the facts. ``paused_since_ms`` returns it, or ``None`` without a pause."""
        self._facts.paused_since_ms = paused_since_ms

    def count_requests(self, sender: str, requests: Mapping[str, int]) -> None:
        """Count requests by kind that ``sender`` sent to the store outside of this driver. Any thread may call it."""
        self._facts.counters.add_requests(sender, requests)

    def record_source(self, committed: Sequence[str], newest: Sequence[str], now: float) -> None:
        """Record the offsets that the last committed batch has read, and the newest ones, as ``SourceLag.record`` does.

        Must not be called during a batch.
        """
        self._facts.source_lag.record(committed, newest, now)

    @property
    def settings(self) -> Settings:
        """Return the settings in effect."""
        return self._settings

    def stored_rows(self) -> Mapping[str, int]:
        """Return the number of state rows by store after the last commit.

        If the number is unknown, it is an upper bound, which counts a key once for each snapshot and delta that has it.
        """
        tail = self._log.tail
        if tail is None:
            return {}
        if tail.schemas.keys() <= tail.row_counts.keys():
            return tail.row_counts
        store_sizes = self._log.manifest.measure_stores()
        return {**{store: size.rows for store, size in store_sizes.items()}, **tail.row_counts}

    def first_due_ms(self, operators: Sequence[Operator]) -> int | None:
        """Return the earliest processing time (ms) at which a key of these operators is due, as of the last commit.

        Return ``None`` if no key is due.
        """
        stores = {o.store for o in operators if o.declared.time_mode == "ProcessingTime"}
        entries = [*self._log.manifest.entries.items(), *self._caches.entries.items()] if stores else []
        timers = (entry.timer_ms for (store, _), entry in entries if store in stores)
        return min((timer_ms for timer_ms in timers if timer_ms is not None), default=None)

    def clean_up(self) -> None:
        """Remove all local copies of all live members. Must not be called during a batch.

        Raises ``UnavailableError`` if a member fails to.
        """
        with self._turn:
            self.idle_operators = ()  # otherwise housekeeping would fetch standbys again
            live = self.ownership.membership.live
            order = UpkeepOrder(
                self._present_home(), "", 0, 0, {}, wipe=True, timeout_seconds=self._settings.upkeep_timeout
            )
            self._rounds.run_alone({living.executor.id: order for living in live.values()})
            self._upkeep.gather(self.ownership)
            for member in live:
                self.ownership.copies.reported.remove_member(member)

    def _poll_mailbox(self) -> None:
        """Read and apply the operator requests in the mailbox."""
        self._state_changes.poll(lambda: self._settings, self._apply_requests)

    def _apply_requests(self) -> None:
        """Apply changed settings. If an operator made a request, let upkeep retry abandoned work."""
        requests = self.operations.requests
        if requests.revision != self._requests_applied:
            self._requests_applied = requests.revision
            self._rounds.setbacks.retry_all()
        if requests.settings is not None and requests.settings is not self._settings:
            self._settings = requests.settings
            self.ownership.change_settings(self._settings)
            self._upkeep.change_settings(self._settings)

    def _enter(self, incoming: IncomingBatch, operators: Sequence[Operator]) -> Decision:
        """Decide whether the batch runs or is a repeat. The first batch of a run reads the log and appends a claim.

        Raises ``ConflictError`` or ``ConfigError`` for a batch that does not fit the log.
        """
        is_new_run = self._run_id != incoming.run_id
        if self._log.is_unclear:
            self._settle_append(is_new_run=is_new_run)
        if is_new_run:
            self._fenced = None
            self._log.open()
        tail = self._log.tail
        decision = decide(tail, incoming, self._home.root, self._settings)
        check_matches_stored_state(tail, self._settings, operators, self._home.root, self._home.key, decision)
        if is_new_run:
            self._claim(incoming)
            self._start_run(tail, operators)
            self._facts.start_run(tail, incoming.query_name)
            self._run_id = incoming.run_id
        return decision

    def _start_run(self, tail: Record | None, operators: Sequence[Operator]) -> None:
        """Start a new run: forget everything of the earlier run except the operator requests.

        The earlier run may have been rolled back, or another driver may have run batches.
        """
        self._rounds.forget()
        self._caches.forget()
        self.ownership.begin(tail, groups_of(self._settings, operators))
        self._idle_loop.start_run(tail)
        for warning in acceptance_warnings(tail, operators, self._settings.accept):
            self.ownership.placement.warn(warning)
        self._apply_requests()

    def _settle_append(self, *, is_new_run: bool) -> None:
        """Find out whether an append with an unknown outcome was committed.

        Raises ``FencedError`` if another driver has appended. If ``is_new_run``, ignore that, because the new run reads
        the log and appends its own claim.
        """
        try:
            tail = self._log.settle_append()
        except FencedError:
            if not is_new_run:
                raise
        else:
            if tail.kind == "batch":
                self._caches.forget()  # they lack the batch, which was committed
            self.ownership.moves.record_append(tail.moves, tail.version)
            self._upkeep.start(None, tail, self._log.manifest)

    def _claim(self, incoming: IncomingBatch) -> None:
        """Append a claim, after which older drivers cannot commit. Then start upkeep."""
        stamp = Stamp(self._new_id(), self._clock.wall_ms())
        previous = self._log.tail
        draft = claim_record(previous, incoming.query_id, self._settings.key_groups, self._settings.dispatch, stamp)
        promise = self._upkeep.promise_after(self._log.first, previous) if previous else 0
        draft = replace(draft, promised=promise, savepoints=self.mailbox.savepoints.for_claim(previous))
        tail = self._log.append(draft, self._log.manifest)
        self._claim_digits = claim_digits(tail.commit_id)
        self.mailbox.savepoints.start(tail)
        follows_claim = previous is not None and previous.kind == "claim"
        self._upkeep.start(self._log.first, tail, self._log.manifest, follows_claim=follows_claim)

    def _repeat(self, incoming: IncomingBatch, batch: BatchMeasures, work: Work) -> BatchReport:
        """Read the input of a committed batch to its end, deliver its sealed output again, and return the report."""
        with batch.phase("deliver"):
            work.drain()
            self._deliver_sealed(work)
        assert self._log.tail is not None
        return batch.report_repeat(incoming, self._log.tail.epoch)

    def _deliver_sealed(self, work: Work) -> None:
        """Pass the sealed output of the newest record to the sinks, if its output is delivered after the commit."""
        tail = self._log.tail
        assert tail is not None
        if tail.delivers_after_commit:
            delivery = _delivery(tail.query_id, tail.delivery_rollbacks, tail.version, tail.time_ms or 0)
            work.deliver_sealed(tail.outputs, delivery)

    def _run(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> BatchReport:
        """Assign, run, deliver and commit one batch, and start its upkeep; return its report."""
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
            self._upkeep.plan(self._upkeep_input(operators), self._clock.seconds())
        self._idle_loop.record_batch_end()
        self.idle_operators = operators
        placement = SlotPlacement(layout, work.is_placed(), self.ownership, work.plan_fallbacks())
        return batch.report_commit(incoming, record, receipts, placement, self._upkeep.take_facts())

    def _upkeep_input(self, operators: Sequence[Operator]) -> UpkeepInput:
        """Return the input for planning upkeep, as of the newest record."""
        tail = self._log.tail
        assert tail is not None
        durable = [operator for operator in operators if operator.durable]
        return UpkeepInput(tail, self._log.manifest, durable, self.ownership, self._present_home())

    def _run_and_deliver(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> tuple[SlotLayout, Sequence[Receipt]]:
        """Run the slots and deliver their output; return the slots and their receipts.

        If slots were misplaced, a local disk refused a write or a block was lost, the batch runs again, at most
        ``batch_attempts`` times in total. A sink that was already called then gets the same batch id again.
        """
        used_executors: set[str] = set()
        while True:
            batch.runs += 1
            is_last_run = batch.runs >= self._settings.batch_attempts
            try:
                return self._run_once(incoming, operators, work, batch)
            except (StaleRows, Misplaced, OutOfDate, LocalDiskError, CorruptStateError) as error:
                work.release()
                batch.warn_of_failed_run(incoming.version, error, self._settings.batch_attempts)
                self.ownership.placement.forget_layout()
                self._check_not_fenced()
                if isinstance(error, CorruptStateError):
                    raise
                used_executors |= {executor.id for executor in self.ownership.membership.executors}
                if isinstance(error, LocalDiskError):
                    self._check_has_usable_executor(error)
                    if is_last_run:
                        raise
                elif is_last_run:
                    lost_executors = used_executors - {executor.id for executor in work.executors()}
                    raise last_run_error(
                        incoming.version, batch.runs, error, lost_executors, self._home.root
                    ) from error

    def _check_has_usable_executor(self, error: LocalDiskError) -> None:
        """Raise a ``LocalDiskError`` if the disks of all executors have refused writes."""
        if not self.ownership.discovery.has_usable_executor(self.ownership.membership.executors, self._clock.seconds()):
            raise all_disks_refused_error(error) from error

    def _run_once(
        self, incoming: IncomingBatch, operators: Sequence[Operator], work: Work, batch: BatchMeasures
    ) -> tuple[SlotLayout, Sequence[Receipt]]:
        """Observe the members, assign and run the slots; return the slots and their receipts.

        The output is delivered to the sink, unless results are delivered after the commit.
        """
        with batch.phase("assign"):
            layout = self._layout(work.executors(), operators)
            run = self._batch_run(incoming, batch.runs)
            orders = [order_for(run, operator, layout) for operator in operators]
        with batch.phase("upkeep"):
            self._upkeep.catch_up(self._upkeep_input(operators))
        with batch.phase("run"):
            receipts = work.run(layout, orders)
            self.ownership.record_receipts(receipts, self._clock.seconds())
            check_receipts(receipts, orders)
            check_counts(receipts, work)
        self._reached("after seal")
        if not self._settings.deliver_after_commit:
            with batch.phase("deliver"):
                rollbacks = self._log.tail.rollbacks if self._log.tail else 0
                delivery = _delivery(incoming.query_id, rollbacks, incoming.version, incoming.time_ms)
                work.deliver(receipts, delivery, self._check_not_fenced)
            self._reached("after sink")
        return layout, receipts

    def _layout(self, executors: Sequence[Executor], operators: Sequence[Operator]) -> SlotLayout:
        """Update the members from the live executors; return the slots of the next run."""
        self._upkeep.gather(self.ownership)
        durable_stores = tuple(operator.store for operator in operators if operator.durable)
        home = self._home_for(executors)
        return self.ownership.layout_for(executors, self._log.manifest, durable_stores, home, self._clock.seconds())

    def _check_not_fenced(self) -> None:
        """Raise ``FencedError`` if another driver has appended the next record."""
        if not self._log.next_is_absent():
            # Cause: The driver checks the log before it calls the sink. It found a record of another driver, or of a
            # command that ran with --execute.
            raise FencedError(
                f"Another driver or a command has appended to {self._home.root}.",
                remedy="Do nothing if another driver of the query runs. After a command such as riffle rollback, start "
                "it again. Otherwise run riffle verify: a lifecycle rule may have deleted the newest record.",
                where=self._home.root,
                id="RIFFLE-0208",
            )

    def _present_home(self) -> Home:
        """Return the home with the live executors of the last membership update."""
        return self._home_for(self.ownership.membership.executors)

    def _home_for(self, executors: Sequence[Executor]) -> Home:
        """Return the home with these live executors, and with the log's id and newest purge."""
        live = frozenset(f"{self._home.application}/{executor.id}" for executor in executors)
        tail = self._log.tail
        if tail is None:
            return replace(self._home, live=live, log_id="", purged=0)
        return replace(self._home, live=live, log_id=tail.log_id, purged=tail.purged)

    def _batch_run(self, incoming: IncomingBatch, number: int) -> BatchRun:
        """Return the common parts of the orders for run ``number`` of a batch."""
        tail = self._log.tail
        assert tail is not None
        return BatchRun(
            incoming,
            number,
            self._claim_digits,
            self._settings,
            self._present_home(),
            tail,
            self._log.manifest,
            self._caches.entries,
            self.ownership,
        )

    def _commit(
        self, incoming: IncomingBatch, operators: Sequence[Operator], receipts: Sequence[Receipt], batch: BatchMeasures
    ) -> Record:
        """Append the record of a batch, and return it. Update members, copies and upkeep."""
        manifest = self._log.manifest
        caches = {operator.store for operator in operators if not operator.durable}
        durable_receipts = [receipt for receipt in receipts if receipt.store not in caches]
        snapshots = self._upkeep.entries_with_snapshots(manifest, self.ownership)
        changes = {**snapshots, **changes_of(manifest.with_entries(snapshots), durable_receipts)}
        tail = self._log.tail
        assert tail is not None
        draft = batch_record(
            tail,
            incoming,
            operators,
            receipts,
            self.ownership,
            Stamp(self._new_id(), self._clock.wall_ms()),
            after_commit=self._settings.deliver_after_commit,
            key_id=self._home.key,
        )
        promise = self._upkeep.promise(tail.sequence + 1)
        draft = replace(
            draft,
            promised=promise,
            weights=self.ownership.placement.weights.to_record(with_measured=self._log.is_full_due("batch")),
            orders=self._idle_loop.requests_for_record(),
            savepoints=self.mailbox.savepoints.current,
        )
        record = self._log.append(draft, manifest.with_entries(changes), self.ownership.moves.unrecorded())
        self.ownership.moves.record_append(record.moves, record.version)
        self._upkeep.record_commit(record, manifest, changes)
        self.ownership.record_commit(record, manifest, changes, durable_receipts)
        self._caches.replace_entries(receipt for receipt in receipts if receipt.store in caches)
        self._facts.commit_ms = record.written_ms
        batch.snapshots = sum(entry.snapshot != manifest.entry(*a).snapshot for a, entry in snapshots.items())
        batch.warn_of_changed_stores(tail, operators)
        return record


def _delivery(query_id: str, rollbacks: int, version: int, time_ms: int) -> Delivery:
    """Return the delivery of a batch with its id ``<query id>/<rollbacks>/<batch id>``."""
    return Delivery(version, f"{query_id}/{rollbacks}/{version}", time_ms)
