"""Two threads hand over plans of upkeep. Whatever their interleaving, no plan is lost and nothing raises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.messages.upkeep_orders import Drop, Follow, UpkeepOrder, UpkeepReceipt, overdue_receipt
from riffle_spark.protocol.upkeep import rounds as module
from riffle_spark.protocol.upkeep.rounds import Rounds
from riffle_spark.state.log.manifest import EMPTY
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.testing import InlineBackground, ManualClock, SimCluster, home_of
from riffle_spark.testing.simulation import InlineLock


class DropRecorder(SimCluster):
    """A cluster that reports each drop as done and records it."""

    def __init__(self) -> None:
        super().__init__(home_of("memory://handover", Path("unused")), MemoryStore())
        self.dropped: list[int] = []

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Record the drops and return receipts for them."""
        drops = [drop for order in orders.values() for drop in order.drops]
        self.dropped += [drop.key_group for drop in drops]
        dropped_copies = tuple((drop.store, drop.key_group) for drop in drops)
        return [UpkeepReceipt(name, member=f"m{name}", missing=dropped_copies) for name in orders]


class Handover:
    """Rounds with one submitted plan."""

    def __init__(self) -> None:
        self.cluster, self.background = DropRecorder(), InlineBackground(deferred=True)
        self.rounds = Rounds(self.cluster, self.background, ManualClock())
        self.plan(1)

    def plan_another(self) -> None:
        """Submit a second plan."""
        self.plan(2)

    def plan(self, key_group: int, epoch: int = 1) -> None:
        """Submit a plan that drops one copy."""
        order = UpkeepOrder(self.cluster.home, "", epoch, 0, {}, drops=(Drop("s", key_group, None),))
        self.rounds.submit({"1": order}, 0)

    def is_free(self) -> bool:
        """Return whether another thread could continue now, because the lock is free."""
        lock = self.rounds._lock
        assert isinstance(lock, InlineLock)
        return not lock.held


def between_steps(
    run: Callable[[], object], other: Callable[[], object], step: int, is_free: Callable[[], bool]
) -> bool:
    """Run ``run``, and ``other`` after ``step`` byte-code steps in ``Rounds``, as soon as the lock is free. Return
    whether ``other`` ran.
    """
    seen, done = 0, False

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal seen, done
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not done:
            seen += 1
            if seen > step and is_free():
                done = True
                other()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        run()
    finally:
        sys.settrace(before)
    return done


def test_a_plan_submitted_at_any_step_of_the_thread_is_run() -> None:
    """A plan that is submitted at any step of the running thread is run."""
    step = 0
    while True:
        handover = Handover()
        planned = between_steps(handover.background.run, handover.plan_another, step, handover.is_free)
        if not planned:
            break
        handover.background.run()
        assert set(handover.cluster.dropped) == {1, 2}, f"the plan made at step {step} was not run"
        assert not [result for result in handover.background.collect() if isinstance(result, Exception)]
        step += 1
    assert step > 50, "too few steps were traced to show anything"


def test_no_plan_is_lost_if_the_thread_takes_one_during_a_submit() -> None:
    """If the running thread takes the waiting plan at any step of a submit, no plan is lost."""
    step = 0
    while True:
        handover = Handover()
        ran = between_steps(handover.plan_another, handover.background.run, step, handover.is_free)
        handover.background.run()
        assert set(handover.cluster.dropped) == {1, 2}, f"a plan was lost when upkeep ran at step {step}"
        if not ran:
            break
        step += 1
    assert step > 20, "too few steps were traced to show anything"


def test_forget_resets_the_failures_of_a_member() -> None:
    """After `forget`, failed work is tried without a delay."""
    handover = Handover()
    handover.background.run()
    rounds, now = handover.rounds, 0.0
    order = UpkeepOrder(handover.cluster.home, "", 1, 0, {}, follows=(Follow("s", 0, EMPTY),))
    rounds.setbacks.record_results(
        {"1": order}, [UpkeepReceipt("1", unfinished=(("s", 0, 0, 0),), failed=(("s", 0),))], now
    )
    assert not rounds.setbacks.without_delayed({"1": order}, now)
    rounds.forget()
    assert rounds.setbacks.without_delayed({"1": order}, now) == {"1": order}


def lose_a_round(handover: Handover, monkeypatch: pytest.MonkeyPatch, answers: list[UpkeepReceipt]) -> None:
    """Let the first round end with these answers, or with an error if there are none, while another plan waits."""

    def lost(_: object) -> list[UpkeepReceipt]:
        monkeypatch.undo()
        handover.plan_another()
        if not answers:
            raise UnavailableError("a job on the executors failed: no core was free for it")
        return answers

    monkeypatch.setattr(handover.cluster, "upkeep", lost)
    handover.background.run()


@pytest.mark.parametrize(
    "answers", [[], [overdue_receipt("2", 1.0)]], ids=["failed job", "another executor is overdue"]
)
def test_drops_of_a_lost_round_are_sent_with_a_later_plan(
    monkeypatch: pytest.MonkeyPatch, answers: list[UpkeepReceipt]
) -> None:
    """The drops of a lost round are sent with a later plan."""
    handover = Handover()
    lose_a_round(handover, monkeypatch, answers)
    handover.plan(3)
    handover.background.run()
    assert sorted(handover.cluster.dropped) == [1, 2, 3]


def test_drops_without_time_are_sent_with_a_later_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops that a round had no time for are sent with a later plan."""
    handover = Handover()
    lose_a_round(handover, monkeypatch, [UpkeepReceipt("1", member="m1", drops_left=1)])
    handover.plan(3)
    handover.background.run()
    assert sorted(handover.cluster.dropped) == [1, 2, 3]


def test_drops_of_an_earlier_run_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops of an earlier run are not sent again, because its copies are not in an assignment yet (I9)."""
    handover = Handover()
    lose_a_round(handover, monkeypatch, [])
    handover.rounds.submit({}, 0)
    handover.background.run()
    handover.plan(3, epoch=2)
    handover.background.run()
    assert sorted(handover.cluster.dropped) == [2, 3]
