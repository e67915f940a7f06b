"""A wrapped query with its checkpoint in S3: ``s3a_app.py CHECKPOINT``. It prints the rows of its sink as JSON.

``query`` is the function for ``riffle import``. The variable ``MOVED_FOLDER`` names the folder of the input and of the
local copies, ``MOVED_ROOT`` the root, and ``MOVED_ENDPOINT`` the server.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Settings
from tests.kit.streams.streaming import Feed

SCHEMA = "page string, t timestamp, n long"
MASTER = "local[2]"


def once_per_window(events: DataFrame) -> DataFrame:
    """Return the query that moves. It counts the distinct rows of each page and window."""
    once = events.withWatermark("t", "10 seconds").dropDuplicates(["page", "t", "n"])
    return once.groupBy(F.window("t", "10 seconds"), "page").agg(F.count("*").alias("rows"), F.sum("n").alias("total"))


def feed_in(folder: Path) -> Feed:
    """Return the input of the query."""
    return Feed(folder / "in", SCHEMA)


def query(spark: SparkSession) -> DataFrame:
    """Return the wrapped query. The session of the command must have the master of ``spark-defaults.conf``."""
    assert spark.sparkContext.master == MASTER
    folder = Path(os.environ["MOVED_FOLDER"])
    settings = Settings(local_dir=f"{folder}/local", s3_endpoint=os.environ["MOVED_ENDPOINT"], key_groups=8)
    return once_per_window(
        riffle_spark.on(feed_in(folder).stream(spark), root=os.environ["MOVED_ROOT"], settings=settings)
    )


def run(frame: DataFrame, checkpoint: str) -> list[list[str]]:
    """Run a query to the end of its input, and return the sorted rows that its sink received."""
    rows = list[tuple[Any, ...]]()
    writer = frame.writeStream.outputMode("append").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", checkpoint)
    writer.foreachBatch(lambda batch, _: rows.extend(map(tuple, batch.collect()))).start().awaitTermination()
    return sorted([str(value) for value in row] for row in rows)


def main(checkpoint: str) -> None:
    """Run the wrapped query, and print the rows."""
    spark = riffle_spark.configure(SparkSession.builder, kafka=False, s3a=True).getOrCreate()
    print(json.dumps(run(query(spark), checkpoint)))


if __name__ == "__main__":
    main(*sys.argv[1:])
