"""Crashed drivers, lost executors and late attempts change neither state nor output."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import operator_of
from riffle_spark.testing import Attempt
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import Crash, Oracle, World, drawn_batch, one_row, rows_of, two_stores

STEPS = ("before run", "after seal", "after sink", "after record")


@pytest.fixture
def world(two_store_world: World) -> World:
    """Return a query of two stores."""
    return two_store_world


def test_an_undisturbed_run_equals_plain_python(world: World) -> None:
    """State and output of two stores equal those of plain Python, and all invariants hold after each batch."""
    oracle, history = Oracle(), History(world)
    for version in range(8):
        rows = drawn_batch(world.chance, version)
        oracle.feed(rows)
        assert world.batch(version, rows).decision == "run"
        history.look()
    assert world.state("totals") == oracle.totals
    assert world.state("tails") == {key: (value,) for key, value in oracle.tails.items()}


@pytest.mark.parametrize("again", [1, 3])
@pytest.mark.parametrize("step", [*STEPS, "before Spark's commit log"])
def test_a_crash_at_any_step_does_not_change_state_or_output(world: World, step: str, again: int) -> None:
    """After one or several crashes at any step, state and output are as without them."""
    world.batch(0, one_row(1))
    for _ in range(again):
        world.crash_at = step
        try:
            world.batch(1, one_row(2))
        except Crash:
            world.start()
        else:
            world.start()
    world.crash_at = None
    decision = world.batch(1, one_row(2)).decision
    assert decision == ("repeat" if step in ("after record", "before Spark's commit log") else "run")
    world.batch(2, one_row(4))
    assert world.state("totals") == {"a": (3, 7)}
    assert world.state("tails") == {"a": ([1, 2, 4],)}
    assert [row["total"] for row in world.delivered("totals")] == [1, 3, 7]
    assert sorted(world.sinks["totals"].by_id) == ["query/0/0", "query/0/1", "query/0/2"]


def test_the_steps_of_a_batch_have_a_fixed_order(world: World) -> None:
    """The steps of a batch are reached in a fixed order."""
    world.batch(0, one_row(1))
    assert tuple(world.steps) == STEPS


@pytest.mark.parametrize("step", ["before run", "after seal", "after record", "in the sink"])
def test_deliver_after_commit_delivers_the_committed_rows(tmp_path: Path, step: str) -> None:
    """With `deliver_after_commit`, the delivered rows are those of the committed run, even if the function is not
    deterministic.
    """
    runs: list[int] = []

    def different(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        runs.append(1)
        table = pa.table({"k": ["a"], "last": [len(runs)]})
        return table, table

    schema = pa.schema([("last", pa.int64())])
    function = arrow_function(different, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    operator = operator_of("one", ["k"], function, (), one_row(1).schema)
    world = World(tmp_path, operators=[operator], deliver_after_commit=True)
    world.batch(0, one_row(1))
    take = world.sinks["one"]
    if step == "in the sink":
        world.sinks["one"] = lambda *_: (_ for _ in ()).throw(Crash())  # type: ignore[assignment]
    world.crash_at = step
    with pytest.raises(Crash):
        world.batch(1, one_row(1))
    world.sinks["one"] = take
    for _ in range(2):
        world.start()
        world.batch(1, one_row(1))
    assert [row["last"] for row in world.delivered("one")][-1:] == [world.state("one")["a"][0]]
    assert len(world.delivered("one")) == 2


def test_executors_can_join_and_leave_between_batches(tmp_path: Path) -> None:
    """While executors join and leave, no state is lost, and the driver does not restart."""
    world, oracle = World(tmp_path, operators=two_stores(), executors=["1"]), Oracle()
    history = History(world)
    changes = [("add", "2"), ("add", "3"), ("lose", "1"), ("add", "4"), ("lose", "2"), ("add", "5"), ("lose", "3")]
    for version, (what, name) in enumerate(changes):
        rows = rows_of(*((f"k{n}", n, version * 100 + n) for n in range(20)))
        oracle.feed(rows)
        world.batch(version, rows)
        history.look()
        world.cluster.add(name, 2) if what == "add" else world.cluster.lose(name, disk=name == "2")
    assert world.state("totals") == oracle.totals


def test_late_attempts_of_ended_drivers_are_never_listed(world: World) -> None:
    """Attempts that run after their driver or batch ended are never listed."""
    history, zombies = History(world), []

    def perform(attempt: Attempt) -> pa.Table:
        zombies.append(attempt)
        return attempt.run()

    oracle = Oracle()
    for version in range(5):
        rows = rows_of(*((f"k{n % 5}", n, version * 100 + n) for n in range(version, version + 7)))
        oracle.feed(rows)
        world.batch(version, rows, perform)
        if version % 2:
            world.start()
        for zombie in zombies[:: 2 + version % 2]:
            zombie.run()
        history.look()
    assert world.state("totals") == oracle.totals
    assert world.state("tails") == {key: (value,) for key, value in oracle.tails.items()}
