"""Key-groups without rows are visited if a timer is due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.batch_times import TimeMode
from riffle_spark.messages.slot_orders import Order
from riffle_spark.state.log.manifest import Entry
from riffle_spark.worker.run_computation import due_key_groups
from tests.kit.worker.slot_member import Member, kept_last

TIMERS = {5: 100, 2: 200, 9: 201, 1: None, 3: 0}
"""The due time of the earliest timer of each key-group."""


def order(folder: Path, mode: TimeMode, **times: int | None) -> Order:
    """Return an order of two slots. Slot 1 has key-group 3, and slot 0 the other key-groups."""
    entries = {key_group: Entry(timer_ms=timer) for key_group, timer in TIMERS.items()}
    slots = {0: (9, 5, 2, 1, 4), 1: (3,)}
    return replace(Member(folder, kept_last()).order(), time_mode=mode, slots=slots, entries=entries, **times)  # type: ignore[arg-type]


def test_a_timer_is_due_from_its_millisecond_on(tmp_path: Path) -> None:
    """A timer is due from its millisecond on, as in Spark. Due key-groups are sorted, and only those of the slot."""
    assert due_key_groups(order(tmp_path, "ProcessingTime", time_ms=99), 0) == ()
    assert due_key_groups(order(tmp_path, "ProcessingTime", time_ms=100), 0) == (5,)
    assert due_key_groups(order(tmp_path, "ProcessingTime", time_ms=200), 0) == (2, 5)
    assert due_key_groups(order(tmp_path, "ProcessingTime", time_ms=200), 1) == (3,)


def test_event_time_timers_depend_only_on_the_watermark(tmp_path: Path) -> None:
    """Event-time timers depend only on the watermark, which is 0 before the first one, as in Spark."""
    assert due_key_groups(order(tmp_path, "EventTime", time_ms=10**12, watermark_ms=100), 0) == (5,)
    assert due_key_groups(order(tmp_path, "EventTime", time_ms=10**12, watermark_ms=None), 0) == ()
    assert due_key_groups(order(tmp_path, "EventTime", time_ms=10**12, watermark_ms=None), 1) == (3,)


def test_a_last_pass_visits_key_groups_due_at_its_later_watermark(tmp_path: Path) -> None:
    """The last pass also visits key-groups that are due at its later watermark."""
    last = order(tmp_path, "EventTime", watermark_ms=100, last_pass_ms=201)
    assert due_key_groups(last, 0) == (2, 5, 9)
    assert due_key_groups(order(tmp_path, "EventTime", watermark_ms=200, last_pass_ms=0), 0) == (2, 5)


@pytest.mark.parametrize("times", [{"time_ms": 10**12, "watermark_ms": 10**12, "last_pass_ms": 10**12}])
def test_no_key_group_is_due_with_time_mode_none(tmp_path: Path, times: dict[str, int]) -> None:
    """With time mode `None`, no key-group is due."""
    quiet = order(tmp_path, "None", **times)
    assert (due_key_groups(quiet, 0), due_key_groups(quiet, 1)) == ((), ())
