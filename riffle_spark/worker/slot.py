"""Run one slot of one batch on local copies; return its output rows and a receipt.

docs/architecture.md explains the steps:

1. Advance the copies of the touched key-groups to the heads that the driver ordered.
2. Read their state and compute in memory.
3. Seal one delta under a unique name, and return.

The slot does not write to the copies. A later batch applies the delta, once the log lists it.
"""

import logging
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import Times
from riffle_spark.errors import Misplaced, RiffleError
from riffle_spark.messages.slot_orders import (
    ATTEMPT,
    RECEIPT,
    Order,
    Receipt,
    attempt_number,
    error_fields,
    result_schema,
)
from riffle_spark.process.blocks.block import BlockComputation, Computation, ElementComputation
from riffle_spark.process.blocks.combining import ROWS, decode_rows
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.store_computation import StoreComputation
from riffle_spark.state.copies import disk
from riffle_spark.state.copies.part_files import close_removed_files
from riffle_spark.state.formats.key_codec import normalise_zeros
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Entry
from riffle_spark.state.log.record_commits import check_folder_has_log
from riffle_spark.state.objects.store import sent_since
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import OpenStack, StackKeeper
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker import run_computation
from riffle_spark.worker.dead_letters import run_with_letters
from riffle_spark.worker.expiry import with_expired
from riffle_spark.worker.input import (
    KeysOfStores,
    TouchedKeys,
    count_by_partition,
    count_rows_by_key_group,
    read_state,
    with_stored_keys,
    without_late_rows,
)
from riffle_spark.worker.member_folders import entry_at, folder_of, keys_of, store_of
from riffle_spark.worker.memory_use import memory_use
from riffle_spark.worker.seal import SlotResult, seal
from riffle_spark.worker.slot_errors import as_riffle_error
from riffle_spark.worker.whole_groups import with_whole_groups

_Params = ParamSpec("_Params")
_Returned = TypeVar("_Returned")
_BeginPut: TypeAlias = Callable[[Callable[[], None]], Future[None]]
_logger = logging.getLogger("riffle_spark")


class StoreInput(NamedTuple):
    """The input of a slot for one store: the order, the computation, and the rows with the routing columns."""

    order: Order
    computation: Computation
    rows: pa.Table


def run_slot(
    order: Order,
    computation: Computation,
    slot: int,
    executor: str,
    rows: pa.Table,
    random_bytes: Callable[[int], bytes] = os.urandom,
    later: Callable[[Callable[[], None]], object] = lambda work: work(),
) -> pa.Table:
    """Run one attempt of a slot for a single store; return the result, as ``run_slots`` does."""
    return run_slots([StoreInput(order, computation, rows)], slot, executor, random_bytes, later)[0]


def run_slots(
    stores: Sequence[StoreInput],
    slot: int,
    executor: str,
    random_bytes: Callable[[int], bytes] = os.urandom,
    later: Callable[[Callable[[], None]], object] = lambda work: work(),
) -> list[pa.Table]:
    """Run one attempt of a slot for one store after the other; return a result per store.

    A result has the output rows and, in a last row, the receipt (``result_schema``). A ``RiffleError`` of the user's
    function, a copy or the object store is returned in the receipt, without output rows, because Spark's retry of the
    task would not help.

    While a store computes, the changes of earlier stores are put. Work that may run between batches is passed to
    ``later``.
    """
    works = []
    keys = KeysOfStores()
    with ThreadPoolExecutor(len(stores), "riffle-put") as pool:
        for store in stores:
            works.append(_StoreWork(store.order, slot, executor, random_bytes(16)))
            works[-1].run(store.computation, store.rows, keys, _put_now if len(stores) == 1 else pool.submit)
        for work, following in pairwise(works):
            work.count_requests_until(following)
        return [work.answer(later) for work in works]


def _put_now(put: Callable[[], None]) -> Future[None]:
    """Call ``put`` on this thread, because a slot with one store has no other work; return a completed future."""
    put()
    completed: Future[None] = Future()
    completed.set_result(None)
    return completed


class _StoreWork:
    """The work of one attempt of a slot for one store. An error is kept for the receipt."""

    def __init__(self, order: Order, slot: int, executor: str, attempt_id: bytes) -> None:
        """Create the work. ``attempt_id`` makes the attempt's name unique."""
        self._order = order
        self._slot = slot
        self._executor = executor
        self._attempt_id = attempt_id
        self._attempt: _Attempt | None = None
        self._output = order.output.empty_table()
        self._error: RiffleError | None = None

    def run(self, computation: Computation, rows: pa.Table, keys: KeysOfStores, begin_put: _BeginPut) -> None:
        """Run the steps of the attempt, and begin to put its changes."""
        with self._keeping_error():
            self._attempt = _Attempt(self._order, computation, self._executor, self._attempt_id)
            with self._attempt.folder.hold():
                self._output = self._attempt.run(self._slot, rows, keys, begin_put)

    def answer(self, later: Callable[[Callable[[], None]], object]) -> pa.Table:
        """Wait until the changes are put, and return the result."""
        order, attempt = self._order, self._attempt
        if self._error is None and attempt is not None:
            with self._keeping_error():
                attempt.await_put()
        if attempt is not None and self._error is None:
            later(attempt.tidy)
            return _answer_table(order.output, self._output, attempt.receipt(self._slot, self._executor))
        assert self._error is not None
        name = order.attempt_name(self._attempt_id)
        bare = Receipt(order.store, self._slot, name, order.version, member="", executor=self._executor)
        receipt = attempt.receipt(self._slot, self._executor) if attempt else bare
        receipt = replace(receipt, error=error_fields(self._error))
        return _answer_table(order.output, order.output.empty_table(), receipt)

    def count_requests_until(self, following: "_StoreWork") -> None:
        """Count no requests that were sent after ``following`` started, because its own receipt counts them."""
        if self._attempt is not None and following._attempt is not None:
            self._attempt.requests_after = following._attempt.requests_before

    @contextmanager
    def _keeping_error(self) -> Iterator[None]:
        """Run a block, and keep its error for the receipt."""
        try:
            yield
        except (RiffleError, OSError, MemoryError, RuntimeError, pa.ArrowException) as raised:
            self._error = as_riffle_error(raised, self._attempt.folder.path if self._attempt else None)


class _Attempt:
    """One attempt of a slot: its folder, store and keys, and the fields of its receipt (``facts``)."""

    def __init__(self, order: Order, computation: Computation, executor: str, attempt_id: bytes) -> None:
        """Open this executor's folder and store for an attempt. ``attempt_id`` makes its name unique."""
        self.order = order
        self.schema = schema_of_text(order.store, order.schema)
        self.compute = StoreComputation(computation)
        self.name = order.attempt_name(attempt_id)
        self.objects = store_of(order.home)
        self.requests_before = dict(self.objects.requests)
        self.requests_after: dict[str, int] | None = None
        self.folder = folder_of(order.home, executor)
        self.keys = keys_of(order.home)
        self.reader = Reader(self.objects, self.keys)
        self.facts: dict[str, object] = {}
        self.seconds: dict[str, float] = {}
        self._inside = 0.0
        self._put: Future[None] | None = None
        self.merges: list[Callable[[], None]] = []
        self.lost: set[int] = set()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the time of the block as step ``name``, without the time of steps inside the block."""
        outer = self._inside
        self._inside = 0.0
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inside
            self._inside = outer + took

    def timed(self, call: Callable[_Params, _Returned]) -> Callable[_Params, _Returned]:
        """Return a function that calls ``call`` and adds the time of the call to the step ``user``."""

        def timed_call(*args: _Params.args, **options: _Params.kwargs) -> _Returned:
            with self.step("user"):
                return call(*args, **options)

        return timed_call

    def run(self, slot: int, rows: pa.Table, keys: KeysOfStores, begin_put: _BeginPut) -> pa.Table:
        """Run the steps up to the sealed delta, and begin to put it; return the output rows."""
        order = self.order
        check_folder_has_log(order.home.root, order.sequence)
        with self.step("touch"):
            count, rows = _decoded(order, rows)
            rows, timed = without_late_rows(order, run_computation.cast_to_declared(order, rows))
            rows = normalise_zeros(run_computation.sort_by_declared_order(order, rows), order.key)
            touched = keys.find(order, slot, rows)
            self.facts.update(received=count_rows_by_key_group(touched), input_bytes=rows.nbytes)
            self.facts.update(combined_rows=_count_combined(order, touched))
        self.facts.update(timed)
        if order.read_by is not None:
            self.facts["partition_rows"] = count_by_partition(rows, order.read_by)
        computed = self._compute(slot, rows, touched)
        output = computed.output
        with self.step("seal"):
            sealed = seal(order, computed.changes, output, self.name, self.schema.due, self.keys, self.lost)
        if sealed.block:
            self.folder.write_sealed_file(order.version, self.name, sealed.block, is_block=True)
        elif sealed.data:
            self.folder.write_sealed_file(order.version, self.name, sealed.data)
        if order.durable or sealed.output is not None:
            with self.step("put"):
                self._put = begin_put(partial(sealed.put, self.objects))
        self.facts.update(
            rows=count,
            keys=len(touched.keys),
            output_rows=output.num_rows - computed.dead.rows,
            dead_rows=computed.dead.rows,
            dead_example=computed.dead.error_class,
            parts=sealed.parts,
            block=sealed.stored,
            output=sealed.output,
            sealed_bytes=len(sealed.data),
            timers_fired=computed.timers_fired,
            expired=computed.expired,
            rows_added=computed.state_rows.added,
            rows_updated=computed.state_rows.updated,
            rows_removed=computed.state_rows.removed,
            user_times=computed.busy,
            disk=disk.read_disk_use(self.folder.path),
            memory=memory_use(),
        )
        return output

    def await_put(self) -> None:
        """Wait until the changes are put. Raises the error of the put."""
        if self._put is not None:
            with self.step("put"):
                self._put.result()

    def tidy(self) -> None:
        """Merge stacks of many files, and remove and close unused files. The next batch retries failed work."""
        try:
            with self.folder.hold():
                for merge in self.merges:
                    merge()
                self.folder.remove_unused_deltas()
                close_removed_files(self.folder.path)
        except (RiffleError, OSError) as error:
            _logger.debug("cannot merge the stacks of %s: %s", self.order.store, error)

    def _compute(self, slot: int, rows: pa.Table, touched: TouchedKeys) -> SlotResult:
        """Run the computation on the slot's rows and on the due keys of the slot."""
        order = self.order
        key_groups = {key_group for key_group, _, _ in touched.spans}.union(run_computation.due_key_groups(order, slot))
        entries = {key_group: order.entries.get(key_group, EMPTY) for key_group in key_groups}
        if order.durable:
            self._check_placed(entries)
        else:
            keeper = StackKeeper(self.folder, self.schema, self.reader, order.epoch, self.full_entry)
            self.lost = keeper.prepare_caches(entries)
        return self.compute.run(order.store, order.schema, _SlotState(self, rows, touched, entries))

    def _check_placed(self, entries: dict[int, Entry]) -> None:
        """Raise ``Misplaced`` if a key-group has no copy on this member, but a standby on another one."""
        standbys = self.order.standbys
        on_standbys = {kg: entry for kg, entry in entries.items() if {*standbys.get(kg, ())} - {self.folder.member}}
        local = self.folder.key_groups(self.order.store) if on_standbys else set()
        missing = tuple(kg for kg, entry in on_standbys.items() if kg not in local and not self._is_buildable(entry))
        if missing:
            self.facts["missing"] = missing
            # Cause: Spark ran the slot on another executor than planned.
            raise Misplaced(
                f"{len(missing)} key-groups have no copy on this executor, but one on a standby. The first is "
                f"{missing[0]}.",
                remedy="Do nothing. The batch runs again.",
                where=f"member {self.folder.member}",
                id="RIFFLE-0483",
            )

    def _is_buildable(self, entry: Entry) -> bool:
        """Return whether the key-group is empty, or this member has all its deltas as local files."""
        if entry.head == EMPTY_HEAD:
            return True
        sealed = (self.folder.sealed_path(*link.source) for link in entry.chain)
        return entry.base == EMPTY_HEAD and all(file.exists() for file in sealed)

    def full_entry(self, key_group: int) -> Entry:
        """Read the complete entry of a key-group from the record of the order, which has only the newest links."""
        order = self.order
        return entry_at(order.home, order.sequence, (order.store, key_group), order.entries[key_group].head)

    def receipt(self, slot: int, executor: str) -> Receipt:
        """Return the receipt of the attempt, with the facts that are known so far."""
        totals = self.reader.totals
        return Receipt(
            store=self.order.store,
            slot=slot,
            attempt=self.name,
            version=self.order.version,
            member=self.folder.member,
            executor=executor,
            local_parts=totals.local_parts,
            fetched_parts=totals.fetched_parts,
            fetched_snapshots=totals.fetched_snapshots,
            fetched_bytes=totals.fetched_bytes,
            fetched_snapshot_bytes=totals.snapshot_bytes,
            requests=sent_since(
                self.requests_before, self.objects.requests if self.requests_after is None else self.requests_after
            ),
            seconds=self.seconds,
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            **self.facts,  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class _SlotState:
    """The input and the state of an attempt. Implements ``SlotState``."""

    attempt: _Attempt
    rows: pa.Table
    touched: TouchedKeys
    entries: dict[int, Entry]

    def over_tables(self, schema: PlainColumns, compute: BlockComputation) -> SlotResult:
        """Call a computation with the rows and the state of the touched keys, then with expired keys."""
        on_tables = partial(self._on_tables, schema, compute, self._stacks(schema))
        return run_with_letters(self.attempt.order, self.rows, self.touched, on_tables)

    def _on_tables(
        self,
        schema: PlainColumns,
        compute: BlockComputation,
        stacks: dict[int, OpenStack],
        rows: pa.Table,
        touched: TouchedKeys,
    ) -> SlotResult:
        """Read the state of the touched keys, call the computation, expire due keys, and add whole key-groups."""
        attempt = self.attempt
        order = attempt.order
        with attempt.step("read"):
            if order.whole:
                touched = with_stored_keys(schema, touched, stacks)
            state, has_state = read_state(schema, touched, stacks)
        with attempt.step("compute"):
            called = run_computation.run_on_blocks(order, attempt.timed(compute), rows, touched, state, has_state)
            changes = run_computation.to_state_changes(schema, touched, called)
            result = SlotResult(called.output, changes, busy=called.busy, state_rows=called.rows)
            if schema.due is not None:
                result = with_expired(order, schema, compute, stacks, self.entries, result, attempt.timed)
            if order.durable:
                result = result._replace(changes=with_whole_groups(schema, result.changes, stacks))
            return result

    def over_readings(self, schema: VariableColumns, processing: Callable[[Times, str], Processing]) -> SlotResult:
        """Run a processor on each key-group with rows or due elements."""
        stacks = self._stacks(schema)
        order = self.attempt.order

        def by_key(rows: pa.Table, touched: TouchedKeys) -> SlotResult:
            with self.attempt.step("compute"):
                return run_computation.run_by_key(
                    order, schema, processing, rows, touched, stacks, self.entries, self.attempt.timed
                )

        return run_with_letters(order, self.rows, self.touched, by_key)

    def over_elements(self, schema: VariableColumns, compute: ElementComputation) -> SlotResult:
        """Call a computation once with the elements of all touched keys and all due elements."""
        stacks = self._stacks(schema)
        with self.attempt.step("compute"):
            return run_computation.run_on_elements(
                self.attempt.order, schema, compute, self.rows, self.touched, stacks, self.entries, self.attempt.timed
            )

    def _stacks(self, schema: StoreSchema) -> dict[int, OpenStack]:
        """Advance the copies to the heads of the entries; return them open for reading, by key-group."""
        attempt = self.attempt
        order = attempt.order
        keeper = StackKeeper(
            attempt.folder, schema, attempt.reader, order.epoch, attempt.full_entry, newest=order.newest
        )
        with attempt.step("fold"):
            stacks, copy_counts = keeper.advance(self.entries)
            attempt.facts.update(copy_counts._asdict())
            attempt.merges.append(partial(keeper.merge, stacks))
        return stacks


def _decoded(order: Order, rows: pa.Table) -> tuple[int, pa.Table]:
    """Return the number of input rows, and the rows for the computation, decoded if they are combined."""
    if not order.is_combined:
        return rows.num_rows, rows
    rows = decode_rows(rows, order.combined, order.sums)
    return pc.sum(rows.column(ROWS)).as_py() or 0, rows


def _count_combined(order: Order, touched: TouchedKeys) -> int:
    """Return how many combined rows the slot got, or would get if rows were combined; 0 if that is not measured."""
    if order.is_combined:
        return len(touched.codes)
    if not order.input_partitions:
        return 0
    return int(np.minimum(np.bincount(touched.codes), order.input_partitions).sum())


def _answer_table(output: pa.Schema, rows: pa.Table, receipt: Receipt) -> pa.Table:
    """Return the output rows of an attempt with the columns of ``result_schema``, and the receipt in a last row."""
    schema, count = result_schema(output), rows.num_rows
    number = attempt_number(receipt.attempt)
    answer = pa.table(
        [pa.repeat(pa.scalar(number, pa.int64()), count), pa.nulls(count, pa.string()), *rows.columns], schema=schema
    )
    last = {ATTEMPT: [number], RECEIPT: [receipt.to_json()]}
    return pa.concat_tables([answer, pa.table({f.name: pa.array(last.get(f.name, [None]), f.type) for f in schema})])
