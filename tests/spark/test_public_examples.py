"""The examples in the docstrings of the public API."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("module", ["configure", "heartbeat", "stateful", "transform"])
@pytest.mark.sample("stateful")
def test_examples_print_what_their_docstrings_show(module: str, spark: SparkSession, tmp_path: Path) -> None:
    """Each example runs on two orders of one user, and prints what its docstring shows."""
    schema = "user string, shop string, amount double, at timestamp"
    orders = [("ann", "north", 3.0, None), ("ann", "south", 4.0, None)]
    spark.createDataFrame(orders, schema).coalesce(1).write.json(f"{tmp_path}/orders")
    events = spark.readStream.schema(schema).json(f"{tmp_path}/orders")
    variables = {
        "spark": spark,
        "events": events,
        "root": f"file://{tmp_path}/state",
        "write": lambda _frame, _batch_id: None,
    }
    failed, tried = doctest.testmod(
        importlib.import_module(f"riffle_spark.spark.{module}"), extraglobs=variables, optionflags=doctest.ELLIPSIS
    )
    assert (failed, tried > 0) == (0, True)
