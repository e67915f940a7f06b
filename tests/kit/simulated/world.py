"""A simulated query: batches, a sink, executors and restarts of the driver. An oracle computes the expected state."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.variable_kinds import DUE, VARIABLE
from riffle_spark.testing import Attempt, InlineBackground, ManualClock, SimCluster, SimSink, SimWork, home_of
from riffle_spark.worker.member_folders import home_with_keys, keys_of
from riffle_spark.worker.requested_edits import edit_by_request
from tests.kit.state.faulty_store import FaultyStore

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
SETTINGS = {"key_groups": 8, "retained_versions": 2, "retained_for": 0, "snapshot_chain_links": 3}


States = dict[int, dict[object, tuple[object, ...]]]
"""The state of a store by key, after each batch."""


class Crash(BaseException):
    """The process of the driver has died."""


def rows_of(*triples: tuple[str | None, int | None, int]) -> pa.Table:
    """Return input rows of (key, value, order)."""
    return pa.table([pa.array([t[i] for t in triples], ROWS.field(i).type) for i in range(3)], schema=ROWS)


def one_row(value: int, key: str = "a") -> pa.Table:
    """Return a batch with one row."""
    return rows_of((key, value, value))


def totals(store: str = "totals") -> Operator:
    """Return an aggregate with the count and the sum per key."""
    return operator_of(store, ["k"], aggregate(count=count(), total=sum_("v")), (), ROWS)


def last_three(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Keep the last three values of each key in their order. A negative value deletes the key."""
    last_rows: dict[str, list[int]] = dict(zip(state["k"].to_pylist(), state["last"].to_pylist(), strict=True))
    deleted: set[str] = set()
    for key, value in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
        if value < 0:
            last_rows.pop(key, None)
            deleted.add(key)
        else:
            deleted.discard(key)
            last_rows[key] = [*last_rows.get(key, []), value][-3:]
    schema = pa.schema([("k", pa.string()), ("last", pa.list_(pa.int64()))])
    new = pa.table([list(last_rows), list(last_rows.values())], schema=schema)
    return new, new, pa.table([sorted(deleted)], schema=pa.schema([("k", pa.string())]))


def tails() -> Operator:
    """Return an operator that keeps the last three values per key."""
    schema = pa.schema([("last", pa.list_(pa.int64()))])
    output = pa.schema([("k", pa.string()), *schema])
    return operator_of("tails", ["k"], arrow_function(last_three, state=schema, output=output), ("at",), ROWS)


def two_stores() -> list[Operator]:
    """Return the operators of a query with two stores: an aggregate and a function that deletes keys."""
    return [totals(), tails()]


def drawn_batch(chance: random.Random, version: int, most_keys: int = 12) -> pa.Table:
    """Draw a batch, sometimes an empty one. Some values delete a key, and order columns are unordered.

    If there are more keys than a batch has rows, the first batch has every key.
    """
    keys = [f"key-{chance.randrange(most_keys)}" for _ in range(chance.choice([0, 1, 6, 15]))]
    if most_keys > 15 and not version:
        keys = [f"key-{n}" for n in range(most_keys)]
    triples = [(k, chance.choice([-1, *range(9)]), version * 1000 + i) for i, k in enumerate(keys)]
    chance.shuffle(triples)
    return rows_of(*triples)


def held_by_key(table: pa.Table) -> dict[object, tuple[object, ...]]:
    """Return a whole state by the first column of the key, as the tuple of a key's values.

    For a store with variables, the tuple has the sorted elements of the key as (variable, due time, value).
    """
    if VARIABLE not in table.column_names:
        rows = list(zip(*table.to_pydict().values(), strict=True))
        state = {key: tuple(values) for key, *values in rows}
        assert len(state) == len(rows), "a key has several rows"
        return state
    elements: dict[object, list[object]] = {}
    for row in table.to_pylist():
        name = row[VARIABLE]
        value = row.get(f"__state_{name}")
        elements.setdefault(row[table.column_names[0]], []).append((name, row[DUE], value))
    return {key: tuple(sorted(of_key, key=repr)) for key, of_key in elements.items()}


class Oracle:
    """Computes the expected state after each batch in plain Python."""

    def __init__(self) -> None:
        self.totals: dict[str, tuple[int, int]] = {}
        self.tails: dict[str, list[int]] = {}

    def feed(self, rows: pa.Table) -> None:
        """Process a batch."""
        for row in sorted(rows.to_pylist(), key=lambda row: row["at"]):
            key = row["k"]
            value = row["v"]
            seen_count, total = self.totals.get(key, (0, 0))
            self.totals[key] = (seen_count + 1, total + value)
            if value < 0:
                self.tails.pop(key, None)
            else:
                self.tails[key] = [*self.tails.get(key, []), value][-3:]


class World:
    """One query over simulated executors. Its only store is ``totals``, unless ``operators`` are set.

    Each further store makes every batch slower. ``crash_at`` names a step at which the driver's process dies once.
    """

    def __init__(
        self,
        local_dir: Path,
        *,
        executors: Sequence[str] = ("1", "2"),
        operators: Sequence[Operator] = (),
        seed: int = 0,
        root: str = "",
        **settings: object,
    ) -> None:
        self.chance = random.Random(seed)
        self.local_dir = local_dir
        self.settings = Settings(**{**SETTINGS, **settings})  # type: ignore[arg-type]
        self.home = home_with_keys(home_of(root or f"memory://{uuid.uuid4().hex}", local_dir), self.settings)
        self.memory = open_store(self.home.root)
        self.store = FaultyStore(self.memory, sleep=lambda _: None)
        self.upkeep_store: ObjectStore | None = None
        self.cluster = SimCluster(self.home, self.store, self.chance.randbytes)
        for name in executors:
            self.cluster.add(name)
        self.operators = list(operators) or [totals()]
        self.clock = self.cluster.clock = ManualClock()
        self.sinks = {operator.store: SimSink() for operator in self.operators}
        self.query_id = "query"
        self.steps: list[str] = []
        self.crash_at: str | None = None
        self.at_step: Mapping[str, Callable[[], object]] = {}
        self.runs = 0
        self.background = InlineBackground()
        self.start()

    def start(self, background: InlineBackground | None = None) -> Driver:
        """Start a driver, as after a restart of the process or of the query."""
        self.runs += 1
        self.run_id = f"run-{self.runs}"
        self.background = background or InlineBackground()
        ports = DriverPorts(
            self.store,
            self.cluster,
            self.clock,
            self.background,
            new_id=lambda: self.chance.randbytes(16).hex(),
            reached=self._reached,
            upkeep_objects=self.upkeep_store,
            edit_state=edit_by_request,
        )
        self.driver = Driver(self.settings, self.home, ports)
        return self.driver

    def _reached(self, step: str) -> None:
        self.steps.append(step)
        if step in self.at_step:
            self.at_step[step]()
        if step == self.crash_at:
            self.crash_at = None
            raise Crash(step)

    def incoming(self, version: int, **changes: object) -> IncomingBatch:
        """Return a batch as Spark announces it."""
        fields = {
            "version": version,
            "query_id": self.query_id,
            "run_id": self.run_id,
            "offsets": f"offsets-{version}",
            "input_digest": None,
            "time_ms": 1_000 * version,
            "watermark_ms": None,
            **changes,
        }
        return IncomingBatch(**fields)  # type: ignore[arg-type]

    def work_but_deletes(self) -> list[Callable[[], object]]:
        """Run the waiting background work, except the checks of the log, scans and deletes. Return these."""
        deletes = []
        while self.background._waiting:  # private: only some of the waiting work runs
            work = self.background._waiting.pop(0)  # private: the queue of submitted work
            if "ClaimWork" in work.__qualname__:
                deletes.append(work)
            else:
                work()
        return deletes

    def batch(
        self,
        version: int,
        rows: pa.Table,
        perform: Callable[[Attempt], pa.Table] = Attempt.run,
        lose_block: str | None = None,
        **changes: object,
    ) -> BatchReport:
        """Let the driver process one batch, and return its report."""
        self.work = SimWork(self.cluster, rows, self.operators, self.sinks, perform, lose_block)
        self.clock.advance(1)
        return self.driver.process(self.incoming(version, **changes), self.operators, self.work)

    def rest(self, looks: int = 1, seconds: float = 1) -> list[bool]:
        """Let time pass without a batch: ``looks`` times ``seconds``. Return for each look whether the driver had work
        to do.
        """
        acted = []
        for _ in range(looks):
            self.clock.advance(seconds)
            acted.append(self.driver.between_batches(self.cluster.executors()))
        return acted

    def log(self) -> Log:
        """Return the log, read without faults."""
        log = Log(self.memory, self.home.root)
        log.open()
        return log

    def state(self, store: str) -> dict[object, tuple[object, ...]]:
        """Return a store's state by key, restored from the objects alone into a separate folder."""
        schema = next(operator.schema for operator in self.operators if operator.store == store)
        manifest = self.log().manifest
        entries = {kg: entry for (name, kg), entry in manifest.entries.items() if name == store}
        folder = self.local_dir / f"read-{uuid.uuid4().hex}"
        state: dict[object, tuple[object, ...]] = {}
        for table in restore_tables(schema, entries, Reader(self.memory, keys_of(self.home)), folder).values():
            rows_by_key = held_by_key(table)
            assert not rows_by_key.keys() & state.keys()
            state |= rows_by_key
        return state

    def delivered(self, store: str) -> list[dict[str, object]]:
        """Return all rows that a store's sink received, sorted."""
        rows = [
            {"delivery": delivery, **row}
            for delivery, table in self.sinks[store].by_id.items()
            for row in table.to_pylist()
        ]
        return sorted(rows, key=repr)


def feed_six_keys(world: World, first: int, last: int, states: States | None = None) -> None:
    """Run batches of six keys. ``states`` gets the expected totals after each batch."""
    for version in range(first, last + 1):
        world.batch(version, rows_of(*((f"k{n}", version, version * 100 + n) for n in range(6))))
        if states is not None:
            before = states[version - 1] if version else {}
            states[version] = {key: _added(before.get(key, (0, 0)), version) for key in (f"k{n}" for n in range(6))}


def _added(totals_before: tuple[object, ...], value: int) -> tuple[object, ...]:
    """Return the count and the total of a key after one more row."""
    seen_count, total = totals_before
    assert isinstance(seen_count, int)
    assert isinstance(total, int)
    return seen_count + 1, total + value
