"""The queries of each block, with one text for plain and for wrapped frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.blocks import block_feeds as feeds
from benchmarks.blocks.block_feeds import DEDUP_DELAY_S, Batch

__all__ = ["BLOCKS", "Block"]

Sizes = Mapping[str, int]
TIMED = "at timestamp, key long, amount long"
KEYED = "at timestamp, key long"
WITHIN = "key = other_key AND other_at BETWEEN at - INTERVAL 10 MINUTES AND at + INTERVAL 10 MINUTES"


@dataclass(frozen=True, slots=True)
class Block:
    """A query over streams of a schema."""

    schema: str
    feed: Callable[[Sizes], Iterator[Batch]]
    build: Callable[[Mapping[str, DataFrame]], DataFrame]
    mode: str = "append"
    streams: tuple[str, ...] = ("rows",)


def _count_and_sum(rows: DataFrame, length: str, delay: str) -> DataFrame:
    timed = rows.withWatermark("at", delay).groupBy(F.window("at", length), "key")
    return timed.agg(F.count("*").alias("rows"), F.sum("amount").alias("total"))


def _window(streams: Mapping[str, DataFrame]) -> DataFrame:
    return _count_and_sum(streams["rows"], "10 seconds", "50 seconds")


def _of_windows(streams: Mapping[str, DataFrame]) -> DataFrame:
    tens = _window(streams)
    return tens.groupBy(F.window("window", "1 minute"), "key").agg(F.sum("rows"), F.max("total"))


def _second_alone(streams: Mapping[str, DataFrame]) -> DataFrame:
    timed = streams["rows"].withWatermark("at", "0 seconds").groupBy(F.window("at", "1 minute"), "key")
    return timed.agg(F.sum("amount"), F.max("amount"))


def _session(streams: Mapping[str, DataFrame]) -> DataFrame:
    timed = streams["rows"].withWatermark("at", "5 seconds")
    return timed.groupBy(F.session_window("at", "30 seconds"), "key").count()


def _dedup(streams: Mapping[str, DataFrame]) -> DataFrame:
    return streams["rows"].withWatermark("at", f"{DEDUP_DELAY_S} seconds").dropDuplicatesWithinWatermark(["key"])


def _join(streams: Mapping[str, DataFrame]) -> DataFrame:
    other_rows = streams["others"].selectExpr("at AS other_at", "key AS other_key", "amount AS other_amount")
    left_rows = streams["rows"].withWatermark("at", "1 minute")
    return left_rows.join(other_rows.withWatermark("other_at", "1 minute"), F.expr(WITHIN))


def _close(streams: Mapping[str, DataFrame]) -> DataFrame:
    return _count_and_sum(streams["rows"], "10 seconds", "1 day")


def counted(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Count the rows of a key."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "count": [count]})


def _groups(streams: Mapping[str, DataFrame]) -> DataFrame:
    grouped = streams["rows"].groupBy("key")
    return grouped.applyInPandasWithState(counted, "key long, count long", "count long", "update", "NoTimeout")


def _count(streams: Mapping[str, DataFrame]) -> DataFrame:
    return streams["rows"].groupBy("key").agg(F.count("*").alias("rows"))


BLOCKS: Mapping[str, Block] = {
    "window": Block(TIMED, lambda n: feeds.windowed(n["keys"], n["rows"], n["batches"]), _window),
    "session": Block(KEYED, lambda n: feeds.visits(n["keys"], n["rows"], n["batches"]), _session),
    "dedup": Block(KEYED, lambda n: feeds.once(n["rows"], n["batches"]), _dedup),
    "join": Block(TIMED, lambda n: feeds.joined(n["rows"] // 2, n["batches"]), _join, streams=("rows", "others")),
    "close": Block(TIMED, lambda n: feeds.closing(n["keys"], n["slices"]), _close),
    "groups": Block(
        "key long, amount long", lambda n: feeds.drawn(n["keys"], n["rows"], n["batches"]), _groups, "update"
    ),
    "chain": Block(TIMED, lambda n: feeds.windowed(n["keys"], n["rows"], n["batches"]), _of_windows),
    "second_alone": Block(TIMED, lambda n: feeds.totals(n["keys"], n["batches"]), _second_alone),
    "count": Block(
        "key long, amount long", lambda n: feeds.drawn(n["keys"], n["rows"], n["batches"]), _count, "update"
    ),
}
