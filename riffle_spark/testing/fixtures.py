"""Fixtures for pytest. Knows pytest, and is the one module that does. Does not know any test.

Name it in the ``conftest.py`` at the top of your tests; nothing of it is loaded unasked:

    pytest_plugins = ["riffle_spark.testing.fixtures"]
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from riffle_spark.settings import Settings
from riffle_spark.testing.harness import Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HarnessFactory", "riffle_harness", "riffle_root", "riffle_spark_session"]

HarnessFactory: TypeAlias = Callable[..., Harness]
"""Makes a ``Harness`` of the same arguments."""
_SMALL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_KEY_GROUPS = 8
_PYTHON = "PYSPARK_PYTHON"


@pytest.fixture
def riffle_harness() -> Iterator[HarnessFactory]:
    """Give what makes harnesses, and close those that it made when the test ends.

    >>> def test_visits(riffle_harness):
    ...     query = riffle_harness(visits, schema)
    ...     assert query.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 1}]
    """
    made: list[Harness] = []

    def make(*arguments: object, **named: object) -> Harness:
        made.append(Harness(*arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for harness in made:
        harness.close()


@pytest.fixture
def riffle_root(tmp_path: Path) -> Settings:
    """Give the settings of a query with a root and a local folder of its own and few key-groups.

    Change others with ``but``: ``riffle_root.but(deliver_after_commit=True)``.
    """
    return Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=_KEY_GROUPS)


@pytest.fixture(scope="session")
def riffle_spark_session() -> "Iterator[SparkSession]":
    """Give a small session with two cores in this process, configured for placement, for all tests of the run.

    If there is a session already it is given as it is, and it goes on afterwards.
    """
    from pyspark.sql import SparkSession

    from riffle_spark import configure

    present = SparkSession.getActiveSession()
    if present is not None:
        yield present
        return
    builder = SparkSession.builder.master("local[2]").appName("riffle-tests")
    for name, value in _SMALL.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as environment:
        if _PYTHON not in os.environ:
            environment.setenv(_PYTHON, sys.executable)
        session = configure(builder, kafka=False).getOrCreate()
        yield session
        session.stop()
