"""The gate before batches, with real threads: a closed gate holds batches, and a stop ends the wait."""

from __future__ import annotations

import threading
import time

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.spark.engine.background import Gate, Stopped

SOON = 60.0


def never() -> bool:
    """Return that the query is not stopped."""
    return False


def test_a_closed_gate_holds_a_batch_until_it_is_opened() -> None:
    """A batch waits while the gate is closed and runs once it is open. Closing the gate twice has no further effect."""
    gate, through = Gate(), threading.Event()

    def batch() -> None:
        with gate.batch(never):
            through.set()

    gate.close()
    gate.close()
    waiting = threading.Thread(target=batch)
    waiting.start()
    assert not through.wait(0.3)
    gate.open()
    assert through.wait(SOON)
    waiting.join(SOON)


def test_a_stop_ends_the_wait_of_a_paused_query() -> None:
    """A query that is stopped while it is paused does not hang."""
    gate, stop_requested = Gate(), threading.Event()
    gate.close()
    raised: list[BaseException] = []

    def batch() -> None:
        try:
            with gate.batch(stop_requested.is_set):
                pass
        except Stopped as stop:
            raised.append(stop)

    waiting = threading.Thread(target=batch)
    waiting.start()
    stop_requested.set()
    waiting.join(SOON)
    assert len(raised) == 1
    assert gate.closed


def test_one_batch_is_let_through_at_a_time() -> None:
    """A batch of a second thread waits for the first. Its wait ends if the query is stopped."""
    gate, order, inside, go_on = Gate(), list[str](), threading.Event(), threading.Event()

    def batch(name: str) -> None:
        with gate.batch(never):
            inside.set()
            order.append(f"{name} in")
            go_on.wait(SOON)
            order.append(f"{name} out")

    both = [threading.Thread(target=batch, args=[name]) for name in ("a", "b")]
    both[0].start()
    assert inside.wait(SOON)
    both[1].start()
    with pytest.raises(Stopped), gate.batch(lambda: True):
        pass
    time.sleep(0.3)
    go_on.set()
    for each in both:
        each.join(SOON)
    assert order == ["a in", "a out", "b in", "b out"]


def test_quiet_waits_for_the_running_batch_and_holds_the_next() -> None:
    """A quiet block starts after the running batch, and the next batch starts after the block."""
    gate, order, inside, go_on = Gate(), list[str](), threading.Event(), threading.Event()

    def batch() -> None:
        with gate.batch(never):
            inside.set()
            go_on.wait(SOON)
            order.append("batch")

    first = threading.Thread(target=batch)
    first.start()
    assert inside.wait(SOON)
    gate.close()
    threading.Timer(0.2, go_on.set).start()
    with gate.quiet(SOON):
        order.append("quiet")
        second = threading.Thread(target=batch)
        second.start()
        gate.open()
        time.sleep(0.3)
        order.append("still quiet")
    second.join(SOON)
    assert order == ["batch", "quiet", "still quiet", "batch"]


def test_waiting_for_a_batch_that_does_not_end_times_out() -> None:
    """Waiting for the running batch has a timeout, and its error names what to do."""
    gate, inside, go_on = Gate(), threading.Event(), threading.Event()

    def batch() -> None:
        with gate.batch(never):
            inside.set()
            go_on.wait(SOON)

    running = threading.Thread(target=batch)
    running.start()
    assert inside.wait(SOON)
    with pytest.raises(UnavailableError, match="RIFFLE-0274"), gate.quiet(0.1):
        pass
    go_on.set()
    running.join(SOON)
