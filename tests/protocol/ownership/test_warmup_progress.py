"""The estimate of the time until warm-ups have caught up."""

from __future__ import annotations

import pytest

from riffle_spark.protocol.ownership.groups import task
from riffle_spark.protocol.ownership.readiness import Readiness
from riffle_spark.protocol.ownership.warmup_progress import WarmupProgress


def warmup(key_group: int, size: int, member: str = "m") -> Readiness:
    """Return a warm-up that lacks the given bytes."""
    return Readiness(key_group, member, "warmup", size, size, warm=False)


def test_the_estimate_uses_the_speed_of_the_last_minute() -> None:
    """The estimate is the bytes left divided by the speed of the last minute."""
    progress = WarmupProgress()
    progress.record([warmup(0, 1_000), warmup(1, 600)], 0)
    assert progress.remaining_seconds("m") is None
    progress.record([warmup(0, 500), warmup(1, 600)], 5)
    progress.record([warmup(1, 600)], 10)
    assert progress.remaining_bytes("m") == 600
    assert progress.remaining_seconds("m") == pytest.approx(600 / 50), "a cancelled warm-up does not count as fetched"
    progress.record([warmup(1, 100)], 10)
    assert progress.remaining_seconds("m") == pytest.approx(100 / 100)


def test_a_warm_up_without_progress_has_no_estimate() -> None:
    """After a minute without progress the time is unknown."""
    progress = WarmupProgress()
    for now in (0, 30, 91, 152):
        progress.record([warmup(0, 900 if now else 1_000)], now)
    assert progress.remaining_seconds("m") is None


def test_bytes_of_incomplete_copies_count_as_fetched() -> None:
    """Bytes of a partly fetched snapshot count as fetched."""
    progress = WarmupProgress()
    progress.record([warmup(0, 1_000)], 0)
    progress.record_partial("m", {task(0): 400})
    progress.record([warmup(0, 1_000)], 4)
    assert progress.remaining_bytes("m") == 600
    assert progress.remaining_seconds("m") == pytest.approx(6)


def test_a_member_without_warm_ups_has_nothing_left_to_fetch() -> None:
    """A member without warm-ups has nothing left to fetch."""
    progress = WarmupProgress()
    progress.record([warmup(0, 10, "a"), Readiness(1, "b", "standby", 5, 5, warm=False)], 0)
    assert (progress.remaining_bytes("a"), progress.remaining_bytes("b")) == (10, 0)
    assert progress.remaining_seconds("b") == 0
