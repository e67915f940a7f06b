"""An import of a checkpoint that kills itself and Spark before it ends: ``import_app.py FOLDER STEP``.

| step | killed |
| --- | --- |
| ``writing`` | when the first snapshot is in the root |
| ``copying`` | when the offsets are in the new checkpoint, but not the query id |
| ``copied`` | when the new checkpoint is complete, but the record is not written |
"""

# private parts: steps inside a copy have no public name

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import riffle_spark
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.spark.imports import import_checkpoint as imports
from tests.kit.streams.apps.crashing_app import die
from tests.kit.streams.streaming import Feed, settings_in, wait_for

STEPS = ("writing", "copying", "copied")


def counts(events: DataFrame) -> DataFrame:
    """Return the query whose checkpoint is imported."""
    return events.groupBy("k").count()


def wrapped(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the wrapped query."""
    feed = Feed(folder / "in", "k long")
    return counts(riffle_spark.on(feed.stream(spark), settings=settings_in(folder)))


def _die_at(step: str, folder: Path) -> None:
    """Kill this process when the import reaches a step."""
    if step == "writing":

        def watch() -> None:
            wait_for(lambda: any((folder / "state").rglob("snapshot/*")), "no snapshot", poll_seconds=0.001)
            die()

        threading.Thread(target=watch, daemon=True).start()
    elif step == "copying":
        write = Checkpoint._write

        def write_some(self: Checkpoint, files: object, folder: str, batch: int, text: str) -> None:
            if folder.endswith("commits"):
                die()
            write(self, files, folder, batch, text)

        Checkpoint._write = write_some  # type: ignore[method-assign]
    else:
        imports.commit_first_version = lambda *_: die()  # type: ignore[assignment, attr-defined] # it never returns


def main(folder: Path, step: str) -> None:
    """Run the import until it reaches the step."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    spark = riffle_spark.configure(builder, kafka=False).getOrCreate()
    _die_at(step, folder)
    query = wrapped(spark, folder).writeStream.outputMode("update")
    imports.import_checkpoint(f"file://{folder}/state", f"{folder}/spark", lambda _: query, spark=spark, execute=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
