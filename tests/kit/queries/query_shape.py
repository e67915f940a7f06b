"""A shape: a query as users write it, the batches of its input, and the way in which it is played.

The function ``build`` of a shape gets plain frames or wrapped ones.
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
"""The files that arrive together, by stream. A stream may have no file, and a file no rows."""

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
EVENTS = pa.schema(
    {"at": pa.timestamp("us", "UTC"), "k": pa.string(), "n": pa.int64(), "x": pa.float64(), "d": pa.decimal128(10, 2)}
)
OTHERS = pa.schema({"bt": pa.timestamp("us", "UTC"), "j": pa.string(), "m": pa.int64()})
PLAYS = ("each", "together", "now")
_WORD = re.compile(r"(-?\d+(?:\.\d+)?|\?)([a-z]+|_)(-?\d+|\?)?")


class Frames:
    """The streams of a query by name, plain or wrapped."""

    def __init__(
        self, spark: SparkSession, streams: Mapping[str, DataFrame], again: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.spark = spark
        self.again = again
        """A function that wraps a frame that Spark made of wrapped frames, such as the result of ``spark.sql``."""
        self._streams = streams

    @property
    def events(self) -> DataFrame:
        """The first stream: ``at``, ``k``, ``n``, ``x``, ``d``."""
        return self._streams["events"]

    @property
    def others(self) -> DataFrame:
        """The second stream, for joins and unions: ``bt``, ``j``, ``m``."""
        return self._streams["others"]

    def timed(self, delay: str = "10 seconds") -> DataFrame:
        """Return the first stream with a watermark."""
        return self.events.withWatermark("at", delay)

    def timed_others(self, delay: str = "10 seconds") -> DataFrame:
        """Return the second stream with a watermark."""
        return self.others.withWatermark("bt", delay)

    def sql(self, text: str, **views: DataFrame) -> DataFrame:
        """Return the result of a SQL statement over frames, which become views with these names."""
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        return self.again(self.spark.sql(text))

    def names(self) -> DataFrame:
        """Return a static frame with the columns ``key`` and ``name``."""
        return self.spark.createDataFrame([("a", "Ann"), ("b", "Bob"), ("z", "Zoe")], "key string, name string")


@dataclass(frozen=True)
class Shape:
    """A query, its batches and its output mode.

    ``play`` is ``each``: a file is added when the query has processed the previous one; ``together``: all files are
    there at the start; or ``now``: the query uses the trigger AvailableNow. The query restarts after batch
    ``restart_after``. In batch ``breaks_in`` its sink fails once, and the query restarts.

    ``oracle`` is Spark's ``stream`` query or, if Spark cannot run it as a stream, its ``batch`` query over all rows so
    far. ``ordered`` says that the order of the rows of a batch counts. ``owed`` is the reason why ``riffle_spark.on``
    does not run the query yet, and ``differs`` the reason why its result differs from Spark's, and should.
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
        """A digest of the input and the way of playing. It shows whether a recording is older than its shape."""
        fed = [[(name, table.to_pylist()) for name, table in batch.items()] for batch in self.batches]
        content = [
            fed,
            self.mode,
            self.play,
            self.restart_after,
            self.breaks_in,
            self.oracle,
            sorted(self.conf.items()),
        ]
        # Before version 26, pyarrow used time zones of pytz.
        text = repr(content).replace("tzinfo=<UTC>", "tzinfo=zoneinfo.ZoneInfo(key='UTC')")
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def table_of(text: str, schema: pa.Schema = EVENTS) -> pa.Table:
    """Return the rows of a text, such as ``12b7`` for second 12, key b and number 7. ``?`` is null, ``_`` a null key.

    Without a number, it is 1. The columns ``x`` and ``d`` are computed from the number.
    """
    rows = [_row(word) for word in text.split()]
    return pa.Table.from_arrays([pa.array(column, each.type) for column, each in _columns(rows, schema)], schema=schema)


def _columns(rows: list[tuple[object, ...]], schema: pa.Schema) -> list[tuple[list[object], pa.Field]]:
    return [([row[index] for row in rows], field) for index, field in enumerate(schema)]


def _row(word: str) -> tuple[object, ...]:
    match = _WORD.fullmatch(word)
    assert match, word
    at = None if match[1] == "?" else START + timedelta(seconds=float(match[1]))
    n = None if match[3] == "?" else int(match[3] or 1)
    is_small = n is not None and abs(n) < 1_000_000
    return (
        at, None if match[2] == "_" else match[2], n, None if n is None else n / 3,
        Decimal(n * 125).scaleb(-2) if is_small and n is not None else None,
    )  # fmt: skip


def events(*texts: str) -> tuple[Batch, ...]:
    """Return batches of the first stream alone."""
    return tuple({"events": table_of(text)} for text in texts)


def beside(*texts: tuple[str | None, str | None]) -> tuple[Batch, ...]:
    """Return batches of both streams. A stream whose text is ``None`` has no file in that batch."""
    return tuple(
        {
            name: table_of(text, schema)
            for name, text, schema in (("events", events_text, EVENTS), ("others", others_text, OTHERS))
            if text is not None
        }
        for events_text, others_text in texts
    )
