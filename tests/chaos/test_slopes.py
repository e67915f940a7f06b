"""Whether something grows is told from samples that scatter, have teeth and odd ones out."""

from __future__ import annotations

import random

import pytest

from tests.chaos.slopes import slope_of

TIMES = [30.0 * number for number in range(60)]
"""Half an hour."""
CHANCE = random.Random(4)


def values(level: float, a_minute: float = 0.0, scatter: float = 0.0, teeth: float = 0.0) -> list[float]:
    """Return what grows, scatters and falls back every ten samples."""
    line = (level + at / 60 * a_minute + teeth * (number % 10) for number, at in enumerate(TIMES))
    return [one + CHANCE.uniform(-scatter, scatter) for one in line]


@pytest.mark.parametrize(
    ("given", "flat"),
    [
        (values(500), True),
        (values(500, scatter=20), True),
        (values(500, teeth=8), True),
        (values(100, a_minute=-3), True),
        (values(100, a_minute=0.05), True),
        (values(500, a_minute=2), False),
        (values(500, a_minute=4, scatter=10), False),
        (values(100, a_minute=1), False),
        ([5.0] * 20 + [6.0] * 10 + [500.0] + [6.0] * 29, True),
    ],
    ids=[
        "constant", "scatters", "saws", "shrinks", "a leak in a hundred batches", "grows", "grows and scatters",
        "a little, often", "one sample that is far off",
    ],
)  # fmt: skip
def test_what_grows_is_found(given: list[float], flat: bool) -> None:
    """A growth is found that is more than a share of the level, the scatter and what is always flat."""
    assert slope_of("x", TIMES, given, least=5.0).is_flat == flat


def test_warming_up_does_not_count() -> None:
    """What grows at the beginning alone is flat, and the line says so in words."""
    found = slope_of("threads", TIMES, [min(number, 15) * 10.0 for number in range(60)], least=1.0)
    assert (found.growth, found.level, found.per_hour) == (0, 150, 0)
    assert str(found).endswith("flat")
    assert "GROWS" in str(slope_of("threads", TIMES, values(10, a_minute=1), least=1.0))
