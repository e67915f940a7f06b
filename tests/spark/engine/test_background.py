"""Background threads of the driver: the worker that runs upkeep in order, the pulse, and how both stop."""

from __future__ import annotations

import threading
import time

import pytest

from riffle_spark.spark.engine import background
from riffle_spark.spark.engine.background import Alarm, BackgroundThread, Pulse, SystemClock

SOON_SECONDS = 60
ERRORS = 20
"""After this number of errors, a pause that starts at a millisecond and is never reset would take a minute."""


def ended(worker: BackgroundThread) -> bool:
    """Wait until the worker is idle, for at most a minute, and return whether it is."""
    deadline = time.monotonic() + SOON_SECONDS
    while worker.is_busy() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not worker.is_busy()


def test_work_runs_in_order_and_errors_are_returned_as_results() -> None:
    """Results are in the order of submission. An error does not stop the thread, and each result is collected once."""
    worker, trouble = BackgroundThread(), ValueError("no")

    def fail() -> None:
        raise trouble

    worker.submit(lambda: 1)
    worker.submit(fail)
    worker.submit(lambda: 3)
    assert ended(worker)
    assert worker.collect() == [1, trouble, 3]
    assert worker.collect() == []
    worker.stop()


def test_a_result_is_kept_if_the_driver_collects_while_the_work_runs() -> None:
    """The first ``collect`` after a piece of work has ended returns its result."""
    worker, began, go_on = BackgroundThread(), threading.Event(), threading.Event()

    def work() -> str:
        began.set()
        assert go_on.wait(SOON_SECONDS)
        return "scanned"

    worker.submit(work)
    assert began.wait(SOON_SECONDS)
    assert worker.collect() == []
    go_on.set()
    assert ended(worker)
    assert worker.collect() == ["scanned"]
    worker.stop()


def test_a_stop_ends_running_work_early_and_drops_queued_work() -> None:
    """A stop ends the rest of the running work early. Work that is still queued never runs."""
    worker, resting, ran = BackgroundThread(), threading.Event(), []

    def rest() -> bool:
        resting.set()
        worker.rest(600)
        return True

    worker.submit(rest)
    worker.submit(lambda: ran.append("behind"))
    assert resting.wait(SOON_SECONDS)
    assert worker.is_busy()
    worker.stop()
    worker.stop()
    assert ended(worker)
    worker.submit(lambda: ran.append("after"))
    assert not worker.is_busy()
    assert worker.collect() == [True]
    assert ran == []


def test_a_stop_waits_for_running_work_until_a_timeout() -> None:
    """A stop waits for the running work until its timeout, so a deletion is complete when ``ended`` returns true."""
    worker, began, go_on, done = BackgroundThread(), threading.Event(), threading.Event(), []

    def delete() -> None:
        began.set()
        assert go_on.wait(SOON_SECONDS)
        done.append("deleted")

    worker.submit(delete)
    worker.submit(lambda: done.append("queued"))
    assert began.wait(SOON_SECONDS)
    worker.stop()
    assert not worker.ended(0.05)
    threading.Timer(0.05, go_on.set).start()
    assert worker.ended(SOON_SECONDS)
    assert done == ["deleted"]
    assert BackgroundThread().ended(0)


def test_a_pulse_runs_until_its_function_returns_false_and_can_restart() -> None:
    """A pulse calls its function in one thread until the function returns false. A later ``begin`` starts a
    new thread.
    """
    over = threading.Event()
    beats: list[int] = []

    def beat() -> bool:
        pulse.begin()
        beats.append(threading.get_ident())
        if len(beats) % 3:
            return True
        over.set()
        return False

    pulse = Pulse(beat, 0.001)
    for so_far in (3, 6):
        over.clear()
        pulse.begin()
        assert over.wait(SOON_SECONDS)
        assert pulse.ended(SOON_SECONDS)
        assert len(beats) == so_far
    assert len(set(beats[:3])) == len(set(beats[3:])) == 1
    assert "riffle-pulse" not in [thread.name for thread in threading.enumerate()]


def test_a_stopped_pulse_ends_after_its_current_call_and_never_restarts() -> None:
    """Stopping a pulse waits for the current call until a timeout. A stopped pulse never begins again."""
    began, go_on, beats = threading.Event(), threading.Event(), []

    def beat() -> bool:
        began.set()
        assert go_on.wait(SOON_SECONDS)
        beats.append(1)
        return True

    pulse = Pulse(beat, 0.001)
    pulse.begin()
    assert began.wait(SOON_SECONDS)
    assert not pulse.stop(0.05)
    go_on.set()
    assert pulse.stop(SOON_SECONDS)
    pulse.begin()
    assert pulse.ended(0)
    assert beats == [1]


ENDS = [SystemExit]


@pytest.mark.parametrize("end", ENDS)
def test_the_background_thread_survives_system_exit(end: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """After work raises SystemExit, the next work still runs. The exception is a result, and a warning has its
    traceback.
    """
    worker = BackgroundThread()

    def fail() -> None:
        raise end("of this piece")

    worker.submit(fail)
    worker.submit(lambda: 2)
    assert ended(worker)
    trouble, two = worker.collect()
    assert (type(trouble), two) == (end, 2)
    (warned,) = caplog.records
    assert "RIFFLE-0273" in warned.message
    assert "of this piece" in warned.message
    assert warned.exc_info is not None
    assert warned.exc_info[1] is trouble
    worker.stop()


@pytest.mark.parametrize("end", [*ENDS, ValueError])
def test_a_pulse_continues_after_its_function_raises(
    end: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A pulse whose function raises calls it again in the same thread and logs a warning each time."""
    over, beats = threading.Event(), list[int]()

    def beat() -> bool:
        beats.append(threading.get_ident())
        if len(beats) < 3:
            raise end("of this beat")
        over.set()
        return False

    pulse = Pulse(beat, 0.001)
    pulse.begin()
    assert over.wait(SOON_SECONDS)
    assert pulse.ended(SOON_SECONDS)
    assert (len(beats), len(set(beats)), len(caplog.records)) == (3, 1, 2)


def test_a_successful_call_resets_the_backoff_of_a_pulse() -> None:
    """The pause of a pulse grows with each consecutive error. A successful call resets it."""
    over, beats = threading.Event(), list[int]()

    def beat() -> bool:
        beats.append(len(beats))
        if len(beats) == 2 * ERRORS:
            over.set()
            return False
        if len(beats) % 2:
            raise ValueError("of this beat")
        return True

    pulse = Pulse(beat, 0.001)
    pulse.begin()
    assert over.wait(SOON_SECONDS)
    assert pulse.ended(SOON_SECONDS)


@pytest.mark.parametrize("end", ENDS)
def test_an_alarm_calls_its_function_again_after_an_error(
    end: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """An alarm whose function raises calls it again."""
    rung, rings = threading.Event(), list[int]()

    def ring() -> None:
        rings.append(1)
        if len(rings) == 1:
            raise end("of this ring")
        rung.set()

    alarm = Alarm(ring)
    alarm.set(0)
    assert rung.wait(SOON_SECONDS)
    alarm.stop()
    assert len(caplog.records) == 1


def test_an_alarm_waits_for_a_distant_time_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm for a distant time waits in several steps, and calls its function once, at that time."""
    monkeypatch.setattr(background, "_LONGEST_WAIT_SECONDS", 0.01)
    clock, rung, rings = SystemClock(), threading.Event(), list[int]()

    def ring() -> None:
        rings.append(clock.wall_ms())
        rung.set()

    alarm, due_ms = Alarm(ring), clock.wall_ms() + 100
    alarm.set(due_ms)
    assert rung.wait(SOON_SECONDS)
    assert not any(time_ms < due_ms for time_ms in rings)
    alarm.stop()
    alarm.set(clock.wall_ms())
    time.sleep(0.05)
    assert len(rings) == 1, "a stopped alarm accepts no new time"
