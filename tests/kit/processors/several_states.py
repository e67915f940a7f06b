"""Cases of processors with variables of every kind, and with initial state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]


class Several(Logic):
    """Keeps a value, a list and a map per key. Rows write all of them, and clear one or all."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value, the list and the map."""
        self._sum = handle.getValueState("sum", "sum long")
        self._amounts = handle.getListState("amounts", "amount long")
        self._by_kind = handle.getMapState("by_kind", "kind string", "sum long")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Write or clear the variables as each row says, and yield their contents."""
        for row in rows:
            self._do(row)
        total = self._sum.get()
        yield {
            "id": key[0],
            "there": f"{self._sum.exists()} {self._amounts.exists()} {self._by_kind.exists()}",
            "sum": total and total[0],
            "amounts": " ".join(str(int(amount)) for (amount,) in self._amounts.get()),
            "kinds": " ".join(sorted(f"{kind}={total}" for (kind,), (total,) in self._by_kind.iterator())),
        }

    def _do(self, row: Row) -> None:
        if row.what == "put":
            before, of_kind = self._sum.get() or (0,), self._by_kind.getValue((row.kind,)) or (0,)
            self._sum.update((before[0] + row.amount,))
            self._amounts.appendValue((row.amount,))
            self._by_kind.updateValue((row.kind,), (of_kind[0] + row.amount,))
            return
        for what, variable in (("sum", self._sum), ("amounts", self._amounts), ("by_kind", self._by_kind)):
            if row.what in (what, "all"):
                variable.clear()


class Inherited(Several):
    """Starts ``Several`` with amounts from an initial state."""

    def initial(self, key: tuple[Any, ...], row: Row) -> None:  # noqa: ARG002
        """Add one amount of the initial state."""
        self._do(Row(what="put", kind=row.kind, amount=row.worth))


def _several_fields(name: str, sizes: tuple[int, ...]) -> tuple[pa.Table, ...]:
    chance = seeded(name)
    doings = ["put"] * 8 + ["sum", "amounts", "by_kind", "all", "look", "look"]

    def row() -> dict[str, Any]:
        kind, amount = chance.choice(["a", "b", "c"]), chance.randint(-9, 9)
        return {"id": chance.randint(1, 6), "what": chance.choice(doings), "kind": kind, "amount": amount}

    fields = {"id": pa.int64(), "what": pa.string(), "kind": pa.string(), "amount": pa.int64()}
    return batches_of(fields, [[row() for _ in range(size)] for size in sizes])


SEVERAL_OUTPUT = "id long, there string, sum long, amounts string, kinds string"
SEVERAL_VARIABLES = {"sum": "value", "amounts": "list", "by_kind": "map"}


def _several_case() -> Case:
    return Case(
        "several", *forms(Several), key=("id",), output=SEVERAL_OUTPUT, variables=SEVERAL_VARIABLES,
        batches=_several_fields("several", (30, 12, 6, 30, 25)), restart_after=3,
    )  # fmt: skip


def _initial_case() -> Case:
    """Return a case in which keys 1 to 6 have rows and keys 4 to 9 initial state, mostly in several rows."""
    chance = seeded("inherited")
    worths = [{"id": 4 + at % 6, "kind": chance.choice("ab"), "worth": chance.randint(100, 200)} for at in range(14)]
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("worth", pa.int64())])
    return Case(
        "inherited", *forms(Inherited), key=("id",), output=SEVERAL_OUTPUT, variables=SEVERAL_VARIABLES,
        batches=_several_fields("inherited-rows", (14, 14, 10)), initial=pa.Table.from_pylist(worths, schema=schema),
        restart_after=1,
    )  # fmt: skip


CASES = (_several_case(), _initial_case())
