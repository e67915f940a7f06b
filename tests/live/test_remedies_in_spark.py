"""Frequent mistakes of new users: each error disappears once the user follows its remedy."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import riffle_spark
from riffle_spark import Settings, Stateful, aggregate, arrow_function, count
from riffle_spark.console.main import main
from tests.kit.mistakes import Mistake, check_remedy
from tests.kit.printed_commands import printed
from tests.kit.streams.streaming import QUERY_TIMEOUT_SECONDS, Feed

pytestmark = pytest.mark.spark
SCHEMA = "k long, v long, at timestamp, topic string, partition int"
ROW = {"k": 1, "v": 2, "at": "2024-01-01T00:00:00", "topic": "events", "partition": 0}
DUE = pa.schema([("n", pa.int64()), ("until", pa.timestamp("us"))])
OUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])
_numbers = itertools.count()


def collect_rows(rows: DataFrame, batch_id: int) -> None:
    """Collect a batch's rows, as a sink."""
    rows.collect()


@dataclass
class Place:
    """A folder with the input, root and checkpoint of a user's query."""

    spark: SparkSession
    folder: Path
    root: str = ""
    checkpoint: str = "checkpoint"

    def __post_init__(self) -> None:
        self.root = self.root or f"file://{self.folder}/state"
        self.feed = Feed(self.folder / "in", SCHEMA)
        self.feed.add([ROW])

    def events(self, root: str = "", **options: Any) -> DataFrame:
        """Return the wrapped input."""
        return riffle_spark.on(self.feed.stream(self.spark), root=root or self.root, **options)

    def run(self, writer: DataStreamWriter, *path: str, **trigger: Any) -> None:
        """Start a writer and wait until its query ends."""
        writer = writer.option("checkpointLocation", str(self.folder / self.checkpoint))
        query = writer.trigger(**(trigger or {"availableNow": True})).start(*path)
        try:
            query.awaitTermination(QUERY_TIMEOUT_SECONDS)
        finally:
            query.stop()

    def collect(self, frame: DataFrame, mode: str = "complete", **trigger: Any) -> None:
        """Run a wrapped frame with ``foreachBatch``."""
        self.run(frame.writeStream.outputMode(mode).foreachBatch(collect_rows), **trigger)

    def save(self, frame: DataFrame, mode: str, *path: str) -> None:
        """Run a wrapped frame with a file sink."""
        self.run(frame.writeStream.format("json").outputMode(mode), *path)

    def count(self, key: str = "k", store: str = "totals", compute: Any = None, **more: Any) -> None:
        """Run an operator over the new input. Extra keyword arguments are settings."""
        watermark, columns = more.pop("watermark", None), more.pop("columns", ["k", "v", "at"])
        settings = {"root": self.root, "local_dir": f"{self.folder}/local", "key_groups": 8, **more}
        operator = Stateful(
            store, key=key, compute=compute or aggregate(n=count()), watermark=watermark, settings=Settings(**settings)
        )
        stream = self.feed.stream(self.spark).select(*columns)
        self.run(stream.writeStream.foreachBatch(operator.into(collect_rows)))

    def count_on(self, key: str = "k", **options: str) -> None:
        """Run a wrapped count over the new input."""
        writer = self.events().groupBy(key).count().writeStream.outputMode("complete")
        self.run(writer.options(**options).foreachBatch(collect_rows))

    def more(self) -> None:
        """Add a row, so that the next run has a batch."""
        self.feed.add([ROW])


def command(place: Place, act: Callable[[], object]) -> None:
    """Call ``act``, which fails, and run the last command that its error prints."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - the test has asserted already which one it is
        text = str(error).replace("CHECKPOINT", str(place.folder / place.checkpoint))
        arguments = printed(text[text.index("What to do:") :].splitlines()[0])[-1]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


def state_that_is_gone(place: Place, mended: bool) -> None:
    """Delete the state between two runs."""
    if not mended:
        place.count()
        shutil.rmtree(place.folder / "state")
        place.more()
    else:
        command(place, place.count)
    place.count()


def new_checkpoint(place: Place, mended: bool) -> None:
    """Replace the checkpoint between two runs. The remedy is another root."""
    if not mended:
        place.count()
        place.checkpoint = "checkpoint2"
        place.more()
    else:
        place.root = f"file://{place.folder}/state2"
    place.count()


def other_key_groups(place: Place, mended: bool) -> None:
    """Change the number of key-groups between two runs."""
    if not mended:
        place.count()
        place.more()
    else:
        command(place, lambda: place.count(key_groups=16))
    place.count(key_groups=16)


def other_key(place: Place, mended: bool) -> None:
    """Change the key of a store between two runs."""
    if not mended:
        place.count()
        place.more()
    place.count("v", store="by_v" if mended else "totals")


def other_key_on(place: Place, mended: bool) -> None:
    """Change the key of a wrapped query between two runs."""
    if not mended:
        place.count_on()
        place.more()
    place.count_on("v", **({"riffle.accept": "aggregate.k"} if mended else {}))


def with_timers(place: Place, mended: bool) -> None:
    """Run a function with event-time timers, with or without a watermark."""
    compute = arrow_function(
        lambda _, state: (OUT.empty_table(), state), state=DUE, output=OUT, due="until", time_mode="EventTime"
    )
    place.count(compute=compute, watermark=("at", "10 minutes") if mended else None)


def by_ten(frame: DataFrame) -> DataFrame:
    """Count by windows of ten minutes, with a watermark."""
    return frame.withWatermark("at", "1 minute").groupBy(F.window("at", "10 minutes")).count()


def late_counts(events: DataFrame, *, watermark: bool) -> DataFrame:
    """Count by windows, with or without a watermark."""
    return by_ten(events) if watermark else events.groupBy(F.window("at", "10 minutes")).count()


def without_checkpoint(place: Place, mended: bool) -> None:
    """Run a file sink with or without a checkpoint."""
    writer = by_ten(place.events()).writeStream.format("json").outputMode("append").trigger(availableNow=True)
    if mended:
        writer = writer.option("checkpointLocation", f"{place.folder}/checkpoint")
    writer.start(f"{place.folder}/out").awaitTermination(QUERY_TIMEOUT_SECONDS)


def in_memory(place: Place, name: str) -> None:
    """Run a memory sink with or without a query name."""
    writer = place.events().groupBy("k").count().writeStream.format("memory").outputMode("complete")
    writer = writer.queryName(name) if name else writer
    writer.trigger(availableNow=True).start().awaitTermination(QUERY_TIMEOUT_SECONDS)


MISTAKES: Mapping[str, Mistake[Place]] = {
    "no root": Mistake(
        "RIFFLE-0313",
        lambda place, mended: place.count(root=place.root if mended else None),
    ),
    "a root that is a path": Mistake(
        "RIFFLE-0442",
        lambda place, mended: place.count(root=f"{'file://' if mended else ''}{place.folder}/state"),
    ),
    "a static frame": Mistake(
        "RIFFLE-0304",
        lambda place, mended: place.events() if mended else riffle_spark.on(place.spark.range(3), root=place.root),
    ),
    "a continuous trigger": Mistake(
        "RIFFLE-0339",
        lambda place, mended: place.collect(
            place.events().groupBy("k").count(), **({"once": True} if mended else {"continuous": "1 second"})
        ),
    ),
    "files in complete mode": Mistake(
        "RIFFLE-0357",
        lambda place, mended: place.save(
            by_ten(place.events()), "append" if mended else "complete", f"{place.folder}/out"
        ),
    ),
    "files without a path": Mistake(
        "RIFFLE-0358",
        lambda place, mended: place.save(
            by_ten(place.events()), "append", *([f"{place.folder}/out"] if mended else [])
        ),
    ),
    "files without a checkpoint": Mistake("RIFFLE-0340", without_checkpoint),
    "a memory sink without a name": Mistake(
        "RIFFLE-0359",
        lambda place, mended: in_memory(place, f"table{next(_numbers)}" if mended else ""),
    ),
    "a percentile": Mistake(
        "RIFFLE-0623",
        lambda place, mended: place.collect(
            place.events().groupBy("k").agg((F.percentile_approx if mended else F.percentile)("v", 0.5))
        ),
    ),
    "two roots": Mistake(
        "RIFFLE-0188",
        lambda place, mended: place.collect(
            place.events().join(
                place.events("" if mended else f"{place.root}2").select("k", F.col("v").alias("w")), "k"
            ),
            "append",
        ),
    ),
    "late rows without a watermark": Mistake(
        "RIFFLE-0344",
        lambda place, mended: place.collect(
            late_counts(place.events(late_rows=f"{place.folder}/late"), watermark=mended), "update"
        ),
    ),
    "dead letters without a function": Mistake(
        "RIFFLE-0346",
        lambda place, mended: place.collect(
            place.events(**({} if mended else {"dead_letters": f"{place.folder}/dead"})).groupBy("k").count()
        ),
    ),
    "dispatch by partition without its columns": Mistake(
        "RIFFLE-0284",
        lambda place, mended: place.count(
            dispatch="partition", columns=["k", "v", *(["topic", "partition"] if mended else [])]
        ),
    ),
    "dispatch by partition of a wrapped query": Mistake(
        "RIFFLE-0326",
        lambda place, mended: place.collect(
            place.events(settings=Settings(dispatch="partition", key_groups=8))
            .groupBy(*(["topic", "partition"] if mended else []), "k")
            .count()
        ),
    ),
    "timers without a watermark": Mistake("RIFFLE-0286", with_timers),
}
IN_ONE_PLACE: Mapping[str, Mistake[Place]] = {
    "state that is gone": Mistake("RIFFLE-0209", state_that_is_gone),
    "a new checkpoint": Mistake("RIFFLE-0210", new_checkpoint),
    "another number of key-groups": Mistake("RIFFLE-0219", other_key_groups),
    "another key": Mistake("RIFFLE-0223", other_key),
    "another key of a wrapped query": Mistake("RIFFLE-0330", other_key_on),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.sample("no root")
def test_a_refused_query_runs_after_the_remedy(spark: SparkSession, tmp_path: Path, mistake: Mistake[Place]) -> None:
    """The mistake is refused, and the query runs once it is written as the remedy says."""
    check_remedy(mistake, Place(spark, tmp_path / "mistake"), Place(spark, tmp_path / "mended"))


@pytest.mark.parametrize("mistake", IN_ONE_PLACE.values(), ids=IN_ONE_PLACE)
@pytest.mark.sample("state that is gone")
def test_a_refused_restart_continues_after_the_remedy(
    spark: SparkSession, tmp_path: Path, mistake: Mistake[Place]
) -> None:
    """The mistake between two runs is refused, and the query continues after the remedy."""
    place = Place(spark, tmp_path)
    check_remedy(mistake, place, place)
