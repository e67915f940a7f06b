"""The case of a map state: a basket that is filled, read and emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]


class Basket(Logic):
    """Adds articles with a key of two columns to a basket and removes them. Every method that reads a map is used."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._articles: Any = handle.getMapState("articles", "kind string, size int", "count int, note string")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Change the basket as each row says, and yield its contents."""
        for row in rows:
            self._do(row)
        keys = self._articles.keys()
        yield {
            "user": key[0],
            "exists": self._articles.exists(),
            "keys": " ".join(sorted(f"{kind}/{int(size)}" for kind, size in keys)),
            "count": sum(int(count) for count, _ in self._articles.values()),
            "articles": " ".join(
                sorted(f"{at[0]}/{at[1]}={held[0]}({held[1]})" for at, held in self._articles.iterator())
            ),
        }

    def _do(self, row: Row) -> None:
        at = (row.kind, row.size)
        if row.what == "empty":
            self._articles.clear()
        elif row.what == "remove":
            self._articles.removeKey(at)
        elif self._articles.containsKey(at):
            count, note = self._articles.getValue(at)
            self._articles.updateValue(at, (count + 1, note))
        else:
            self._articles.updateValue(at, (1, row.note))


def _basket_case() -> Case:
    chance = seeded("basket")
    doings = ["add"] * 6 + ["remove"] * 3 + ["empty"]

    def row() -> dict[str, Any]:
        kind, size = chance.choice(["shirt", "shoe", ""]), chance.choice([-1, 0, 38, 2**31 - 1])
        note = chance.choice([None, "gift"])
        return {"user": chance.randint(1, 5), "what": chance.choice(doings), "kind": kind, "size": size, "note": note}

    fields = {"user": pa.int64(), "what": pa.string(), "kind": pa.string(), "size": pa.int32(), "note": pa.string()}
    batches = [[row() for _ in range(size)] for size in (25, 25, 5, 30, 30)]
    return Case(
        "basket", *forms(Basket), key=("user",),
        output="user long, exists boolean, keys string, count int, articles string",
        batches=batches_of(fields, batches), variables={"articles": "map"},
    )  # fmt: skip


CASES = (_basket_case(),)
