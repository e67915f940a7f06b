"""Cases of value states without a TTL: a count, which is written for each form, and totals of several columns."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle
from tests.kit.processors.both_forms import Logic, Output
from tests.kit.processors.processor_case import Case, batches_of, forms, seeded

__all__ = ["CASES"]

TOTALS = "rows int, amount long, price double, least string, money decimal(18,2)"


class _Counting(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count: Any = handle.getValueState("count", "count long, total long")

    def close(self) -> None:
        pass


class CountInPandas(_Counting):
    """Counts the rows and sums the amounts of a user, with pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Add the rows of one user."""
        count, total = self._count.get() if self._count.exists() else (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + frame["amount"].sum()
        self._count.update((count, total))
        yield pd.DataFrame({"user": [key[0]], "count": [count], "total": [total]})


class CountInRows(_Counting):
    """Counts the rows and sums the amounts of a user, row by row."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Add the rows of one user."""
        count, total = self._count.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.amount
        self._count.update((count, total))
        yield Row(user=key[0], count=count, total=total)


class Totals(Logic):
    """Running totals of several columns, which may be null, per shop and item."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._totals = handle.getValueState("totals", TOTALS)

    def rows(self, key: tuple[Any, ...], rows: Iterator[Row], timers: Any) -> Output:  # noqa: ARG002
        """Add the rows and yield the totals."""
        count, amount, price, least, money = self._totals.get() or (0, 0, 0.0, None, Decimal(0))
        for row in rows:
            values = row.asDict()
            count, amount = count + 1, amount + values["amount"]
            price, money = price + (values["price"] or 0.0), money + (values["money"] or 0)
            least = min(filter(None, (least, row["label"])), default=None)
        self._totals.update((count, amount, price, least, money))
        shop, item = key
        # Output columns are matched by name. This order differs from the declared one.
        yield {
            "rows": count,
            "shop": shop,
            "item": item,
            "amount": amount,
            "price": price,
            "money": money,
            "least": least,
        }


def _count_case() -> Case:
    chance = seeded("count")
    users = ["ann", "bob", "cy", "dora", "ümit", "", None]
    batches = [
        [{"user": chance.choice(users), "amount": chance.randint(-5, 90)} for _ in range(size)]
        for size in (40, 3, 25, 60)
    ]
    return Case(
        "count", CountInPandas, CountInRows, ("user",), "user string, count long, total long",
        batches_of({"user": pa.string(), "amount": pa.int64()}, batches), {"count": "value"},
    )  # fmt: skip


def _totals_case() -> Case:
    chance = seeded("totals")

    def row() -> dict[str, Any]:
        return {
            "shop": chance.choice(["north", "south"]), "item": chance.randint(1, 3), "amount": chance.randint(1, 9),
            "price": chance.choice([None, 0.25, 1.5, 99.75]), "label": chance.choice([None, "a", "b", "zz"]),
            "money": chance.choice([None, Decimal("0.05"), Decimal("-3.10"), Decimal("12345678.90")]),
        }  # fmt: skip

    fields = {
        "shop": pa.string(), "item": pa.int32(), "amount": pa.int64(), "price": pa.float64(), "label": pa.string(),
        "money": pa.decimal128(12, 2),
    }  # fmt: skip
    batches = [[row() for _ in range(size)] for size in (30, 1, 12, 20)]
    output = f"shop string, item int, {TOTALS}"
    return Case(
        "totals", *forms(Totals), key=("shop", "item"), output=output, batches=batches_of(fields, batches),
        variables={"totals": "value"},
    )  # fmt: skip


CASES = (_count_case(), _totals_case())
