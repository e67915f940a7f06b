"""A simulated micro-batch: routed rows, attempts of slots, and a sink."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import (
    ATTEMPT,
    HASH,
    INITIAL,
    KEY_GROUP,
    RECEIPT,
    SLOT,
    Order,
    Receipt,
    attempt_number,
)
from riffle_spark.process.blocks.block import Computation
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Delivery, Executor, SlotLayout, StaleRows
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.state.formats.arrow_casts import cast_column, cast_table
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.restore.reader import Reader
from riffle_spark.testing.simulation import RandomBytes, SimCluster
from riffle_spark.worker.input import newest_ms
from riffle_spark.worker.member_folders import keys_of
from riffle_spark.worker.slot import run_slot

Sink = Callable[[pa.Table, Delivery], object]
Step = Literal["before run", "after seal", "after sink", "after record"]
"""A point in a batch at which the driver may crash.

- ``before run``: nothing has happened.
- ``after seal``: all slots have sealed their changes.
- ``after sink``: the sink has the rows, and nothing is committed.
- ``after record``: the batch is committed, and Spark has not recorded it.
"""


@dataclass(frozen=True)
class Attempt:
    """An execution of a slot: its order, input rows and executor. ``run`` may be called at any later time."""

    order: Order
    computation: Computation
    slot: int
    executor: str
    rows: pa.Table
    random_bytes: RandomBytes

    def run(self) -> pa.Table:
        """Run the slot; return its output rows and its receipt as one table."""
        return run_slot(self.order, self.computation, self.slot, self.executor, self.rows, self.random_bytes)


class SimSink:
    """An idempotent sink: a repeated delivery replaces the rows of the same delivery id.

    Attributes:
        by_id: the rows by delivery id.
        calls: all deliveries, including repeated ones.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, pa.Table] = {}
        self.calls: list[Delivery] = []

    def __call__(self, rows: pa.Table, delivery: Delivery) -> None:
        """Store the rows of a delivery."""
        self.calls.append(delivery)
        self.by_id[delivery.id] = rows


def prepared(rows: pa.Table, operator: Operator) -> pa.Table:
    """Return the rows with the operator's columns, as a query's frame has them."""
    table = rows.rename_columns(list(operator.shown)) if operator.shown else rows
    for column in operator.fields:
        values = table.column(column.path[0])
        for part in column.path[1:]:
            values = pc.struct_field(values, part)
        table = table.append_column(column.name, values)
    return table


def routed(
    order: Order, rows: pa.Table, shards: Shards | None = None, initial: pa.Table | None = None
) -> dict[int, pa.Table]:
    """Return each slot's rows with the routing columns, as Spark's shuffle returns them.

    Rows are routed by their keys, or with ``shards`` by their columns ``topic`` and ``partition``. Rows of ``initial``
    state follow the others if the order has initial state.
    """
    input_rows = rows.select(order.rows.names)
    if order.initial is not None and initial is not None:
        input_rows = _with_initial(order, input_rows, initial)
    hashes = keygroups.key_hashes([input_rows.column(name) for name in order.key]).view(np.int64)
    if shards is None:
        groups = keygroups.key_groups([input_rows.column(name) for name in order.routing], order.total)
    else:
        groups = shards.of(rows.column("topic"), rows.column("partition"))
        assert groups.min(initial=0) >= 0, "a row has a partition that is not registered"
    slot_of = np.zeros(order.total, dtype=np.int32)
    for slot, owned in order.slots.items():
        slot_of[list(owned)] = slot
    numbers = pa.array(slot_of[groups], pa.int32())
    routing = [numbers, pa.array(groups, pa.int32()), pa.array(hashes)]
    table = pa.table([*routing, *input_rows.columns], [SLOT, KEY_GROUP, HASH, *input_rows.column_names])
    return {slot: table.filter(pc.equal(numbers, slot)) for slot in order.slots}


def _with_initial(order: Order, rows: pa.Table, initial: pa.Table) -> pa.Table:
    """Return the rows with the rows of an initial state, as a slot receives them."""
    state_type = pa.struct(list(initial.schema))
    states = cast_column(initial.to_struct_array().combine_chunks(), state_type)
    columns = [
        initial.column(field.name) if field.name in order.key else pa.nulls(initial.num_rows, field.type)
        for field in order.rows
    ]
    initial_rows = pa.table([*columns, states], names=[*order.rows.names, INITIAL])
    return pa.concat_tables(
        [
            rows.append_column(INITIAL, pa.nulls(rows.num_rows, state_type)),
            cast_table(initial_rows, pa.schema([*rows.schema, pa.field(INITIAL, state_type)])),
        ]
    )


class SimWork:
    """The rows of a micro-batch on a ``SimCluster``. Implements ``protocol.ports.Work``.

    Parameters:
        cluster: the executors.
        rows: the input, with the columns that ``operators`` need.
        operators: the operators of the query.
        sinks: the sink of each store.
        perform: runs an attempt and returns the result that counts. A test may run it twice, later or not at all.
        lose_block: a store. Its result is computed again before the sink reads it.
        initial: initial state by store.

    ``drained`` counts the calls of ``drain``, ``partition_reads`` the calls of ``partitions``.
    """

    def __init__(
        self,
        cluster: SimCluster,
        rows: pa.Table,
        operators: Sequence[Operator],
        sinks: Mapping[str, Sink],
        perform: Callable[[Attempt], pa.Table] = Attempt.run,
        lose_block: str | None = None,
        initial: Mapping[str, pa.Table] = MappingProxyType({}),
    ) -> None:
        """Prepare a micro-batch. Nothing runs yet."""
        self._cluster = cluster
        self._rows = rows
        self._computations = {operator.store: operator.compute for operator in operators}
        self._sinks = sinks
        self._perform = perform
        self._lose_block = lose_block
        self._initial = initial
        self._routed: dict[str, int] = {}
        self._attempts: dict[str, list[Attempt]] = {}
        self._answers: dict[str, list[pa.Table]] = {}
        self.drained = 0
        self.partition_reads = 0

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id."""
        return self._cluster.executors()

    def is_placed(self) -> bool:
        """Return true: slots are placed by name."""
        return True

    def partitions(self, most: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) of the rows, or ``most`` of them."""
        self.partition_reads += 1
        columns = self._rows.group_by(["topic", "partition"]).aggregate([]).to_pydict()
        return list(zip(columns["topic"], columns["partition"], strict=True))[:most]

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that has any."""
        newest = {name: newest_ms(self._rows.column(name)) for name in columns}
        return {name: ms for name, ms in newest.items() if ms is not None}

    def run(self, layout: SlotLayout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, keep the result once, and return all receipts."""
        attempts: dict[str, list[Attempt]] = {}
        for order in orders:
            text = order.to_json()
            computation = self._computations[order.store]
            rows_by_slot = routed(order, self._rows, layout.shards, self._initial.get(order.store))
            executor_of = {place.number: place.executor for place in layout.of(order.store).slots}
            self._routed[order.store] = sum(rows.num_rows for rows in rows_by_slot.values())
            attempts[order.store] = [
                Attempt(
                    Order.from_json(text, slot), computation, slot, executor_of[slot], rows, self._cluster.random_bytes
                )
                for slot, rows in sorted(rows_by_slot.items())
            ]
        self._attempts = attempts
        receipts: list[Receipt] = []
        answers = iter(self.answers([attempt for of_store in attempts.values() for attempt in of_store]))
        for store, of_store in attempts.items():
            self._answers[store] = [next(answers) for _ in of_store]
            texts = pa.concat_tables(self._answers[store]).column(RECEIPT).drop_null().to_pylist()
            receipts += [self._cluster.with_usage(Receipt.from_json(text)) for text in texts]
        return receipts

    def answers(self, attempts: Sequence[Attempt]) -> list[pa.Table]:
        """Run the attempts of all stores, and return the results that count."""
        return [self._perform(attempt) for attempt in attempts]

    def plan_fallbacks(self) -> int:
        """Return 0: there are no plans."""
        return 0

    def count_routed_rows(self) -> Mapping[str, int | None]:
        """Return how many rows were routed, per store."""
        return dict(self._routed)

    def recount(self, store: str) -> int:
        """Return how many rows were routed to a store."""
        return self._routed[store]

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery, check: Callable[[], None]) -> None:
        """Pass each operator's rows to its sink after the check. Raises ``StaleRows`` for a row of another attempt."""
        check()
        if self._lose_block in self._attempts:
            store = self._lose_block
            self._lose_block = None
            self._answers[store][0] = self._perform(self._attempts[store][0])
        for store, answers in self._answers.items():
            rows = pa.concat_tables(answers)
            attempts = [attempt_number(receipt.attempt) for receipt in receipts if receipt.store == store]
            if pc.any(pc.invert(pc.is_in(rows.column(ATTEMPT), pa.array(attempts, pa.int64())))).as_py():
                raise StaleRows(store)
            output = rows.filter(rows.column(RECEIPT).is_null()).drop_columns([ATTEMPT, RECEIPT])
            self._sinks[store](output, delivery)

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Pass the output rows that were sealed with a committed batch to the sinks."""
        reader = Reader(self._cluster.store, keys_of(self._cluster.home))
        for store, sink in self._sinks.items():
            tables = reader.read_outputs(store, (link for owner, link in outputs if owner == store))
            if tables:
                sink(pa.concat_tables(tables.values()), delivery)

    def drain(self) -> None:
        """Count the call."""
        self.drained += 1

    def release(self) -> None:
        """Drop the kept result."""
        self._attempts.clear()
        self._answers.clear()


class Aborted(Exception):
    """The source failed in the middle of a batch, as requested by ``Harness.abort``."""


class Crashed(BaseException):
    """The driver's process crashed, as requested by ``Harness.crash_at``. ``except Exception`` does not catch it."""


class Faults:
    """The next abort and the next crash. ``lose_copies`` means that the crash also removes all local copies."""

    def __init__(self) -> None:
        self._slots: int | None = None
        self._step: Step | None = None
        self.lose_copies = False

    def abort(self, after_slots: int) -> None:
        """Abort a batch after this many slots."""
        self._slots = after_slots

    def crash(self, step: Step, *, lose_copies: bool) -> None:
        """Crash the driver at a step. Raises ``ConfigError`` for an unknown step."""
        steps = get_args(Step)
        if step not in steps:
            raise ConfigError(f"Unknown step {step!r}.", remedy=f"Use one of {', '.join(steps)}.", id="RIFFLE-0479")
        self._step = step
        self.lose_copies = lose_copies

    def reached(self, step: str) -> None:
        """Raise ``Crashed`` if the crash is due at this step."""
        if step == self._step:
            self._step = None
            raise Crashed(step)

    def perform(self, attempt: Attempt) -> pa.Table:
        """Run a slot."""
        answer = attempt.run()
        if self._slots is not None:
            self._slots -= 1
            if not self._slots:
                self._slots = None
                raise Aborted
        return answer
