"""Run Spark's daemon of Python workers in tests: workers start with the modules that most of them import.

Spark starts this module instead of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker is a fork of the
daemon. Without it each worker imports pandas, PyArrow and riffle_spark itself, which takes a second of the processor,
and looks at all their objects when it collects garbage after each task.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401 - loaded for the workers
import pyarrow.compute  # noqa: F401 - as above
from pyspark import daemon
from pyspark.sql.pandas import serializers  # noqa: F401 - as above

import riffle_spark.spark.engine.task
import riffle_spark.worker.slot  # noqa: F401 - as above

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.manager()
