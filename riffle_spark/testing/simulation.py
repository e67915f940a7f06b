"""A query without Spark, in one process: executors, batches, clock. Knows the protocol's ports. Does not know chance.

Slots and driver are the project's own, on real local copies. Simulated are only Spark's parts: which rows are routed
where, which attempt runs when, and whose answer counts.

    cluster = SimCluster(home_of("memory://mine", folder), store)
    cluster.add("1")
    driver = Driver(settings, cluster.home, Surroundings(store, cluster, ManualClock(), InlineBackground()))
    driver.process(incoming, [operator], SimWork(cluster, rows, {"totals": SimSink()}))
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark import keygroups
from riffle_spark.protocol.ports import Delivery, Executor, Layout, StaleRows
from riffle_spark.protocol.shards import Partition, Shards
from riffle_spark.state.manifest import Link
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.options import StoreOptions
from riffle_spark.state.parts import Reader
from riffle_spark.worker.census import Census, CensusOrder, take_census
from riffle_spark.worker.homes import use_store
from riffle_spark.worker.late import newest_ms
from riffle_spark.worker.order import ATTEMPT, INITIAL, KEY_GROUP, RECEIPT, SLOT, Home, Order, Receipt
from riffle_spark.worker.slot import run_slot
from riffle_spark.worker.upkeep import UpkeepOrder, UpkeepReceipt, run_upkeep

__all__ = ["Attempt", "InlineBackground", "ManualClock", "SimCluster", "SimSink", "SimWork", "home_of", "routed"]

RandomBytes = Callable[[int], bytes]
Sink = Callable[[pa.Table, Delivery], object]
_STANDING_STILL = float
"""The clock of a piece of upkeep: always zero, so that how far it comes never depends on how fast the machine is."""


class ManualClock:
    """A clock that goes on only when it is told to. Implements ``protocol.ports.Clock``."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self._ms = ms

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ms += int(seconds * 1000)

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._ms

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back."""
        return self._ms / 1000


class InlineBackground:
    """Implements ``protocol.ports.Background`` on the caller's thread: at once or, if ``deferred``, at ``run``."""

    def __init__(self, *, deferred: bool = False) -> None:
        self._deferred = deferred
        self._waiting: list[Callable[[], object]] = []
        self._results: list[object] = []

    def submit(self, work: Callable[[], object]) -> None:
        """Take one piece of work."""
        self._waiting.append(work)
        if not self._deferred:
            self.run()

    def run(self) -> None:
        """Do all work that waits."""
        while self._waiting:
            work = self._waiting.pop(0)
            try:
                self._results.append(work())
            except Exception as error:  # noqa: BLE001 - as on a real background: the driver looks at it
                self._results.append(error)

    def collect(self) -> Sequence[object]:
        """Return the results since the last call; failures as exceptions."""
        found, self._results = self._results, []
        return found

    def busy(self) -> bool:
        """Tell whether submitted work has not finished yet."""
        return bool(self._waiting)

    def rest(self, seconds: float) -> None:
        """Go on at once: nobody waits in a simulation."""


def home_of(root: str, local_dir: Path, application: str = "app") -> Home:
    """Return where a simulated query keeps its state."""
    return Home(root, StoreOptions(), str(local_dir), application, frozenset())


class SimCluster:
    """Executors that live in this process, each with a folder of its own. Implements ``protocol.ports.Cluster``.

    ``store`` is what their slots read and write, ``random_bytes`` names their attempts. Executors in ``stalled`` do no
    upkeep, those in ``silent`` answer no census.
    """

    def __init__(self, home: Home, store: ObjectStore, random_bytes: RandomBytes = os.urandom) -> None:
        self.store = use_store(home, store)
        self.home = home
        self.random_bytes = random_bytes
        self._live: dict[str, Executor] = {}
        self._dismissed: set[str] = set()
        self.stalled: set[str] = set()
        self.silent: set[str] = set()

    def add(self, name: str, cores: int = 1) -> None:
        """Start an executor; it takes a folder that a lost one left behind, if there is one."""
        self._live[name] = Executor(name, f"host-{name}", cores)

    def lose(self, name: str, *, disk: bool = False, planned: bool = False) -> None:
        """Lose an executor; with ``disk``, its folder too. ``planned``: somebody took it away on purpose."""
        del self._live[name]
        if planned:
            self._dismissed.add(name)
        if disk:
            owners, gone = Path(self.home.local_dir or "").glob("*/*/owner"), f"{self.home.application}/{name}"
            for owner in [path for path in owners if path.read_text() == gone]:
                shutil.rmtree(owner.parent)

    def executors(self) -> tuple[Executor, ...]:
        """Return the live executors, sorted by id."""
        return tuple(sorted(self._live.values()))

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask each of these executors that lives what it finds."""
        asked = [executor.id for executor in executors if executor.id in self._live.keys() - self.silent]
        return [take_census(order, executor) for executor in asked]

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's piece of upkeep."""
        told = sorted(orders.keys() & self._live.keys() - self.stalled)
        return [run_upkeep(orders[executor], executor, self.random_bytes, _STANDING_STILL) for executor in told]

    def planned(self, executors: Sequence[str]) -> frozenset[str]:
        """Return those of the executors that were taken away on purpose."""
        return frozenset(executors) & self._dismissed


@dataclass(frozen=True)
class Attempt:
    """One execution of one slot: where, and with what order and rows. ``run`` may be called at any later time."""

    order: Order
    slot: int
    executor: str
    rows: pa.Table
    random_bytes: RandomBytes

    def run(self) -> pa.Table:
        """Run the slot; return its answer."""
        return run_slot(self.order, self.slot, self.executor, self.rows, self.random_bytes)


class SimSink:
    """A sink that remembers each delivery's rows by its id; the same id again replaces them: it is idempotent."""

    def __init__(self) -> None:
        self.by_id: dict[str, pa.Table] = {}
        self.calls: list[Delivery] = []

    def __call__(self, rows: pa.Table, delivery: Delivery) -> None:
        """Take a delivery."""
        self.calls.append(delivery)
        self.by_id[delivery.id] = rows


def routed(
    order: Order, rows: pa.Table, shards: Shards | None = None, initial: pa.Table | None = None
) -> dict[int, pa.Table]:
    """Return each slot's rows with the routing columns, as Spark's shuffle would bring them.

    With ``shards`` the rows' columns ``topic`` and ``partition`` say where they go, else their keys. Where the order
    wants them, rows of ``initial`` state come after the others.
    """
    needed = rows.select(order.rows.names)
    if order.initial is not None and initial is not None:
        needed = _with_initial(order, needed, initial)
    if shards is None:
        groups = keygroups.key_groups([needed.column(name) for name in order.schema.key.names], order.total)
    else:
        groups = shards.of(rows.column("topic"), rows.column("partition"))
        assert groups.min(initial=0) >= 0, "a row of a partition that is not registered"
    slot_of = np.zeros(order.total, dtype=np.int32)
    for slot, owned in order.slots.items():
        slot_of[list(owned)] = slot
    numbers = pa.array(slot_of[groups], pa.int32())
    table = pa.table([numbers, pa.array(groups, pa.int32()), *needed.columns], [SLOT, KEY_GROUP, *needed.column_names])
    return {slot: table.filter(pc.equal(numbers, slot)) for slot in order.slots}


def _with_initial(order: Order, rows: pa.Table, initial: pa.Table) -> pa.Table:
    kind, keys = pa.struct(list(initial.schema)), set(order.schema.key.names)
    states = initial.to_struct_array().combine_chunks().cast(kind)
    columns = [
        initial.column(field.name) if field.name in keys else pa.nulls(initial.num_rows, field.type)
        for field in order.rows
    ]
    given = pa.table([*columns, states], names=[*order.rows.names, INITIAL])
    return pa.concat_tables(
        [
            rows.append_column(INITIAL, pa.nulls(rows.num_rows, kind)),
            given.cast(pa.schema([*rows.schema, pa.field(INITIAL, kind)])),
        ]
    )


class SimWork:
    """One micro-batch's rows on a ``SimCluster``. Implements ``protocol.ports.Work``.

    ``perform(attempt)`` executes a slot and returns the answer that counts: a test may run it twice, elsewhere, later
    or not at all. ``lose_block`` names a store whose kept result is computed again before the sink reads it. ``asked``
    counts how often the rows were asked for their partitions. ``initial`` is initial state by store.
    """

    def __init__(
        self, cluster: SimCluster, rows: pa.Table, sinks: Mapping[str, Sink],
        perform: Callable[[Attempt], pa.Table] = Attempt.run, lose_block: str | None = None,
        initial: Mapping[str, pa.Table] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._rows = rows
        self._sinks = sinks
        self._perform = perform
        self._lose_block = lose_block
        self._initial = initial
        self._routed: dict[str, int] = {}
        self._attempts: dict[str, list[Attempt]] = {}
        self._answers: dict[str, list[pa.Table]] = {}
        self.drained = 0
        self.asked = 0

    def executors(self) -> Sequence[Executor]:
        """Return the live executors, sorted by id."""
        return self._cluster.executors()

    def placed(self) -> bool:
        """Tell that slots are placed by name."""
        return True

    def partitions(self, most: int) -> Sequence[Partition]:
        """Return the distinct (topic, partition) of the rows, or ``most`` of them."""
        self.asked += 1
        found = self._rows.group_by(["topic", "partition"]).aggregate([]).to_pydict()
        return list(zip(found["topic"], found["partition"], strict=True))[:most]

    def newest_event_times(self, columns: Sequence[str]) -> Mapping[str, int]:
        """Return the newest event time (ms) of each timestamp column that has any."""
        found = {name: newest_ms(self._rows.column(name)) for name in columns}
        return {name: ms for name, ms in found.items() if ms is not None}

    def run(self, layout: Layout, orders: Sequence[Order]) -> Sequence[Receipt]:
        """Run every slot of every order, keep the result once, and return all receipts."""
        executor_of = {place.number: place.executor for place in layout.slots}
        receipts: list[Receipt] = []
        for order in orders:
            given = routed(order, self._rows, layout.shards, self._initial.get(order.schema.store))
            parts, names = sorted(given.items()), self._cluster.random_bytes
            self._routed[order.schema.store] = sum(part.num_rows for part in given.values())
            attempts = [Attempt(order, slot, executor_of[slot], part, names) for slot, part in parts]
            answers = [self._perform(attempt) for attempt in attempts]
            self._attempts[order.schema.store], self._answers[order.schema.store] = attempts, answers
            told = pa.concat_tables(answers).column(RECEIPT).drop_null().to_pylist()
            receipts += [Receipt.from_json(text) for text in told]
        return receipts

    def routed(self) -> Mapping[str, int | None]:
        """Return how many rows were routed, per store."""
        return dict(self._routed)

    def recount(self, store: str) -> int:
        """Return how many rows were routed to a store."""
        return self._routed[store]

    def deliver(self, receipts: Sequence[Receipt], delivery: Delivery) -> None:
        """Give each operator's rows to its sink. Raises ``StaleRows`` on a row of any attempt but the receipts'."""
        if self._lose_block in self._attempts:
            store, self._lose_block = self._lose_block, None
            self._answers[store][0] = self._perform(self._attempts[store][0])
        for store, answers in self._answers.items():
            rows = pa.concat_tables(answers)
            ours = pa.array([receipt.attempt for receipt in receipts if receipt.store == store], pa.string())
            if pc.any(pc.invert(pc.is_in(rows.column(ATTEMPT), ours))).as_py():
                raise StaleRows(store)
            output = rows.filter(rows.column(RECEIPT).is_null()).drop_columns([ATTEMPT, RECEIPT])
            self._sinks[store](output, delivery)

    def deliver_sealed(self, outputs: Sequence[tuple[str, Link]], delivery: Delivery) -> None:
        """Give the sinks the output rows that were sealed with a committed batch."""
        reader = Reader(self._cluster.store, None)
        for store, sink in self._sinks.items():
            tables = reader.links(link for owner, link in outputs if owner == store)
            if tables:
                sink(pa.concat_tables(tables.values()), delivery)

    def drain(self) -> None:
        """Read the input to its end, for a batch that is skipped."""
        self.drained += 1

    def release(self) -> None:
        """Drop the kept result."""
        self._attempts.clear()
        self._answers.clear()
