"""Whether something grows is told from samples that scatter, have teeth and odd ones out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from riffle_spark.errors import ConfigError
from tests.chaos.__main__ import main as chaos
from tests.chaos.driver_app import QUERIES
from tests.chaos.room import SETTINGS
from tests.chaos.slopes import slope_of
from tests.chaos.steady import filling_batches, main, slopes

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


def test_what_is_left_out_may_be_more() -> None:
    """Growth before the first sample that counts is none, and growth after it is found."""
    fills = [min(number, 40) * 10.0 for number in range(60)]
    assert not slope_of("x", TIMES, fills, least=1.0).is_flat
    assert slope_of("x", TIMES, fills, least=1.0, first=40).growth == 0
    assert not slope_of("x", TIMES, values(100, a_minute=1), least=1.0, first=30).is_flat


def test_steady_judges_once_what_is_retained_is_there() -> None:
    """From the batch on that the settings say, by the slowest query; a run that has few samples after it is refused."""
    filling = filling_batches(SETTINGS, trigger_seconds=3.0)
    assert filling == 128, "more than the 20 of a chain, the 40 that are retained and twice 16 to delete them"
    longer = {**SETTINGS, "retained_for": "10 min"}
    assert filling_batches(longer, trigger_seconds=3.0) == 20 + 200 + 32

    def samples(a_sample: float) -> list[dict[str, float]]:
        done = [number * a_sample for number in range(60)]
        batches = [{"batches of totals": n, "batches of visits": n * 2, "batches of windows": n * 2} for n in done]
        return [{**each, "deltas": min(n, filling) * 6} for each, n in zip(batches, done, strict=True)]

    assert [one.name for one in slopes(TIMES, samples(4.0), filling)] == ["deltas"]
    assert slopes(TIMES, samples(4.0), filling)[0].growth == 0
    with pytest.raises(ConfigError, match="takes 128 batches to be there, and the run had 118"):
        slopes(TIMES, samples(2.0), filling)


def test_steady_judges_what_was_not_seen_now_and_then_and_refuses_what_was_hardly_seen() -> None:
    """A growth is found though a sample lacks it; what most samples lack ends the run by its name."""
    samples = [{**dict.fromkeys((f"batches of {query}" for query in QUERIES), 600.0), "heap": n} for n in values(9, 99)]
    del samples[30]["heap"]
    assert [one.is_flat for one in slopes(TIMES, samples, 128)] == [False]
    for one in samples[20:40]:
        one.pop("heap", None)
    with pytest.raises(ConfigError, match="heap was seen in 40 of the 60 samples that count"):
        slopes(TIMES, samples, 128)


@pytest.mark.parametrize("run", [main, chaos])
@pytest.mark.parametrize("asked", [["--minutes", "0"], ["--minutes", "nan"], ["--rate", "0"]])
def test_a_run_in_which_nothing_would_happen_is_refused(run: Callable[[list[str]], int], asked: list[str]) -> None:
    """A number that was mistyped does not pass for ever."""
    with pytest.raises(SystemExit) as caught:
        run(asked)
    assert caught.value.code == 2
