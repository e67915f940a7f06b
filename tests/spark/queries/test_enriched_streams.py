"""A wrapped stream is joined with changing tables, and the output is compared with dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark.errors import ConfigError
from tests.kit.streams.streaming import Feed, records, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

Rows = Sequence[tuple[Any, ...]]
COLUMNS = {
    "events": "user string, item long, n long",
    "users": "user string, v long, name string, gone boolean",
    "prices": "item long, v long, price long, least long",
}
BATCHES: list[dict[str, Rows]] = [
    # A user that is added in a batch is joined in the same batch. The greatest version of a key wins in any order.
    {"events": [("ann", 1, 1), ("bob", 1, 2), ("eve", 2, 3), (None, 1, 4)],
     "users": [("ann", 2, "Ann", False), ("ann", 1, "An", False)], "prices": [(1, 1, 10, 0), (2, 1, 20, 0)]},
    # A change applies to later events only. An older version than the stored one has no effect.
    {"events": [("ann", 1, 5), ("bob", 2, 6)],
     "users": [("bob", 1, "Bob", False), ("ann", 1, "Anna", False)], "prices": [(1, 2, 11, 0)]},
    # After a restart: ann is deleted, bob's same version is replaced, and a price applies from n = 8.
    {"events": [("ann", 2, 7), ("bob", 2, 8)],
     "users": [("ann", 3, None, True), ("bob", 1, "Rob", False)], "prices": [(2, 2, 22, 8)]},
    # An older change does not restore a deleted user.
    {"events": [("ann", 1, 9), ("bob", 3, 10)], "users": [("ann", 2, "Ann", False)], "prices": []},
    # A newer change does. Rows without a key match nothing.
    {"events": [("ann", 1, 11), ("bob", 1, 12), (None, 1, 13)],
     "users": [("ann", 4, "Ann", False), (None, 9, "X", False)],
     "prices": [(3, 1, 30, 0)]},
]  # fmt: skip


@dataclass
class Ledger:
    """The last row of each key in both tables."""

    users: dict[str | None, tuple[Any, ...]] = field(default_factory=dict)
    prices: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def batch(self, events: Rows, users: Rows, prices: Rows) -> list[tuple[Any, ...]]:
        """Apply a batch's changes, and return the expected rows of its events."""
        for table, changes in ((self.users, users), (self.prices, prices)):
            for key, version, *values in changes:
                if key is not None and (key not in table or version >= table[key][0]):
                    table[key] = (version, *values)
        answers = list[tuple[Any, ...]]()
        for user, item, n in events:
            _, name, gone = self.users.get(user, (0, None, True))
            _, price, least = self.prices.get(item, (0, None, n + 1))
            if n >= least:
                answers.append((n, user, None if gone else name.upper(), price))
        return answers


def enriched(events: DataFrame, users: DataFrame, prices: DataFrame) -> DataFrame:
    """Join events with the names of known users and with the prices of items."""
    known = riffle_spark.latest(users, "user", by="v").where("not gone").select("user", F.upper("name").alias("name"))
    priced = riffle_spark.latest(prices, ["item"], by=["v"]).withColumnRenamed("item", "sold")
    with_names = events.join(known, "user", "left")
    return with_names.join(priced, F.expr("item = sold AND n >= least")).select("n", "user", "name", "price")


def rows_of(name: str, rows: Rows) -> list[Mapping[str, object]]:
    """Return the rows of a stream as dictionaries."""
    columns = [column.split()[0] for column in COLUMNS[name].split(", ")]
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.long
def test_each_event_is_joined_once_with_the_current_table_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Each event is joined once with the tables' current rows, through two tables and a restart.

    Both tables share one root and one commit per batch.
    """
    feeds = {name: Feed(tmp_path / name, columns) for name, columns in COLUMNS.items()}
    found, settings, ledger = dict[int, list[Row]](), settings_in(tmp_path), Ledger()

    def keep(rows: DataFrame, batch_id: int) -> None:
        found[batch_id] = sorted(rows.collect())

    for part in (BATCHES[:2], BATCHES[2:]):
        for batch in part:
            for name, feed in feeds.items():
                feed.add(rows_of(name, batch[name]))
        events, users, prices = (feed.stream(spark) for feed in feeds.values())
        frame = enriched(riffle_spark.on(events, settings=settings), users, prices)
        query = frame.writeStream.outputMode("update").foreachBatch(keep)
        running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            running.processAllAvailable()
        finally:
            running.stop()
    assert [[tuple(row) for row in found[at]] for at in range(len(BATCHES))] == [
        sorted(ledger.batch(**batch), key=lambda row: row[0]) for batch in BATCHES
    ]
    assert running.lastProgress is not None
    assert [one["operatorName"] for one in running.lastProgress["stateOperators"]] == ["table.item", "table.user"]
    assert len([one for one in records(settings.root or "") if one.kind == "batch"]) == len(BATCHES)
    for others, error_id in (
        (riffle_spark.latest(users, "user", by="name"), "RIFFLE-0334"),
        (riffle_spark.latest(users.withColumn("more", F.lit(1)), "user", by="v"), "RIFFLE-0335"),
    ):
        changed = riffle_spark.on(events, settings=settings).join(others, "user").writeStream.foreachBatch(keep)
        with pytest.raises(ConfigError, match=error_id):
            changed.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
