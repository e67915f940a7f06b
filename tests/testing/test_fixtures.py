"""The pytest fixtures of riffle_spark.testing give harnesses, roots and sessions, and clean up after each test."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

pytest_plugins = ["pytester"]

ASKED = 'pytest_plugins = ["riffle_spark.testing.fixtures"]'
MAKES_TWO = """
import tempfile
from pathlib import Path
import pyarrow as pa
import pytest
from riffle_spark import Stateful, aggregate, count

ROWS = pa.schema([("user", pa.string())])
totals = Stateful("totals", "user", aggregate(visits=count()))

@pytest.mark.parametrize("fails", [False, True])
def test_two(riffle_harness, fails):
    one, other = riffle_harness(totals, ROWS), riffle_harness(totals, input=ROWS, executors=1)
    one.feed([{"user": "ann"}])
    assert one.feed([{"user": "ann"}]) == [{"user": "ann", "visits": 2}]
    assert other.state() == {}
    assert len(list(Path(tempfile.gettempdir()).glob("riffle-harness-*"))) == 2
    assert not fails
"""
OWN_ROOTS = """
import pytest
from riffle_spark import Settings
from riffle_spark.state.objects.open import open_store

@pytest.mark.parametrize("turn", [1, 2])
def test_own(riffle_root, tmp_path, turn):
    assert isinstance(riffle_root, Settings)
    assert riffle_root.root.startswith(f"file://{tmp_path}/")
    assert riffle_root.local_dir.startswith(str(tmp_path))
    store = open_store(riffle_root.root)
    assert store.list("") == []
    store.put_if_absent("log/1", b"1")
    assert riffle_root.but(batch_attempts=2).given()["root"] == riffle_root.root
"""
STREAMS = """
import pytest
from riffle_spark import Stateful, aggregate, count

def test_a_query(riffle_spark_session, riffle_root, tmp_path):
    spark = riffle_spark_session
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.scheduler.mode") == "FAIR"
    spark.range(10).selectExpr("id % 3 as user").write.json(str(tmp_path / "in"))
    frame = spark.readStream.schema("user long").json(str(tmp_path / "in"))
    found = []
    totals = Stateful("totals", "user", aggregate(visits=count()), settings=riffle_root)
    job = totals.into(lambda rows, number: found.extend(map(tuple, rows.collect())))
    writer = frame.writeStream.foreachBatch(job).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(found) == [(0, 4), (1, 3), (2, 3)]
"""
GETS_THE_ACTIVE_ONE = """
from pyspark.sql import SparkSession

def test_it(riffle_spark_session):
    assert riffle_spark_session is SparkSession.getActiveSession()
"""


def run(pytester: pytest.Pytester, conftest: str, test: str) -> pytest.RunResult:
    """Run a test with pytest in a separate process."""
    pytester.makeconftest(conftest)
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:randomly")


def test_harnesses_are_closed_when_their_test_ends(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All harnesses of a test are closed, whether it passes or fails."""
    folder = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    run(pytester, ASKED, MAKES_TWO).assert_outcomes(passed=1, failed=1)
    assert list(folder.glob("riffle-harness-*")) == []


def test_each_test_gets_an_empty_root(pytester: pytest.Pytester) -> None:
    """Each test gets an empty root and a local folder below its own temporary folder."""
    run(pytester, ASKED, OWN_ROOTS).assert_outcomes(passed=2)


def test_the_testing_package_is_imported_without_pytest() -> None:
    """riffle_spark.testing can be imported without pytest. Only the fixtures import it."""
    code = "import sys; sys.modules['pytest'] = None; from riffle_spark.testing import Harness; print(Harness.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Harness\n"


@pytest.mark.spark
@pytest.mark.long
def test_a_query_runs_in_the_session_with_the_root(pytester: pytest.Pytester) -> None:
    """A query runs in the session of the fixture with the root of the fixture."""
    run(pytester, ASKED, STREAMS).assert_outcomes(passed=1)


@pytest.mark.spark
def test_the_fixture_returns_the_active_session_and_does_not_stop_it(
    spark: SparkSession, pytester: pytest.Pytester
) -> None:
    """The fixture returns the active session and does not stop it."""
    pytester.makeconftest(ASKED)
    pytester.makepyfile(GETS_THE_ACTIVE_ONE)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly").assert_outcomes(passed=1)
    assert spark.range(3).count() == 3
