"""What the benchmark of queries feeds closes what it says it closes, and its figures are of that."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.blocks import __main__ as blocks
from benchmarks.blocks import block_feeds as feeds
from benchmarks.blocks.block_play import Played
from benchmarks.blocks.block_queries import BLOCKS

SECOND_US = 1_000_000


def _at_s(batch: feeds.Batch) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the event times of a batch, in seconds since the first moment of all."""
    return (batch["rows"].column("at").cast("int64").to_numpy() - feeds.START_US) / SECOND_US


def test_every_batch_closes_one_window() -> None:
    """Fifty seconds behind its newest row lies the end of another window than the batch before had."""
    ends = [math.floor((_at_s(batch).max() - feeds.LAG_S) / feeds.STEP_S) for batch in feeds.windowed(100, 1_000, 12)]
    assert np.diff(ends).tolist() == [1] * 11
    spans = [set((_at_s(batch) // feeds.STEP_S).tolist()) for batch in feeds.windowed(100, 1_000, 12)]
    assert {len(windows) for windows in spans} == {6}


def test_a_tenth_of_the_keys_is_there_for_six_batches_and_quiet_for_four() -> None:
    """Four steps are longer than the gap, so a session ends with each batch for a tenth of the keys."""
    present = [set(batch["rows"].column("key").to_pylist()) for batch in feeds.visits(100, 5_000, 14)]
    assert [len(keys) for keys in present] == [60] * 14
    begun = [later - before for before, later in pairwise(present)]
    assert [len(keys) for keys in begun] == [10] * 13
    assert feeds.STEP_S * (feeds.COHORTS - feeds.ACTIVE) > 30


def test_nine_ids_in_ten_are_new() -> None:
    """The others are from the batch itself or the one before, which is not forgotten yet."""
    seen: set[int] = set()
    for batch in feeds.once(10_000, 4):
        keys = set(batch["rows"].column("key").to_pylist())
        assert 0.88 < len(keys - seen) / 10_000 < 0.96
        seen |= keys


def test_half_of_the_rows_have_a_partner() -> None:
    """Every second id stands in both streams, and in the same batch."""
    for batch in feeds.joined(1_000, 2):
        left, right = (set(batch[side].column("key").to_pylist()) for side in ("rows", "others"))
        assert len(left & right) in (500, 501)


def test_a_hundredth_is_due_after_every_third_small_batch() -> None:
    """The watermark, a day behind, passes the end of one slice's window at a time and never that of the others."""
    slices, keys = 3, 1_000
    batches = list(feeds.closing(keys, slices))
    filled, small = batches[0], batches[1:]
    ends = _at_s(filled) + feeds.STEP_S
    marks = [_at_s(batch).max() - feeds.DAY_S for batch in small]
    due = [int((ends <= mark).sum()) for mark in marks]
    assert due == [10] * 3 + [20] * 3 + [30] * 3 + [30] * 2


def test_what_one_that_is_closed_takes_is_what_its_batch_took_longer() -> None:
    """Batches that close are compared with those that do not, of the measured ones alone."""
    found = Played([9.0, 1.0, 2.0, 1.0, 4.0], rows=10, measured=4, removed=[500, 0, 100, 0, 100])
    assert found.closing_s == pytest.approx(0.02)
    assert math.isnan(Played([1.0, 1.0], rows=10, measured=2, removed=[1, 1]).closing_s)


def test_every_case_has_its_wish_and_its_block() -> None:
    """Each case's ratio is among what is wanted, and its query among the blocks."""
    assert {f"{name}_ratio" for name in blocks.CASES} == set(blocks.WANTED)
    assert set(blocks.CASES) - {"wrapper"} <= set(BLOCKS)


def test_rounds_and_engines_count() -> None:
    """Figures of Spark's are of fewer batches, those of the wrapper of many."""
    names = ["window_ratio", "window_ratio_heap", "join_rows_per_s_spark", "wrapper_ratio", "window_case_s"]
    told = blocks.repetitions(names, rounds=2)
    assert told == {"window_ratio": 20, "window_ratio_heap": 20, "join_rows_per_s_spark": 5, "wrapper_ratio": 120}
