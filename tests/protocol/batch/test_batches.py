"""One batch from its input rows to its report: errors, repeated runs and requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.errors import ConflictError, Misplaced, OutOfDate, UnavailableError, UserFunctionError
from riffle_spark.messages.slot_orders import RECEIPT, Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import operator_of
from riffle_spark.protocol.ports import StaleRows
from riffle_spark.protocol.receipts import last_run_error
from riffle_spark.testing import Attempt, SimWork
from tests.kit.simulated.world import World, one_row, totals


@pytest.fixture
def world(two_store_world: World) -> World:
    """Return a query of two stores."""
    return two_store_world


@pytest.mark.parametrize("error", [Misplaced, OutOfDate])
def test_a_misplaced_slot_is_run_again_under_the_same_delivery(world: World, error: type[Exception]) -> None:
    """After a misplaced slot the batch runs again under the same delivery id. The report counts the runs."""
    failing = iter([True, False])

    def perform(attempt: Attempt) -> pa.Table:
        answer = attempt.run()
        return _with_error(answer, error.__name__) if next(failing, False) else answer

    report = world.batch(0, one_row(1), perform)
    assert report.runs == 2
    assert world.state("totals") == {"a": (1, 1)}


def test_a_batch_whose_slots_stay_misplaced_fails(world: World) -> None:
    """If slots stay misplaced, the batch fails after a number of runs with a remedy. Nothing is committed."""
    with pytest.raises(UnavailableError, match="RIFFLE-0515") as caught:
        world.batch(0, one_row(1), lambda attempt: _with_error(attempt.run(), "OutOfDate"))
    assert "Nothing was committed" in caught.value.remedy
    assert world.log().tail.version == -1  # type: ignore[union-attr]
    assert world.batch(0, one_row(1)).decision == "run"


@pytest.mark.parametrize(
    ("error", "lost", "remedy"),
    [
        (Misplaced("slot 3"), (), "spark.locality.wait"),
        (OutOfDate("slot 3"), (), "Check why executors are lost."),
        (StaleRows("slot 3"), (), "cached RDDs"),
        (Misplaced("slot 3"), ("7", "5"), "(5, 7 during the batch)"),
    ],
)
def test_the_remedy_of_a_batch_that_keeps_failing_fits_its_cause(
    error: Misplaced | OutOfDate | StaleRows, lost: tuple[str, ...], remedy: str
) -> None:
    """The remedy names lost executors, and else what the kind of the last error suggests."""
    raised = last_run_error(7, 3, error, lost, "s3://bucket/state")
    assert remedy in raised.remedy
    assert "Batch 7" in raised.problem
    assert "each of 3 runs" in raised.problem


def test_a_lost_block_never_mixes_attempts(world: World) -> None:
    """If Spark computes a lost block again, the sink refuses the rows of the new attempt, and the batch runs again."""
    report = world.batch(0, one_row(1), lose_block="totals")
    assert report.runs == 2
    assert world.delivered("totals") == [{"delivery": "query/0/0", "k": "a", "count": 1, "total": 1}]


@pytest.mark.parametrize(("drop", "expected_problem"), [(True, "missing"), (False, "not asked for")])
def test_a_missing_or_second_receipt_fails_the_batch(world: World, drop: bool, expected_problem: str) -> None:
    """A slot with no receipt or with two receipts fails the batch."""

    def perform(attempt: Attempt) -> pa.Table:
        answer = attempt.run()
        if attempt.order.store == "tails":
            return answer
        return (
            answer.slice(0, answer.num_rows - 1)
            if drop
            else pa.concat_tables([answer, answer.slice(answer.num_rows - 1)])
        )

    with pytest.raises(ConflictError, match="RIFFLE-0512") as caught:
        world.batch(0, one_row(1), perform)
    assert "Nothing was committed" in caught.value.remedy
    assert world.log().tail.version == -1  # type: ignore[union-attr]


@pytest.mark.parametrize("exact", [2, 0])
def test_lost_or_repeated_rows_fail_the_batch(world: World, monkeypatch: pytest.MonkeyPatch, exact: int) -> None:
    """A difference between routed and received rows is checked by an exact count. If rows were lost or repeated, the
    batch fails.
    """
    monkeypatch.setattr(SimWork, "count_routed_rows", lambda _: {"totals": 5, "tails": None})
    world.batch(0, one_row(1))
    monkeypatch.setattr(SimWork, "recount", lambda *_: exact)
    with pytest.raises(ConflictError, match="RIFFLE-0513"):
        world.batch(1, one_row(1))
    assert world.log().tail.version == 0  # type: ignore[union-attr]


def test_a_user_function_that_raises_commits_nothing(tmp_path: Path) -> None:
    """A failed user function reaches the caller with its key-group and executor. The batch can run again."""
    broken = [True]

    def maybe(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if broken[0]:
            raise ValueError("not today")
        table = pa.table({"k": ["a"], "last": [1]})
        return table, table

    schema = pa.schema([("last", pa.int64())])
    function = arrow_function(maybe, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    world = World(tmp_path, operators=[operator_of("one", ["k"], function, (), one_row(1).schema), totals()])
    with pytest.raises(UserFunctionError, match="RIFFLE-0198") as caught:
        world.batch(0, one_row(1))
    assert "key-group" in caught.value.where
    assert "executor" in caught.value.where
    broken[0] = False
    world.batch(0, one_row(1))
    assert world.state("totals") == {"a": (1, 1)}
    assert world.sinks["totals"].calls == world.sinks["one"].calls
    assert len(world.sinks["one"].calls) == 1


def test_a_sink_that_raises_commits_nothing(world: World) -> None:
    """If a sink fails, the batch is not committed. It runs again under the same delivery id."""
    take = world.sinks["tails"]

    def refuse(rows: pa.Table, delivery: object) -> None:
        raise RuntimeError("the sink is full")

    world.sinks["tails"] = refuse  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="the sink is full"):
        world.batch(0, one_row(1))
    world.sinks["tails"] = take
    world.batch(0, one_row(1))
    assert world.state("totals") == {"a": (1, 1)}
    assert [call.id for call in world.sinks["totals"].calls] == ["query/0/0"] * 2


def test_a_possibly_renamed_store_is_a_warning(world: World) -> None:
    """A new store beside one that is no longer declared may be a renamed store. One warning says so, with the batch to
    return to.
    """
    for version in range(2):
        assert world.batch(version, one_row(1)).warnings == ()
    world.operators, world.sinks["sums"] = [totals("sums"), world.operators[1]], world.sinks["totals"]
    world.start()
    (warning,) = world.batch(2, one_row(1)).warnings
    assert warning.startswith("[RIFFLE-0810]")
    assert "back to batch 1" in warning
    assert world.batch(3, one_row(1)).warnings == ()
    assert world.log().tail.stale_stores == {"totals": 1}  # type: ignore[union-attr]


def _with_error(answer: pa.Table, kind: str) -> pa.Table:
    receipt = Receipt.from_json(answer.column(RECEIPT)[-1].as_py())
    failed_receipt = replace(receipt, error=(kind, "a test asked for it", "", "", ""))
    place = answer.column_names.index(RECEIPT)
    column = pa.array([*[None] * (answer.num_rows - 1), failed_receipt.to_json()], pa.string())
    return answer.set_column(place, answer.schema.field(place), column)
