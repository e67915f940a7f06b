"""Fixtures for pytest.

Name the plugin in the ``conftest.py`` at the top of your tests:

pytest_plugins = ["riffle_spark.testing.fixtures"]
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from riffle_spark.settings import Settings
from riffle_spark.testing.harness import Harness
from riffle_spark.testing.query_runs import session_for_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HarnessFactory: TypeAlias = Callable[..., Harness]
"""Makes a ``Harness`` from the same arguments."""
_KEY_GROUPS = 8


@pytest.fixture
def riffle_harness() -> Iterator[HarnessFactory]:
    """Return a function that makes harnesses, and close them when the test ends.

    >>> def test_visits(riffle_harness):
    ...     query = riffle_harness(visits, schema)
    ...     assert query.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 1}]
    """
    harnesses: list[Harness] = []

    def make(*arguments: object, **options: object) -> Harness:
        harnesses.append(Harness(*arguments, **options))  # type: ignore[arg-type]
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


@pytest.fixture
def riffle_root(tmp_path: Path) -> Settings:
    """Return the settings of a query with its own root and local folder, and eight key-groups.

    Change settings with ``but``: ``riffle_root.but(deliver_after_commit=True)``.
    """
    return Settings(root=f"file://{tmp_path}/state", local_dir=f"{tmp_path}/local", key_groups=_KEY_GROUPS)


@pytest.fixture(scope="session")
def riffle_spark_session() -> "Iterator[SparkSession]":
    """Return a small session for all tests of the run: two cores in this process, configured for placement.

    An active session is returned unchanged and not stopped.
    """
    with session_for_tests() as session:
        yield session
