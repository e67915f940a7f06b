"""A store on one member that runs slots without a driver. The test decides whether a slot's result is committed."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.messages.slot_orders import ATTEMPT, RECEIPT, Order, Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import BlockComputation, Computation
from riffle_spark.protocol.operator import operator_of
from riffle_spark.protocol.receipts import changes_of
from riffle_spark.state.log.manifest import Entry, Link, Manifest
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.restore.reader import Reader
from riffle_spark.testing import home_of, routed
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.slot import run_slot
from tests.kit.state.faulty_store import FaultyStore

TOTAL = 16
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
STATE = pa.schema([("last", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("last", pa.int64())])


def rows_of(*triples: tuple[object, ...], schema: pa.Schema = ROWS) -> pa.Table:
    """Return input rows."""
    return pa.table(
        [pa.array([t[i] for t in triples], schema.field(i).type) for i in range(len(schema))], schema=schema
    )


def keep_last(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Keep the last value of each key in the order of the rows. A null value deletes the key."""
    last = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    written = {key: value for key, value in last.items() if value is not None}
    table = pa.table([list(written), list(written.values())], schema=OUTPUT)
    deleted = [key for key, value in last.items() if value is None]
    return table, table, pa.table([pa.array(deleted, pa.string())], schema=OUTPUT.remove(1))


def kept_last(state: pa.Schema = STATE) -> BlockComputation:
    """Return the computation of ``keep_last`` with this state schema."""
    return arrow_function(keep_last, state=state, output=OUTPUT)


class Member:
    """A store on one member. ``run`` runs a slot, and ``commit`` lists the parts that the slot sealed."""

    def __init__(
        self, folder: Path, compute: Computation, rows: pa.Schema = ROWS, key: tuple[str, ...] = ("k",),
        order_by: tuple[str, ...] = (), **changes: object,
    ) -> None:  # fmt: skip
        self.operator = operator_of("totals", key, compute, order_by, rows)
        self.store = FaultyStore(MemoryStore(), sleep=lambda _: None)
        self.home = home_of(f"memory://{uuid.uuid4().hex}", folder)
        use_store(self.home, self.store)
        self.entries: Mapping[int, Entry] = {}
        self.version = 0
        self.changes = changes
        self.later: Callable[[Callable[[], None]], object] = lambda work: work()
        self._ids = itertools.count()

    def order(self) -> Order:
        """Return the order for the next batch, with all key-groups in one slot."""
        order = Order(
            home=self.home, store="totals", key=tuple(self.operator.schema.key.names),
            schema=self.operator.schema.to_text(), output=self.operator.declared.output, rows=self.operator.rows,
            per_key_group=self.operator.declared.per_key_group, order_by=self.operator.order_by, total=TOTAL, epoch=1,
            version=self.version, time_ms=1000 + self.version, watermark_ms=None, slots={0: tuple(range(TOTAL))},
            entries=self.entries, sequence=0,
        )  # fmt: skip
        return replace(order, **self.changes)  # type: ignore[arg-type]

    def run(self, order: Order, rows: pa.Table, executor: str = "1") -> pa.Table:
        """Run the only slot of an order after a round trip of the order through JSON."""
        order, compute = Order.from_json(order.to_json(), 0), self.operator.compute
        return run_slot(
            order, compute, 0, executor, rows, lambda size: next(self._ids).to_bytes(size, "big"), self.later
        )

    def answer(self, rows: pa.Table, executor: str = "1") -> tuple[pa.Table, Receipt]:
        """Run the slot of the next batch, and return its output rows and its receipt."""
        order = self.order()
        table = self.run(order, routed(order, rows)[0], executor)
        receipts = table.column(RECEIPT).drop_null().to_pylist()
        assert len(receipts) == 1
        output = table.filter(table.column(RECEIPT).is_null()).drop_columns([ATTEMPT, RECEIPT])
        return output, Receipt.from_json(receipts[0])

    def commit(self, receipt: Receipt) -> None:
        """List the parts that an attempt sealed, and continue with the next batch."""
        assert receipt.error is None
        manifest = Manifest({("totals", kg): entry for kg, entry in self.entries.items()})
        changed = {kg: entry for (_, kg), entry in changes_of(manifest, [receipt]).items()}
        self.entries = {**self.entries, **changed}
        self.version += 1

    def feed(self, rows: pa.Table, executor: str = "1") -> list[dict[str, object]]:
        """Run and commit a batch, and return its output rows."""
        output, receipt = self.answer(rows, executor)
        self.commit(receipt)
        return output.to_pylist()

    def refused(self, rows: pa.Table) -> tuple[str, str, str, str, str]:
        """Run a batch that must fail without sealing or returning anything. Return its error."""
        before = self.store.inner.list("")
        output, receipt = self.answer(rows)
        assert receipt.error is not None
        assert output.num_rows == 0
        assert receipt.parts == ()
        assert self.store.inner.list("") == before
        return receipt.error

    def changes_sealed(self, receipt: Receipt) -> list[dict[str, object]]:
        """Return the rows of all parts that an attempt sealed."""
        links = {receipt.link(part): part.key_group for part in receipt.parts}
        reader = Reader(self.store)
        tables: dict[Link, pa.Table] = {}
        for run in reader.group_into_runs(links):
            fetched = reader.fetch_run(run)
            assert not any(isinstance(data, CorruptStateError) for data in fetched.values())
            tables |= reader.open_links(receipt.store, cast("dict[Link, memoryview]", fetched), links)
        return [row for link in links for row in tables[link].to_pylist()]
