"""Print the files from which executors import modules. Usage: imports_app.py MODULE..."""

import importlib
import sys
from collections.abc import Iterable

from pyspark.sql import SparkSession

modules = sys.argv[1:]


def files(_: Iterable[int]) -> Iterable[str]:
    """Yield the file of each module."""
    for module in modules:
        yield str(importlib.import_module(module).__file__)


spark = SparkSession.builder.appName("imports").getOrCreate()
# A barrier stage starts only when two executors with one core each can run both tasks at once.
tasks = spark.sparkContext.range(2, numSlices=2).barrier()
print("imported", sorted(set(tasks.mapPartitions(files).collect())))
spark.stop()
