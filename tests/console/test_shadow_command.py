"""`riffle shadow` prints the differences of both engines, and its exit code says whether there are any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.spark.shadow.shadow_run import BatchDifference, EngineFigures, ShadowReport

DIFFERENT = BatchDifference(3, 2, 1, ({"page": "a", "n": 5}, {"page": "b", "n": None}), ({"page": "a", "n": 6},))
EQUAL = ShadowReport(4, 1_200, 30, 2, "", (), EngineFigures(0.25, 7, 3_000_000), EngineFigures(0.125, 7, 2_500_000))


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs the command with a report in place of the comparison, which needs Spark."""

    @contextmanager
    def session(*_: object) -> Iterator[object]:
        yield SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))

    monkeypatch.setattr("riffle_spark.spark.command_session.command_session", session)

    def run(report: ShadowReport, *arguments: str) -> Result:
        monkeypatch.setattr("riffle_spark.spark.shadow.shadow_run.shadow", lambda *_, **__: report)
        return CliRunner().invoke(main, ["shadow", "--query", "math:sqrt", *arguments])

    return run


def test_equal_batches_are_shown_with_the_figures_of_both_engines(compare: Callable[..., Result]) -> None:
    """Equal batches exit with 0, and a table has the seconds, state rows and memory of both engines."""
    done = compare(EQUAL)
    assert done.exit_code == 0, done.output
    assert "4 with 1,200 rows" in done.output
    assert "30 rows, 2 of them equal within the tolerance" in done.output
    assert "0 batches" in done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["Spark", "0.250", "7", "3.0", "MB"] in lines
    assert ["riffle", "0.125", "7", "2.5", "MB"] in lines


def test_different_batches_and_columns_exit_with_1_and_examples(compare: Callable[..., Result]) -> None:
    """A difference exits with 1. The rows that only one engine returned are printed under its name."""
    differing = ShadowReport(4, 9, 9, 0, "n: long, n: int", (DIFFERENT,) * 6, EQUAL.spark, EQUAL.riffle)
    done = compare(differing)
    assert done.exit_code == 1, done.output
    assert "columns differ: n: long, n: int" in done.output
    assert done.output.count("batch 3: 2 rows only in Spark's output, 1 only in riffle's") == 5, "the first five"
    assert '  Spark   {"page": "b", "n": null}' in done.output
    assert '  riffle  {"page": "a", "n": 6}' in done.output
    shown = json.loads(compare(differing, "--json").output)
    assert (shown["is_equal"], len(shown["differences"])) == (False, 6)


def test_nothing_to_compare_exits_with_1_and_a_remedy(compare: Callable[..., Result]) -> None:
    """Without a batch nothing was compared, which is no success. The remedy is an earlier start."""
    done = compare(ShadowReport(0, 0, 0, 0, "", (), EngineFigures(None, 0, 0), EngineFigures(None, 0, 0)))
    assert done.exit_code == 1, done.output
    assert "Nothing was compared" in done.output
    assert "startingOffsets = earliest" in done.output


def test_a_shared_folder_needs_a_root(compare: Callable[..., Result]) -> None:
    """A folder that executors share needs a root for the state, and a root is enough then."""
    refused = compare(EQUAL, "--folder", "s3a://bucket/try")
    assert (refused.exit_code, "--folder requires --root" in refused.output) == (2, True)
    assert compare(EQUAL, "--folder", "s3a://bucket/try", "--root", "s3://bucket/state").exit_code == 0
