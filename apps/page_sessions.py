"""Page views to sessions per user, with a function on Arrow: Kafka in, Parquet out.

A session ends if a user's next view is more than 30 minutes after the last view. It is then written. Views are
JSON: {"user_id": "u17", "page": "/home", "at": "2026-05-01T10:00:00Z"}; views without a user or a time are dropped.
"""

from __future__ import annotations

import argparse

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import riffle_spark

GAP_MS = 30 * 60 * 1_000
USER_STEP = 1 << 42  # more than any time in ms, so that users are separate in one running maximum
SESSION = [("start_ms", pa.int64()), ("last_ms", pa.int64()), ("views", pa.int64())]
STATE = pa.schema(SESSION)
OUTPUT = pa.schema([("user_id", pa.string()), *SESSION])


def sessions(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Close ended sessions and keep each user's open session. Uses columns only, no loop over rows."""
    views = pa.table(
        {
            "user_id": rows["user_id"],
            "start_ms": rows["at_ms"],
            "last_ms": rows["at_ms"],
            "views": pa.repeat(1, rows.num_rows),
        },
        schema=OUTPUT,
    )
    order = [("user_id", "ascending"), ("start_ms", "ascending")]
    combined = pa.concat_tables([state.select(OUTPUT.names), views]).sort_by(order).combine_chunks()
    users = combined["user_id"].combine_chunks()
    starts = combined["start_ms"].combine_chunks()
    base = pc.multiply(users.dictionary_encode().indices.cast(pa.int64()), USER_STEP)
    latest = pc.cumulative_max(pc.add(combined["last_ms"].combine_chunks(), base))
    far = pc.greater(pc.subtract(pc.add(starts, base)[1:], latest[:-1]), GAP_MS)
    number = pc.cumulative_sum(pa.concat_arrays([pa.array([1]), far.cast(pa.int64())]))
    grouped = combined.append_column("session", number).group_by(["user_id", "session"], use_threads=False)
    merged = grouped.aggregate([("start_ms", "min"), ("last_ms", "max"), ("views", "sum")])
    merged = merged.rename_columns(["user_id", "session", *OUTPUT.names[1:]]).sort_by("session").combine_chunks()
    owner = merged["user_id"].combine_chunks()
    is_open = pa.concat_arrays([pc.not_equal(owner[1:], owner[:-1]), pa.array([True])])
    return merged.filter(pc.invert(is_open)).select(OUTPUT.names), merged.filter(is_open).select(OUTPUT.names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--topic", "--output-path", "--checkpoint"):
        parser.add_argument(name, required=True)
    parser.add_argument("--root", help="where the state is kept (or spark.riffle.root)")
    options = parser.parse_args()
    spark = riffle_spark.configure(SparkSession.builder.appName("page-sessions")).getOrCreate()
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
    )
    view = F.from_json(F.col("value").cast("string"), "user_id string, page string, at timestamp").alias("view")
    views = raw.select(view).select("view.user_id", F.unix_millis("view.at").alias("at_ms")).dropna()

    def write(closed: DataFrame, batch_id: int) -> None:
        closed.write.mode("overwrite").parquet(f"{options.output_path}/batch={batch_id}")

    operator = riffle_spark.Stateful(
        "sessions",
        key="user_id",
        compute=riffle_spark.arrow_function(sessions, state=STATE, output=OUTPUT),
        settings=riffle_spark.Settings(root=options.root) if options.root else None,
    )
    stream = views.writeStream.foreachBatch(operator.into(write)).option("checkpointLocation", options.checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
