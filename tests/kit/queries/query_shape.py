"""A shape: a query as people write it, the batches it is fed, and how it is played.

A shape's ``build`` is given frames of Spark's own or wrapped ones, and is the same function for both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENTS", "OTHERS", "PLAYS", "Batch", "Frames", "Shape", "beside", "events", "table_of"]

Batch = Mapping[str, pa.Table]
"""What comes at one time: a file for each stream that has one; a file may have no rows."""

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
EVENTS = pa.schema(
    {"at": pa.timestamp("us", "UTC"), "k": pa.string(), "n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(10, 2)}
)
OTHERS = pa.schema({"bt": pa.timestamp("us", "UTC"), "j": pa.string(), "m": pa.int64()})
PLAYS = ("each", "together", "now")
_WORD = re.compile(r"(-?\d+(?:\.\d+)?|\?)([a-z]+|_)(-?\d+|\?)?")


class Frames:
    """A query's streams by name, plain or wrapped."""

    def __init__(
        self, spark: SparkSession, streams: Mapping[str, DataFrame], again: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.spark = spark
        self.again = again
        """Wraps what Spark's own hands made of our frames, where frames are wrapped."""
        self._streams = streams

    @property
    def events(self) -> DataFrame:
        """The first stream: ``at``, ``k``, ``n``, ``x``, ``d``."""
        return self._streams["events"]

    @property
    def others(self) -> DataFrame:
        """The second one, of joins and unions: ``bt``, ``j``, ``m``."""
        return self._streams["others"]

    def timed(self, delay: str = "10 seconds") -> DataFrame:
        """Return the events with a watermark."""
        return self.events.withWatermark("at", delay)

    def timed_others(self, delay: str = "10 seconds") -> DataFrame:
        """Return the others with a watermark."""
        return self.others.withWatermark("bt", delay)

    def sql(self, text: str, **views: DataFrame) -> DataFrame:
        """Return what a statement makes of views of frames."""
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        return self.again(self.spark.sql(text))

    def names(self) -> DataFrame:
        """Return a frame that is no stream: ``key``, ``name``."""
        return self.spark.createDataFrame([("a", "Ann"), ("b", "Bob"), ("z", "Zoe")], "key string, name string")


@dataclass(frozen=True)
class Shape:
    """A query, its batches and its output mode.

    ``play``: ``each`` file when the query has settled, all of them ``together`` from the start, or under AvailableNow
    (``now``). After batch ``restart_after`` the query is stopped and started again; in batch ``breaks_in`` its sink
    fails once, and it is started again. ``oracle``: Spark's own ``stream``, or where it has none its ``batch`` query
    over all rows so far. ``ordered``: the order of a batch's rows counts. ``owed`` says why ``riffle_spark.on`` does
    not run it yet, ``differs`` why it answers otherwise, and is to.
    """

    name: str
    kind: str
    build: Callable[[Frames], DataFrame]
    batches: Sequence[Batch]
    mode: str = "append"
    play: str = "each"
    restart_after: int | None = None
    breaks_in: int | None = None
    oracle: str = "stream"
    ordered: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    owed: str = ""
    differs: str = ""

    def __post_init__(self) -> None:
        assert self.play in PLAYS, self.name
        assert self.play == "each" or self.restart_after is None or self.breaks_in is None, self.name

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The schema of each stream."""
        return {name: table.schema for batch in self.batches for name, table in batch.items()}

    @property
    def digest(self) -> str:
        """What it is fed and how it is played, to notice a recording that is older than its shape."""
        fed = [[(name, table.to_pylist()) for name, table in batch.items()] for batch in self.batches]
        told = [fed, self.mode, self.play, self.restart_after, self.breaks_in, self.oracle, sorted(self.conf.items())]
        # Before version 26, pyarrow took the zone from pytz.
        text = repr(told).replace("tzinfo=<UTC>", "tzinfo=zoneinfo.ZoneInfo(key='UTC')")
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_of(text: str, schema: pa.Schema = EVENTS) -> pa.Table:
    """Return rows told in words: ``12b7`` is second 12, key b, number 7; ``?`` is null, ``_`` a null key.

    The number is 1 where there is none. ``x`` and ``d`` are made of it.
    """
    rows = [_row(word) for word in text.split()]
    return pa.Table.from_arrays([pa.array(column, each.type) for column, each in _columns(rows, schema)], schema=schema)


def _columns(rows: list[tuple[object, ...]], schema: pa.Schema) -> list[tuple[list[object], pa.Field]]:
    return [([row[at] for row in rows], each) for at, each in enumerate(schema)]


def _row(word: str) -> tuple[object, ...]:
    found = _WORD.fullmatch(word)
    assert found, word
    at = None if found[1] == "?" else START + timedelta(seconds=float(found[1]))
    n = None if found[3] == "?" else int(found[3] or 1)
    known = n is not None and abs(n) < 1_000_000
    return (
        at, None if found[2] == "_" else found[2], n, None if n is None else n / 3,
        Decimal(n * 125).scaleb(-2) if known and n is not None else None,
    )  # fmt: skip


def events(*texts: str) -> tuple[Batch, ...]:
    """Return batches of the first stream alone."""
    return tuple({"events": table_of(text)} for text in texts)


def beside(*texts: tuple[str | None, str | None]) -> tuple[Batch, ...]:
    """Return batches of both streams; a stream that has ``None`` has no file there."""
    return tuple(
        {
            name: table_of(text, schema)
            for name, text, schema in (("events", one, EVENTS), ("others", other, OTHERS))
            if text is not None
        }
        for one, other in texts
    )
