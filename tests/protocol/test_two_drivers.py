"""With two drivers on one root and unclear commits, the log has one line of records (I3, I4)."""

from __future__ import annotations

import pytest

from riffle_spark.errors import FencedError, UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.testing import SimWork
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import Crash, World, one_row
from tests.kit.state.faulty_store import Fault

STEPS = ("before run", "after seal", "after sink", "after record")


@pytest.mark.parametrize("step", STEPS)
def test_a_second_driver_fences_the_first_at_any_step_i4(world: World, step: str) -> None:
    """I4: after another driver's claim, the first driver commits nothing more and stays fenced."""
    history = History(world)
    world.batch(0, one_row(1))

    def intrude() -> None:
        world.at_step = {}
        first.append(world.driver)
        world.start()
        work = SimWork(world.cluster, one_row(2), world.operators, world.sinks)
        world.driver.process(world.incoming(1), world.operators, work)

    first: list[object] = []
    run_id = world.run_id
    world.at_step = {step: intrude}
    if step == "after record":
        world.batch(1, one_row(2))
    else:
        with pytest.raises(FencedError, match=r"RIFFLE-0208|RIFFLE-0422"):
            world.batch(1, one_row(2))
    history.look()
    second, world.driver = world.driver, first[0]  # type: ignore[assignment]
    calls = len(world.sinks["totals"].calls)
    for version in (2,) if step == "after record" else (1, 2):
        with pytest.raises(FencedError):
            world.batch(version, one_row(9), run_id=run_id)
    assert len(world.sinks["totals"].calls) == calls, "a fenced driver reached its sink"
    world.driver = second
    world.batch(2, one_row(4))
    history.look()
    assert world.state("totals") == {"a": (3, 7)}


@pytest.mark.usefixtures("short_cycles")
def test_a_driver_that_paused_during_its_first_claim_is_fenced_i4(world: World) -> None:
    """I4: while a driver pauses during its first claim, another driver runs and deletes that record. The first driver
    is fenced and deletes nothing.
    """
    history = History(world)

    def go_on() -> None:
        world.start()
        for version in range(8):
            world.batch(version, one_row(1))
            history.look()
        world.clock.advance(60)

    world.store.script(Fault("slow", "put", paths.record_name(0)))
    world.store._sleep = lambda _: go_on()  # Another driver appends while this call is slow.
    with pytest.raises(FencedError, match="RIFFLE-0422"):
        world.batch(0, one_row(1))
    assert paths.record_name(0) not in world.memory.list(paths.LOG)
    world.background.run()
    history.look()
    world.start()
    world.batch(8, one_row(1))
    history.look()
    assert world.state("totals") == {"a": (9, 9)}


@pytest.mark.parametrize("trusted", [45.0, 61.0])
def test_a_driver_keeps_records_that_an_older_driver_may_use_i4(
    world: World, monkeypatch: pytest.MonkeyPatch, trusted: float
) -> None:
    """I4: a driver with ``retained_for = 0`` keeps records that an older driver with other settings may still use."""
    full_record_every(16, monkeypatch)
    history = History(world)
    for version in range(2):
        world.batch(version, one_row(1))
    first = world.driver, world.run_id, world.background

    def stand_still() -> None:
        world.at_step = {}
        began = world.clock.seconds()
        world.start()
        for version in range(2, 42):
            world.batch(version, one_row(1))
            history.look()
        world.background.run()
        world.clock.advance(trusted - (world.clock.seconds() - began))
        world.driver, world.run_id, world.background = first

    world.at_step = {"before run": stand_still}
    with pytest.raises(FencedError, match="RIFFLE-0208"):
        world.batch(2, one_row(9))
    history.look()
    assert world.state("totals") == {"a": (42, 42)}
    assert len(world.sinks["totals"].calls) == 42, "a fenced driver called its sink"


def test_a_fenced_query_can_start_again_in_the_same_process(world: World) -> None:
    """A fenced query can start again in the same process with a new claim."""
    world.batch(0, one_row(1))
    old = world.driver, world.run_id
    world.start()
    world.batch(1, one_row(2))
    world.driver, world.run_id = old
    for _ in range(2):
        with pytest.raises(FencedError):
            world.batch(1, one_row(2))
    world.run_id = "started again"
    assert world.batch(1, one_row(2)).decision == "repeat"
    assert world.batch(2, one_row(4)).decision == "run"


@pytest.mark.parametrize(
    ("kind", "same_run"), [("answer_lost", True), ("request_lost", False), ("late", True), ("late", False)]
)
@pytest.mark.sample(step=2)
def test_no_batch_runs_until_an_unclear_commit_is_resolved(world: World, kind: str, same_run: bool) -> None:
    """After an unclear commit, no batch runs until the record is known. The batch is a repeat, and rows count once."""
    for version in range(2):
        world.batch(version, one_row(1))
    record = paths.record_name(3)
    world.store.script(Fault(kind, "put", record), Fault("unavailable", "put", record, times=None))  # type: ignore[arg-type]
    world.store.script(Fault("unavailable", "get", record, times=None))
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.batch(2, one_row(1))
    ran = len(world.steps)
    with pytest.raises(UnavailableError, match="RIFFLE-0421"):
        world.batch(2, one_row(1))
    assert len(world.steps) == ran, "the batch was run while its commit is unclear"
    world.store.heal()
    world.store.land()
    if not same_run:
        world.run_id = "started again"
    assert world.batch(2, one_row(1)).decision == "repeat"
    for version in range(3, 26):
        world.batch(version, one_row(1, f"k{version % 3}"))
    History(world).check_listed_objects()
    assert world.state("totals")["a"] == (3, 3)


def test_a_lost_claim_is_not_used_after_the_claim_of_another_driver(world: World) -> None:
    """A claim whose put was lost is not used after another driver's claim. The query claims again."""
    world.batch(0, one_row(1))
    world.start()
    world.store.script(Fault("request_lost", "put", paths.LOG, times=5))
    with pytest.raises(UnavailableError):
        world.batch(1, one_row(2))
    late = world.driver, world.run_id
    world.start()
    world.batch(1, one_row(2))
    world.driver, world.run_id = late
    assert world.batch(1, one_row(2)).decision == "repeat"
    assert world.state("totals") == {"a": (2, 3)}


def test_an_unclear_commit_is_given_up_after_the_claim_of_another_driver(world: World) -> None:
    """A batch whose put was lost is not committed after another driver's claim, and the driver is fenced."""
    world.batch(0, one_row(1))
    world.store.script(
        Fault("request_lost", "put", paths.LOG, times=5), Fault("unavailable", "get", paths.LOG, times=5)
    )
    with pytest.raises(UnavailableError):
        world.batch(1, one_row(2))
    late = world.driver, world.run_id
    world.store.heal()
    world.start()
    world.batch(1, one_row(2))
    world.driver, world.run_id = late
    with pytest.raises(FencedError):
        world.batch(1, one_row(2))
    assert world.state("totals") == {"a": (2, 3)}


@pytest.mark.parametrize("step", ["before run", "after seal", "after sink"])
@pytest.mark.usefixtures("nothing_is_young")
@pytest.mark.sample(step=2)
def test_a_driver_that_paused_until_records_were_deleted_is_fenced_i4(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """I4: after a long pause the record number of a driver is free again. The driver is fenced, commits nothing, and
    its records do not stop deletes of the others.
    """
    full_record_every(16, monkeypatch)
    for version in range(3):
        world.batch(version, one_row(1))
    first = world.driver, world.run_id, world.background

    def stand_still() -> None:
        world.at_step = {}
        world.start()
        for version in range(3, 41):
            world.batch(version, one_row(1))
        log.append(world.memory.list("log/"))
        world.driver, world.run_id, world.background = first

    log: list[list[str]] = []
    world.at_step = {step: stand_still}
    with pytest.raises(FencedError, match=r"RIFFLE-0208|RIFFLE-0422"):
        world.batch(3, one_row(9))
    assert paths.record_name(4) not in log[0], "the record number is free"
    assert world.memory.list("log/") == log[0]
    assert world.state("totals") == {"a": (41, 41)}
    assert len(world.sinks["totals"].calls) == 41 + (step == "after sink"), "only a paused sink was called"


@pytest.mark.parametrize("step", ["before run", "after sink"])
def test_a_driver_that_paused_while_the_root_was_restored_is_fenced_i4(world: World, step: str) -> None:
    """I4: during a long pause the root is restored from a backup, and another driver's record gets the number of the
    first driver's newest record. The first driver is fenced and commits nothing.
    """
    for version in range(3):
        world.batch(version, one_row(1))
    backup = {name: world.memory.get(name) or b"" for name in world.memory.list("")}
    world.batch(3, one_row(10))
    first = world.driver, world.run_id

    def restore_root() -> None:
        world.at_step = {}
        world.memory.delete(world.memory.list(""))
        for name, data in backup.items():
            world.memory.put_if_absent(name, data)
        world.start()
        world.crash_at = "before run"
        with pytest.raises(Crash):
            world.batch(3, one_row(1))
        world.clock.advance(60)
        second.extend([world.driver, world.run_id])
        world.driver, world.run_id = first

    second: list[object] = []
    world.at_step = {step: restore_root}
    with pytest.raises(FencedError, match=r"RIFFLE-0208|RIFFLE-0422"):
        world.batch(4, one_row(100))
    world.driver, world.run_id = second  # type: ignore[assignment]
    world.batch(3, one_row(1))
    assert world.state("totals") == {"a": (4, 4)}
