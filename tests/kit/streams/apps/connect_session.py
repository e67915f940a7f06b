"""A Spark Connect session with a server of its own."""

from __future__ import annotations

import os

from pyspark import SparkContext
from pyspark.sql import SparkSession

__all__ = ["connect_session"]


def connect_session(master: str) -> SparkSession:
    """Start a server beside whatever else runs on this machine, and return a session on it.

    PySpark takes a free port instead of 15002 only where SPARK_TESTING is set, which would make Spark itself behave
    otherwise: so its process is started without it.
    """
    SparkContext._ensure_initialized()
    os.environ["SPARK_TESTING"] = "1"
    return SparkSession.builder.remote(master).config("spark.ui.enabled", "false").getOrCreate()
