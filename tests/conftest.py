"""What every test shares: one Spark, one Python, one address; fast tests first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from apps.demo.jars import spark_home

os.environ["SPARK_HOME"] = str(spark_home())
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# Python workers, and the jobs that tests start, find the packages of this checkout.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

SLOW_MARKS = ("spark", "cluster", "long")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is fast first."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return max((1 + SLOW_MARKS.index(mark.name) for mark in item.iter_markers() if mark.name in SLOW_MARKS), default=0)
