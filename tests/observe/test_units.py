"""The commands and the status page show numbers with readable units."""

from __future__ import annotations

import pytest

from riffle_spark.observe.units import show_bytes, show_count, show_duration, show_percent, show_time


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.35, "350 ms"),
        (0.9996, "1 s"),
        (4.2, "4.2 s"),
        (59.96, "1 min"),
        (185, "3 min 5 s"),
        (3599.7, "1 h"),
        (7500, "2 h 5 min"),
        (86_399, "1 d"),
        (187_200, "2 d 4 h"),
        (-1.5, "-1.5 s"),
    ],
)
def test_a_duration_has_one_or_two_units(seconds: float, shown: str) -> None:
    """A duration is rounded to its smaller unit. A value that rounds up to the next unit is shown in that unit."""
    assert show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1 << 20, "1.00 MiB"),
        (1_342_177_280, "1.25 GiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_a_size_has_three_digits_and_a_binary_unit(size: int, shown: str) -> None:
    """A size is shown in its largest fitting binary unit with three digits."""
    assert show_bytes(size) == shown


def test_counts_have_separators_and_small_rates_a_decimal() -> None:
    """A count has separators and no decimals. A rate below ten has two significant digits."""
    shown = {0: "0", 1234: "1,234", 2.0: "2", 0.25: "0.25", 0.0003408: "0.00034", 8.86: "8.9", 1234.5: "1,234"}
    assert {number: show_count(number) for number in shown} == shown


def test_a_share_is_shown_as_a_whole_percent() -> None:
    """A share is shown as a whole percent."""
    assert show_percent(0.416) == "42 %"


def test_times_outside_the_calendar_are_shown_as_milliseconds() -> None:
    """A time outside the calendar is shown as a number of milliseconds."""
    assert show_time(1_772_373_909_999) == "2026-03-01 14:05:09 UTC"
    assert show_time(-1) == "1969-12-31 23:59:59 UTC"
    assert show_time(2**60) == f"{2**60:,} ms"
