"""Show a wrapped query and a job in Spark's UI and event log: ``ui_app.py FOLDER``.

It prints one object for each of the two. The object has the state operators of the batches from the UI's store, from
the event log and from ``recentProgress``, and the input rows by batch from the UI's store.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import riffle_spark
from riffle_spark import Stateful, aggregate, count
from tests.kit.streams.streaming import Feed, run_to_end, settings_in

EVENT = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
WAIT_MS = 30_000


def run_wrapped(feed: Feed, spark: SparkSession, folder: Path) -> StreamingQuery:
    """Run a wrapped query to the end of its input."""
    counts = riffle_spark.on(feed.stream(spark), settings=settings_in(folder)).groupBy("page").count()
    writer = counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(folder / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def run_job(feed: Feed, spark: SparkSession, folder: Path) -> StreamingQuery:
    """Run a ``foreachBatch`` job to the end of its input."""

    def sink(rows: DataFrame, batch: int) -> None:
        rows.write.format("noop").mode("append").save()

    job = Stateful("pages", "page", aggregate(rows=count()), settings=settings_in(folder)).into(sink)
    return run_to_end(feed.stream(spark), job, folder / "c")


def of_ui(spark: SparkSession, query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of a query's batches in the store of Spark's UI."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty(WAIT_MS)
    ui = context._jvm.org.apache.spark.sql.execution.ui  # private: Spark has no other access to the store of its UI
    queries = ui.StreamingQueryStatusStore(context._jsc.sc().statusStore().store()).allQueryUIData()
    shown_queries = [queries.apply(place) for place in range(queries.size())]
    (ui_query,) = [each for each in shown_queries if each.summary().runId() == str(query.runId)]
    return [json.loads(progress.json()) for progress in ui_query.recentProgress()]


def of_event_log(folder: Path, query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of a query's batches in Spark's event log, which the history server reads."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    events = [json.loads(line) for path in files for line in path.read_text().splitlines() if EVENT in line]
    return [event["progress"] for event in events if event["progress"]["runId"] == str(query.runId)]


def operators_of(progress: dict[str, Any]) -> list[list[int]]:
    """Return the number of total and updated rows of each state operator."""
    return [[operator["numRowsTotal"], operator["numRowsUpdated"]] for operator in progress["stateOperators"]]


def main(folder: Path) -> None:
    """Run the wrapped query and the job, and print their objects."""
    logs = folder / "events"
    logs.mkdir()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{logs}")
    builder = builder.config("spark.eventLog.compress", "false").config("spark.sql.shuffle.partitions", "1")
    spark = riffle_spark.configure(builder.config("spark.log.level", "ERROR"), kafka=False).getOrCreate()
    feed = Feed(folder / "in", "page string")
    for pages in ("aab", "bc"):
        feed.add([{"page": page} for page in pages])
    outputs = []
    for name, run in (("wrapped", run_wrapped), ("job", run_job)):
        query = run(feed, spark, folder / name)
        in_ui = of_ui(spark, query)
        recent = [json.loads(progress.json()) for progress in query._jsq.recentProgress()]
        rows = [progress["numInputRows"] for progress in in_ui]
        outputs.append((query, {"ui": in_ui, "recent": recent}, rows))
    spark.stop()
    for query, by_place, rows in outputs:
        by_place["log"] = of_event_log(logs, query)
        print(json.dumps({**{name: list(map(operators_of, each)) for name, each in by_place.items()}, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
