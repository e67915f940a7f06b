"""The state that `riffle import` writes for each kind of stateful operator: one batch of Spark's own query is moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import StatefulProcessor
from riffle_spark.spark.imports.import_checkpoint import import_checkpoint
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.schemas.variable_kinds import TIMER
from tests.kit.queries.played_query import QUICK, ROCKSDB, configured
from tests.kit.streams.sparks_operator import NO_DATA
from tests.kit.streams.streaming import Feed, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.needs_spark4("the source statestore")]

ROWS = [
    {"k": "a", "n": 1, "d": "1.25", "at": "2026-01-01T00:00:10Z"},
    {"k": "b", "n": 2, "d": "7.00", "at": "2026-01-01T00:00:12Z"},
    {"k": "a", "n": 3, "d": "0.50", "at": "2026-01-01T00:00:13Z"},
]
TEN_MS = 1_767_225_610_000
"""The time of the first row."""
HOUR_MS = 3_600_000
Build = Callable[[DataFrame], DataFrame]


def moved(
    spark: SparkSession, folder: Path, build: Build, mode: str = "update", conf: Mapping[str, str] | None = None
) -> str:
    """Run Spark's own query over one batch, move its state, and return the root."""
    feed, settings = Feed(folder / "in", "k string, n long, d decimal(10, 2), at timestamp"), settings_in(folder)
    feed.add(ROWS)
    assert settings.root is not None
    with configured(spark, {**QUICK, NO_DATA: "false", **(conf or {})}):
        writer = build(feed.stream(spark)).writeStream.outputMode(mode).format("noop")
        writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start().awaitTermination()

        def query(_: SparkSession) -> object:
            events = riffle_spark.on(feed.stream(spark), settings=settings)
            return build(events).writeStream.outputMode(mode)

        import_checkpoint(settings.root, f"{folder}/c", query, spark=spark, execute=True)
    return only_root(settings.root)


def rows_of(root: str, variable: str | None = None) -> list[dict[str, Any]]:
    """Return the imported rows, sorted, without the columns that every table of state has."""
    rows = riffle_spark.read_state(root, variable=variable).read_all().drop_columns(["key_group", "version"])
    return sorted(rows.to_pylist(), key=repr)


def timed(events: DataFrame) -> DataFrame:
    """Return the events with a watermark."""
    return events.withWatermark("at", "10 seconds")


def at(seconds: int) -> datetime:
    """Return a time in the minute of the rows."""
    return datetime(2026, 1, 1, 0, 0, seconds, tzinfo=timezone.utc)


class Moved(NamedTuple):
    """A query, its output mode, and the rows of its state after the batch."""

    build: Build
    mode: str
    rows: list[dict[str, Any]]


def sums(key: str, total: str, rows: int) -> dict[str, Any]:
    """Return the stored sum and mean of decimals of a key."""
    sum_ = {"total": Decimal(total), "total_isEmpty": False}
    return {"k": key, **sum_, "mean_sum": Decimal(total), "mean_count": rows, "due_ms": None}


QUERIES = {
    "sums and means of decimals": Moved(
        lambda events: events.groupBy("k").agg(F.sum("d").alias("total"), F.avg("d").alias("mean")),
        "update",
        [sums("a", "1.75", 2), sums("b", "7.00", 1)],
    ),
    "sessions": Moved(
        lambda events: timed(events).groupBy(F.session_window("at", "5 seconds"), "k").agg(F.sum("n").alias("total")),
        "append",
        [
            {"k": "a", "session_window_start": [at(10)], "session_window_end": [at(18)], "total": [4]},
            {"k": "b", "session_window_start": [at(12)], "session_window_end": [at(17)], "total": [2]},
        ],
    ),
    "keys within the watermark": Moved(
        lambda events: timed(events).dropDuplicatesWithinWatermark(["k"]),
        "append",
        [
            {"k": "a", "known_until": at(20), "due_ms": TEN_MS + 10_000},
            {"k": "b", "known_until": at(22), "due_ms": TEN_MS + 12_000},
        ],
    ),
}


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_stored_in_the_form_of_their_operator(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """Sums of decimals, sessions and keys with an end are stored as riffle's own query stores them."""
    query = QUERIES[name]
    rows = rows_of(moved(spark, tmp_path, query.build, query.mode))
    assert [{column: row[column] for column in query.rows[0]} for row in rows] == query.rows


def gathered(key: Any, frames: Iterable[Any], state: Any) -> Iterator[Any]:
    """Keep all numbers of a key, and their number by text."""
    numbers = [int(n) for frame in frames for n in frame["n"]]
    state.update((numbers, {"rows": len(numbers)}))
    yield pd.DataFrame({"k": [key[0]]})


def test_lists_and_maps_of_a_function_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    """State of ``applyInPandasWithState`` with lists and maps is stored with their values."""
    state = "numbers array<long>, counts map<string, long>"
    root = moved(
        spark,
        tmp_path,
        lambda events: events.groupBy("k").applyInPandasWithState(gathered, "k string", state, "update", "NoTimeout"),
    )
    assert rows_of(root) == [
        {"k": "a", "numbers": [1, 3], "counts": [("rows", 2)], "due_ms": None},
        {"k": "b", "numbers": [2], "counts": [("rows", 1)], "due_ms": None},
    ]


class Noted(StatefulProcessor):
    """A processor with a variable of each kind, a time to live and a timer."""

    def init(self, handle: Any) -> None:
        """Declare the variables."""
        self.handle = handle
        self.total = handle.getValueState("total", "n long", HOUR_MS)
        self.numbers = handle.getListState("numbers", "n long")
        self.counts = handle.getMapState("counts", "name string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Write all variables, and set a timer an hour later."""
        numbers = [int(n) for frame in rows for n in frame["n"]]
        self.total.update((sum(numbers),))
        self.numbers.put([(n,) for n in numbers])
        self.counts.updateValue(("rows",), (len(numbers),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR_MS)
        yield pd.DataFrame({"k": [key[0]]})

    def close(self) -> None:
        """Do nothing."""


def noted(events: DataFrame) -> DataFrame:
    """Return the output of the processor."""
    return events.groupBy("k").transformWithStateInPandas(Noted(), "k string", "update", "ProcessingTime")


def values_of(root: str, variable: str) -> list[tuple[Any, ...]]:
    """Return the key, map key and value of each element of a variable, or the key of each timer, sorted."""
    table = riffle_spark.read_state(root, variable=variable).read_all()
    names = [field.name for field in table.schema if field.metadata[b"riffle.role"] in (b"key", b"map_key", b"state")]
    return sorted(tuple(row.values()) for row in table.select(names).to_pylist())


def test_variables_and_timers_of_a_processor_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    """Each variable of a processor is stored, with its time to live, and so are its timers."""
    begin_ms = time.time_ns() // 1_000_000
    root = moved(spark, tmp_path, noted, conf=ROCKSDB)
    end_ms = time.time_ns() // 1_000_000
    assert values_of(root, "total") == [("a", 4), ("b", 2)]
    assert values_of(root, "numbers") == [("a", 1), ("a", 3), ("b", 2)]
    assert values_of(root, "counts") == [("a", "rows", 2), ("b", "rows", 1)]
    assert values_of(root, TIMER) == [("a",), ("b",)]
    dues = [row["due_ms"] for variable in ("total", TIMER) for row in rows_of(root, variable)]
    assert all(begin_ms + HOUR_MS <= due <= end_ms + HOUR_MS for due in dues)
