"""One Spark session a module, as small as it can be. A module's ``MASTER`` and ``CONF`` say how it differs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import riffle_spark

SMALL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "600m",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="module")
def master(request: pytest.FixtureRequest) -> str:
    """Where a module's session runs; a module with a cluster of its own overrides it."""
    return getattr(request.module, "MASTER", "local[2]")


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, master: str) -> Iterator[SparkSession]:
    """Start a session for one module."""
    builder = SparkSession.builder.master(master).appName("riffle")
    for name, value in {**SMALL, **getattr(request.module, "CONF", {})}.items():
        builder = builder.config(name, value)
    session = riffle_spark.configure(builder, kafka=False).getOrCreate()
    yield session
    session.stop()
