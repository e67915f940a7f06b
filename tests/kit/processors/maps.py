"""Map states: counters per sub-key, written for each form, and a basket that is filled, read and emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]


class _Pages(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._views = handle.getMapState("views", "page string", "views long")

    def _add(self, page: str, views: int) -> int:
        before = self._views.getValue((page,))
        after = views if before is None else before[0] + views
        self._views.updateValue((page,), (after,))
        return after


class PagesInPandas(_Pages):
    """Views of a site by page, with what pandas offers."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Add page by page, in the alphabet's order."""
        seen = pd.concat(list(rows)).groupby("page").size()
        views = [self._add(page, int(count)) for page, count in seen.items()]
        yield pd.DataFrame({"site": key[0], "page": seen.index, "views": views})


class PagesInRows(_Pages):
    """The same over rows."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Add page by page, in the alphabet's order."""
        seen: dict[str, int] = {}
        for row in rows:
            seen[row.page] = seen.get(row.page, 0) + 1
        for page in sorted(seen):
            yield Row(site=key[0], page=page, views=self._add(page, seen[page]))


class Basket(Logic):
    """Articles of two-column keys that come and go; every way to read a map is used."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._articles: Any = handle.getMapState("articles", "kind string, size int", "count int, note string")

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Do what each row says, then tell what there is."""
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


def _pages_case() -> Case:
    chance = seeded("pages")
    batches = [
        [{"site": chance.choice("abc"), "page": f"/{chance.randint(0, 6)}"} for _ in range(size)]
        for size in (30, 30, 2, 40)
    ]
    return Case(
        "pages", PagesInPandas, PagesInRows, ("site",), "site string, page string, views long",
        batches_of({"site": pa.string(), "page": pa.string()}, batches), {"views": "map"},
    )  # fmt: skip


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


CASES = (_pages_case(), _basket_case())
