"""One query's driver: crashes at every step, second drivers, lost places, unclear commits, late delivery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from invariants import History
from world import Crash, Oracle, World, drawn_batch, rows_of, totals

from riffle_spark.errors import (
    ConfigError,
    ConflictError,
    FencedError,
    Misplaced,
    OutOfDate,
    UnavailableError,
    UserFunctionError,
)
from riffle_spark.process.aggregates import aggregate, count
from riffle_spark.process.arrow_function import arrow_function
from riffle_spark.protocol.operator import operator_of
from riffle_spark.state import paths
from riffle_spark.state.faulty import Fault
from riffle_spark.testing import Attempt, SimWork
from riffle_spark.worker.order import RECEIPT, Receipt

STEPS = ("before run", "after seal", "after sink", "after record")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query of two stores on two executors."""
    return World(tmp_path)


def one(value: int, key: str = "a") -> pa.Table:
    """Return a batch of one row."""
    return rows_of((key, value, value))


def test_an_undisturbed_run_equals_plain_python(world: World) -> None:
    """State and sinks of two stores over random batches, and every invariant after each."""
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
def test_a_crash_at_any_step_changes_nothing_in_the_end(world: World, step: str, again: int) -> None:
    """The driver dies, once or several times in a row, and is started again: state and sink as if it had not."""
    world.batch(0, one(1))
    for _ in range(again):
        world.crash_at = step
        try:
            world.batch(1, one(2))
        except Crash:
            world.start()
        else:
            world.start()
    world.crash_at = None
    decision = world.batch(1, one(2)).decision
    assert decision == ("repeat" if step in ("after record", "before Spark's commit log") else "run")
    world.batch(2, one(4))
    assert world.state("totals") == {"a": (3, 7)}
    assert world.state("tails") == {"a": ([1, 2, 4],)}
    assert [row["total"] for row in world.delivered("totals")] == [1, 3, 7]
    assert sorted(world.sinks["totals"].by_id) == ["query/0/0", "query/0/1", "query/0/2"]


def test_the_steps_come_in_their_order(world: World) -> None:
    """What a test may break into is told in the order in which it happens."""
    world.batch(0, one(1))
    assert tuple(world.steps) == STEPS


@pytest.mark.parametrize("step", STEPS)
def test_a_second_driver_fences_the_first_wherever_that_stands_i4(world: World, step: str) -> None:
    """I4: once another driver has claimed, the first commits nothing more, and stays fenced."""
    history = History(world)
    world.batch(0, one(1))

    def intrude() -> None:
        world.at_step = {}
        first.append(world.driver)
        world.start()
        work = SimWork(world.cluster, one(2), world.sinks)
        world.driver.process(world.incoming(1), world.operators, work)

    first: list[object] = []
    run_id = world.run_id
    world.at_step = {step: intrude}
    if step == "after record":
        world.batch(1, one(2))
    else:
        with pytest.raises(FencedError, match="another driver"):
            world.batch(1, one(2))
    history.look()
    second, world.driver = world.driver, first[0]  # type: ignore[assignment]
    calls = len(world.sinks["totals"].calls)
    for version in (2,) if step == "after record" else (1, 2):
        with pytest.raises(FencedError):
            world.batch(version, one(9), run_id=run_id)
    assert len(world.sinks["totals"].calls) == calls, "a fenced driver reached its sink"
    world.driver = second
    world.batch(2, one(4))
    history.look()
    assert world.state("totals") == {"a": (3, 7)}


def test_a_query_that_is_started_again_takes_over_even_in_the_same_process(world: World) -> None:
    """Fencing stops a run, not the program: a new run claims anew."""
    world.batch(0, one(1))
    old = world.driver, world.run_id
    world.start()
    world.batch(1, one(2))
    world.driver, world.run_id = old
    for _ in range(2):
        with pytest.raises(FencedError):
            world.batch(1, one(2))
    world.run_id = "started again"
    assert world.batch(1, one(2)).decision == "repeat"
    assert world.batch(2, one(4)).decision == "run"


@pytest.mark.parametrize("same_run", [True, False])
@pytest.mark.parametrize("kind", ["answer_lost", "request_lost", "late"])
def test_an_unclear_commit_is_settled_before_anything_runs_again(world: World, kind: str, same_run: bool) -> None:
    """Whatever became of the record: it is found out, the batch is a repeat, and no row counts twice."""
    for version in range(2):
        world.batch(version, one(1))
    record = paths.record(3)
    world.store.script(Fault(kind, "put", record), Fault("unavailable", "put", record, times=None))  # type: ignore[arg-type]
    world.store.script(Fault("unavailable", "get", record, times=None))
    with pytest.raises(UnavailableError, match="unclear"):
        world.batch(2, one(1))
    ran = len(world.steps)
    with pytest.raises(UnavailableError, match="unclear"):
        world.batch(2, one(1))
    assert len(world.steps) == ran, "the batch was run while its commit is unclear"
    world.store.heal()
    world.store.land()
    if not same_run:
        world.run_id = "started again"
    assert world.batch(2, one(1)).decision == "repeat"
    for version in range(3, 26):
        world.batch(version, one(1, f"k{version % 3}"))
    History(world).check_listed_objects()
    assert world.state("totals")["a"] == (3, 3)


@pytest.mark.parametrize("error", [Misplaced, OutOfDate])
def test_a_misplaced_slot_is_run_again_under_the_same_delivery(world: World, error: type[Exception]) -> None:
    """The batch runs again at once; the sink hears the same id; the report counts the runs."""
    failing = iter([True, False])

    def perform(attempt: Attempt) -> pa.Table:
        answer = attempt.run()
        return _with_error(answer, error.__name__) if next(failing, False) else answer

    report = world.batch(0, one(1), perform)
    assert report.runs == 2
    assert world.state("totals") == {"a": (1, 1)}


def test_a_batch_that_never_finds_its_place_ends(world: World) -> None:
    """After so many runs the error says what to look at; nothing was committed."""
    with pytest.raises(UnavailableError, match="was run 4 times") as caught:
        world.batch(0, one(1), lambda attempt: _with_error(attempt.run(), "OutOfDate"))
    assert "nothing was committed" in caught.value.remedy
    assert world.log().tail.version == -1  # type: ignore[union-attr]
    assert world.batch(0, one(1)).decision == "run"


def test_a_lost_block_never_mixes_attempts(world: World) -> None:
    """A result computed again is another attempt's: the sink's frame refuses it, and the batch runs again."""
    report = world.batch(0, one(1), lose_block="totals")
    assert report.runs == 2
    assert world.delivered("totals") == [{"delivery": "query/0/0", "k": "a", "count": 1, "total": 1}]


@pytest.mark.parametrize(("drop", "told"), [(True, "missing"), (False, "not asked for")])
def test_receipts_must_be_complete(world: World, drop: bool, told: str) -> None:
    """A slot that did not report, or reported twice, fails the batch."""

    def perform(attempt: Attempt) -> pa.Table:
        answer = attempt.run()
        if attempt.order.schema.store == "tails":
            return answer
        return (
            answer.slice(0, answer.num_rows - 1)
            if drop
            else pa.concat_tables([answer, answer.slice(answer.num_rows - 1)])
        )

    with pytest.raises(ConflictError, match=f"not complete: .*{told}") as caught:
        world.batch(0, one(1), perform)
    assert "nothing was committed" in caught.value.remedy
    assert world.log().tail.version == -1  # type: ignore[union-attr]


def test_rows_routed_must_be_rows_received(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that is too high beside the shuffle is checked exactly; a real difference fails the batch."""
    monkeypatch.setattr(SimWork, "routed", lambda _: {"totals": 5, "tails": None})
    world.batch(0, one(1))
    monkeypatch.setattr(SimWork, "recount", lambda *_: 2)
    with pytest.raises(ConflictError, match="2 rows were routed to store 'totals', its slots received 1"):
        world.batch(1, one(1))
    assert world.log().tail.version == 0  # type: ignore[union-attr]


def test_a_user_function_that_raises_commits_nothing(tmp_path: Path) -> None:
    """The error reaches the caller with its place; the batch can be handed over again."""
    broken = [True]

    def maybe(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if broken[0]:
            raise ValueError("not today")
        table = pa.table({"k": ["a"], "last": [1]})
        return table, table

    schema = pa.schema([("last", pa.int64())])
    function = arrow_function(maybe, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    world = World(tmp_path, operators=[operator_of("one", ["k"], function, (), one(1).schema), totals()])
    with pytest.raises(UserFunctionError, match="not today") as caught:
        world.batch(0, one(1))
    assert "key-group" in caught.value.where
    assert "executor" in caught.value.where
    broken[0] = False
    world.batch(0, one(1))
    assert world.state("totals") == {"a": (1, 1)}
    assert world.sinks["totals"].calls == world.sinks["one"].calls
    assert len(world.sinks["one"].calls) == 1


def test_a_sink_that_raises_commits_nothing(world: World) -> None:
    """Delivered or not, the batch is not committed; it comes again under the same id."""
    take = world.sinks["tails"]

    def refuse(rows: pa.Table, delivery: object) -> None:
        raise RuntimeError("the sink is full")

    world.sinks["tails"] = refuse  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="the sink is full"):
        world.batch(0, one(1))
    world.sinks["tails"] = take
    world.batch(0, one(1))
    assert world.state("totals") == {"a": (1, 1)}
    assert [call.id for call in world.sinks["totals"].calls] == ["query/0/0"] * 2


@pytest.mark.parametrize("step", ["before run", "after seal", "after record", "in the sink"])
def test_delivering_after_the_commit_gives_what_was_committed(tmp_path: Path, step: str) -> None:
    """Even a function that differs from run to run delivers exactly the rows whose state was committed."""
    runs: list[int] = []

    def different(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        runs.append(1)
        table = pa.table({"k": ["a"], "last": [len(runs)]})
        return table, table

    schema = pa.schema([("last", pa.int64())])
    function = arrow_function(different, state=schema, output=pa.schema([("k", pa.string()), *schema]))
    operator = operator_of("one", ["k"], function, (), one(1).schema)
    world = World(tmp_path, operators=[operator], deliver_after_commit=True)
    world.batch(0, one(1))
    take = world.sinks["one"]
    if step == "in the sink":
        world.sinks["one"] = lambda *_: (_ for _ in ()).throw(Crash())  # type: ignore[assignment]
    world.crash_at = step
    with pytest.raises(Crash):
        world.batch(1, one(1))
    world.sinks["one"] = take
    for _ in range(2):
        world.start()
        world.batch(1, one(1))
    assert [row["last"] for row in world.delivered("one")][-1:] == [world.state("one")["a"][0]]
    assert len(world.delivered("one")) == 2


def test_a_changed_schema_is_refused_and_both_are_shown(world: World) -> None:
    """State columns that differ from the stored ones: keep them, or take another store name."""
    world.batch(0, one(1))
    world.operators = [operator_of("totals", ["k"], aggregate(n=count()), (), one(1).schema)]
    world.start()
    with pytest.raises(ConfigError, match="has another schema") as caught:
        world.batch(1, one(1))
    assert "stored:" in caught.value.problem
    assert "declared: k: string | n: int64" in caught.value.problem
    world.operators = [totals()]
    world.start()
    assert world.batch(1, one(1)).decision == "run"


def test_a_store_that_is_left_out_for_a_while_is_kept(world: World) -> None:
    """One operator less in a batch: its state stays as it is and goes on later."""
    world.batch(0, one(1))
    sinks, operators = world.sinks, world.operators
    world.operators, world.sinks = operators[:1], {"totals": sinks["totals"]}
    world.start()
    world.batch(1, one(2))
    world.operators, world.sinks = operators, sinks
    world.start()
    world.batch(2, one(3))
    assert world.state("totals") == {"a": (3, 6)}
    assert world.state("tails") == {"a": ([1, 3],)}


def test_executors_come_and_go_between_batches(tmp_path: Path) -> None:
    """No restart, no state lost, whoever owns what; a member that returns on its folder folds what it missed."""
    world, oracle = World(tmp_path, executors=["1"]), Oracle()
    history = History(world)
    changes = [("add", "2"), ("add", "3"), ("lose", "1"), ("add", "4"), ("lose", "2"), ("add", "5"), ("lose", "3")]
    for version, (what, name) in enumerate(changes):
        rows = rows_of(*((f"k{n}", n, version * 100 + n) for n in range(20)))
        oracle.feed(rows)
        world.batch(version, rows)
        history.look()
        world.cluster.add(name, 2) if what == "add" else world.cluster.lose(name, disk=name == "2")
    assert world.state("totals") == oracle.totals


def test_a_batch_makes_a_known_number_of_requests(world: World) -> None:
    """One put a slot that wrote, the check before the sink and the commit: no list, nothing read."""
    rows = rows_of(*((f"k{n}", n, n) for n in range(30)))
    world = World(world.local_dir / "quiet", snapshot_chain_links=1000, retained_versions=100)
    world.batch(0, rows)
    world.batch(1, rows)
    for version in range(2, 6):
        before = dict(world.memory.requests)
        assert world.batch(version, rows).slots_that_wrote == 4
        sent = {kind: number - before[kind] for kind, number in world.memory.requests.items()}
        assert sent == {"put": 4 + 1, "head": 1, "get": 0, "list": 0, "delete": 0}


def test_a_claim_that_another_driver_overtook_is_fenced(world: World) -> None:
    """Two drivers claim at once: one of them is told, before it runs anything."""
    world.batch(0, one(1))
    world.start()
    world.store.script(Fault("request_lost", "put", paths.LOG, times=5))
    with pytest.raises(UnavailableError):
        world.batch(1, one(2))
    late = world.driver, world.run_id
    world.start()
    world.batch(1, one(2))
    world.driver, world.run_id = late
    assert world.batch(1, one(2)).decision == "repeat"
    assert world.state("totals") == {"a": (2, 3)}


def _with_error(answer: pa.Table, kind: str) -> pa.Table:
    receipt = Receipt.from_json(answer.column(RECEIPT)[-1].as_py())
    told = replace(receipt, error=(kind, "a test asked for it", "", ""))
    place = answer.column_names.index(RECEIPT)
    column = pa.array([*[None] * (answer.num_rows - 1), told.to_json()], pa.string())
    return answer.set_column(place, answer.schema.field(place), column)


def test_zombies_of_older_drivers_change_nothing(world: World) -> None:
    """Attempts that outlive their driver, their batch and their executor's turn: nothing of theirs is ever listed."""
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
