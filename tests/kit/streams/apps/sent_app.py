"""A query for ``spark-submit`` that counts the rows of files. Usage: sent_app.py FOLDER."""

import sys

from pyspark.sql import SparkSession

import riffle_spark
from riffle_spark import Settings, Stateful, aggregate, count

folder = sys.argv[1]
spark = riffle_spark.configure(SparkSession.builder.appName("sent"), kafka=False).getOrCreate()
job = Stateful(
    "totals", key="k", compute=aggregate(rows=count()),
    settings=Settings(root=f"file://{folder}/state", local_dir=f"{folder}/local", key_groups=4),
).into(lambda rows, batch_id: print("counted", batch_id, sorted(tuple(row) for row in rows.collect())))  # fmt: skip
query = (
    spark.readStream.schema("k long").json(f"{folder}/in").writeStream.foreachBatch(job)
    .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
)  # fmt: skip
query.awaitTermination()
print("imported from", riffle_spark.__file__)
