"""Initial state can be loaded at any batch. Each named initial state is loaded once, by the batch that commits it, on
top of the existing state.
"""

# ruff: noqa: ARG002 - PySpark's arguments

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from riffle_spark import Stateful, aggregate, count, transform_with_state
from riffle_spark.errors import ConfigError
from riffle_spark.testing import Aborted, Harness
from tests.kit.processors.visit_processors import Visits
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

pytestmark = pytest.mark.newer_spark

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
INITIAL = pa.schema([("user", pa.string()), ("visits", pa.int64())])
OUTPUT = "user string, visits long, total long"


class MultiplyingVisits(Visits):
    """A processor that multiplies the existing count before it adds the initial state, so that the order of calls
    shows.
    """

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Set ten times the existing count plus the initial one."""
        visits, total = self.totals.get() or (0, 0)
        self.totals.update((10 * visits + initialState.visits, total))


class KeyedVisits(Visits):
    """A processor that counts the rows of keys that are timestamps."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Return the count."""
        visits, _ = self.add(len(list(rows)), 0)
        yield Row(at=key[0], visits=visits)


def visits(processor: Visits | None = None, **arguments: Any) -> Stateful:
    """Return the operator."""
    return transform_with_state(processor or Visits(), key="user", output=OUTPUT, **arguments)


def initial_visits(**visits_by_user: int) -> pa.Table:
    """Return an initial state with the visits of each user."""
    return pa.table([list(visits_by_user), list(visits_by_user.values())], schema=INITIAL)


def row(user: str, amount: int = 1) -> dict[str, object]:
    """Return an input row."""
    return {"user": user, "amount": amount, "at": None}


def state(query: Harness) -> dict[str, int]:
    """Return the committed visits by user."""
    return {key[0]: value[0] for key, value in query.state("totals").items()}  # type: ignore[index, misc]


def test_a_named_initial_state_is_loaded_once_with_the_next_batch() -> None:
    """A named initial state is loaded with the next batch, for old and new keys. Later runs that still name it load
    nothing.
    """
    with Harness(visits(), INPUT) as query:
        query.feed([row("ann"), row("bob")])
        query.restart(initial_visits(ann=100, zoe=7), "2026-backfill")
        query.feed([row("ann"), row("new")])
        expected = {"ann": 102, "bob": 1, "zoe": 7, "new": 1}
        assert state(query) == expected
        query.feed([row("bob")])
        query.restart(initial_visits(ann=100, zoe=7), "2026-backfill")
        query.feed([row("bob")])
        assert state(query) == {**expected, "bob": 3}
        query.restart(initial_visits(bob=1_000), "2027-backfill")
        query.feed()
        assert state(query) == {**expected, "bob": 1_003}
        query.restart(initial_visits(bob=100), "2026-backfill")
        query.feed([row("new")])
        assert state(query) == {**expected, "bob": 1_003, "new": 2}
        assert [report.rows for report in query.reports] == [2, 4, 1, 1, 1, 1]


def test_initial_state_is_handled_before_rows_and_sees_existing_state() -> None:
    """The processor handles initial state before the batch's rows, and sees the existing state of the key."""
    with Harness(visits(MultiplyingVisits()), INPUT) as query:
        query.feed([row("ann"), row("ann")])
        query.restart(initial_visits(ann=5), "later")
        assert query.feed([row("ann")]) == [{"user": "ann", "visits": 26, "total": 3}]


def test_unnamed_initial_state_is_loaded_only_with_the_first_batch() -> None:
    """Without a name, initial state is loaded only with the store's first batch, as in Spark. Named ones are still
    loaded later.
    """
    with Harness(visits(), INPUT, initial=initial_visits(ann=10)) as query:
        query.feed([row("ann")])
        query.restart(initial_visits(ann=500))
        query.feed([row("ann")])
        assert state(query) == {"ann": 12}
        query.restart(initial_visits(ann=500), "extra")
        query.feed([row("ann")])
        assert state(query) == {"ann": 513}


def test_a_named_initial_state_is_loaded_by_the_first_batch() -> None:
    """A named initial state is loaded by the first batch of an empty root."""
    with Harness(visits(), INPUT, initial=initial_visits(ann=10), initial_name="seed") as query:
        query.feed([row("ann")])
        query.feed([row("ann")])
        assert state(query) == {"ann": 12}


@pytest.mark.parametrize("lose_copies", [False, True])
def test_initial_state_is_loaded_again_only_after_a_crash_before_commit(lose_copies: bool) -> None:
    """Initial state is loaded again after a crash before the commit of its batch, and never after that commit."""
    with Harness(visits(), INPUT, executors=3) as query:
        query.feed([row(user) for user in "abcdef"])
        query.restart(initial_visits(**dict.fromkeys("abcxyz", 100)), "later")
        query.abort(after_slots=2)
        with pytest.raises(Aborted):
            query.feed([row("a")])
        query.crash(lose_copies=lose_copies)
        query.feed([row("a")])
        expected = {"a": 102, "b": 101, "c": 101, "d": 1, "e": 1, "f": 1, "x": 100, "y": 100, "z": 100}
        assert state(query) == expected
        query.crash(lose_copies=lose_copies)
        query.feed([row("f")])
        assert state(query) == {**expected, "f": 2}


def test_rows_of_initial_state_are_never_late() -> None:
    """Rows of initial state are never late and do not move the watermark, even if the key is the event-time column."""
    operator = transform_with_state(
        KeyedVisits(), key="at", output="at timestamp, visits long", time_mode="EventTime", watermark=("at", "1 second")
    )
    with Harness(operator, INPUT) as query:
        for second in (60, 70):
            query.feed(pa.table([["ann"], [1], pa.array([second * 1_000_000], INPUT.field("at").type)], schema=INPUT))
        times = pa.array([5_000_000, 10_000_000_000], INPUT.field("at").type)
        query.restart(pa.table({"at": times, "visits": pa.array([7, 8])}), "later")
        query.feed()
        assert query.reports[-1].late_rows == 0
        assert query.watermark_ms == 69_000
        assert sorted(value[0] for value in query.state("totals").values()) == [1, 1, 7, 8]  # type: ignore[index]


@pytest.mark.parametrize(
    ("initial", "name", "error_id"),
    [
        (initial_visits().drop_columns(["user"]), "later", "RIFFLE-0806"),
        (pa.table({"user": pa.array([1]), "visits": pa.array([1])}), "later", "RIFFLE-0806"),
        (initial_visits(), " ", "RIFFLE-0226"),
    ],
)
def test_malformed_initial_state_is_refused(initial: pa.Table, name: str, error_id: str) -> None:
    """Initial state without the key column, with a key of another type or with a blank name is refused."""
    with Harness(visits(), INPUT) as query, pytest.raises(ConfigError, match=error_id):
        query.restart(initial, name)


def test_initial_state_is_refused_with_dispatch_by_partition() -> None:
    """Initial state is refused with dispatch by partition, because its rows have no partition. Once the store has had
    its first batch, nothing is loaded and nothing is refused.
    """
    source = pa.schema([*INPUT, ("topic", pa.string()), ("partition", pa.int32())])
    with Harness(visits(), source, initial=initial_visits(ann=1), dispatch="partition") as query:
        with pytest.raises(ConfigError, match="RIFFLE-0807") as caught:
            query.feed([{**row("ann"), "topic": "t", "partition": 0}])
        assert "dispatch = key_group" in str(caught.value)
    with Harness(visits(), source, dispatch="partition") as query:
        query.feed([{**row("ann"), "topic": "t", "partition": 0}])
        query.restart(initial_visits(ann=1))
        query.feed([{**row("ann"), "topic": "t", "partition": 0}])
        assert state(query) == {"ann": 2}


@pytest.mark.spark
@pytest.mark.long
def test_a_restarted_query_loads_a_named_initial_state_once(spark: SparkSession, tmp_path: Path) -> None:
    """A query in Spark that is restarted with a named initial state loads it once, also with a watermark."""
    feed, sink = Feed(tmp_path / "in", "user string, amount long, at timestamp"), CollectingSink()
    backfill = spark.createDataFrame([("ann", 100), ("zoe", 7)], "user string, visits long")
    named: list[dict[str, Any]] = [{}, *[{"initial_state": backfill, "initial_state_name": "2026-backfill"}] * 2]
    rows = []
    for arguments in named:
        feed.add([{"user": user, "amount": 5, "at": "2026-01-01T00:00:00.000Z"} for user in ("ann", "bob")])
        job = visits(settings=settings_in(tmp_path), watermark=("at", "1 hour"), **arguments).into(sink)
        run_to_end(feed.stream(spark), job, tmp_path / "checkpoint")
        rows += [report.rows for report in job.reports if report.rows]
    assert sink.latest("user") == {"ann": {"visits": 103, "total": 15}, "bob": {"visits": 3, "total": 15}}
    assert rows == [2, 4, 2]


@pytest.mark.spark
@pytest.mark.parametrize(("changes", "error_id"), [({}, "RIFFLE-0804"), ({"durable": False}, "RIFFLE-0805")])
def test_aggregates_and_caches_refuse_initial_state(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], error_id: str
) -> None:
    """Initial state is refused for aggregates, which have no handleInitialState, and for caches, which have no first
    batch.
    """
    compute: Any = visits().compute if changes else aggregate(rows=count())
    frame = spark.createDataFrame([("ann", 1)], "user string, amount long")
    job = Stateful("s", "user", compute, settings=settings_in(tmp_path), initial_state=frame, **changes).into(
        CollectingSink()
    )
    with pytest.raises(ConfigError, match=error_id):
        job(frame, 0)
