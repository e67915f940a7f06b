"""A slot measures the seconds of each step, and the batch report sums them by executor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import UserFunctionError
from riffle_spark.messages.slot_orders import Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.batch.batch_report import sums_of_receipts
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.worker import slot
from tests.kit.worker.slot_member import OUTPUT, STATE, Member, keep_last, kept_last, rows_of

LONG = 1_000.0
"""Seconds that no step in a test takes otherwise."""
EVERY = ["touch", "fold", "read", "compute", "user", "seal", "put"]


class Clock:
    """A clock for slots that tests can advance."""

    passed = 0.0

    def perf_counter(self) -> float:
        """Return the seconds of the clock."""
        return time.perf_counter() + self.passed

    def move(self) -> None:
        """Advance the clock by a long time."""
        self.passed += LONG

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with a long duration."""

        def slow(*args: Any, **options: Any) -> Any:
            self.move()
            return call(*args, **options)

        return slow


CLOCK = Clock()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let slots use a clock that the test can advance."""
    monkeypatch.setattr(slot, "time", CLOCK)
    return CLOCK


def long_steps(receipt: Receipt) -> dict[str, int]:
    """Return the steps that took long, and how many long times each took."""
    assert receipt.error is None
    return {name: int(seconds // LONG) for name, seconds in receipt.seconds.items() if seconds >= LONG}


def test_the_time_of_a_function_counts_as_user(tmp_path: Path, clock: Clock) -> None:
    """The time of a user function counts as `user`, for each call."""
    member = Member(tmp_path, arrow_function(clock.around(keep_last), state=STATE, output=OUTPUT))
    _, receipt = member.answer(rows_of(("a", 1, 0), ("b", 2, 0)))
    assert long_steps(receipt) == {"user": len(receipt.parts)}
    assert sorted(receipt.seconds) == sorted(EVERY)


def test_a_slow_put_counts_as_put_and_a_slow_fetch_as_fold(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow put counts as `put`. A slow fetch by another member counts as `fold`."""
    member = Member(tmp_path / "a", kept_last())
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "put_if_absent", clock.around(MemoryStore.put_if_absent))
        _, receipt = member.answer(rows_of(("a", 1, 0)))
    assert long_steps(receipt) == {"put": 1}
    member.commit(receipt)
    member.home = replace(member.home, local_dir=str(tmp_path / "b"))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "get", clock.around(MemoryStore.get))
        _, receipt = member.answer(rows_of(("a", 2, 0)), "2")
    assert receipt.restores + receipt.folds > 0
    assert long_steps(receipt) == {"fold": 1}


def test_the_receipt_of_a_failed_slot_has_the_time_of_the_function(tmp_path: Path, clock: Clock) -> None:
    """The receipt of a failed slot has the time of the user function."""

    def fail(_rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        clock.move()
        raise ValueError("no")

    _, receipt = Member(tmp_path, arrow_function(fail, state=STATE, output=OUTPUT)).answer(rows_of(("a", 1, 0)))
    assert receipt.error is not None
    assert receipt.error[0] == UserFunctionError.__name__
    assert receipt.seconds["user"] >= LONG


def test_the_report_sums_steps_by_executor() -> None:
    """The report sums the steps of all slots of an executor, also of slots that did not complete."""
    seconds = dict(zip(EVERY, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), strict=True))
    first = Receipt("totals", 0, "1-a", 0, "m", "1", seconds=seconds)
    early = replace(first, slot=1, seconds={"touch": 0.5})
    other = replace(first, slot=2, executor="2")
    whole = {"decode": 1.0, "user_code": 16.0, "state": 14.0, "commit": 96.0}
    steps = sums_of_receipts([first, early, other])["executor_steps"]
    assert steps == {"1": {**whole, "decode": 1.5}, "2": whole}
