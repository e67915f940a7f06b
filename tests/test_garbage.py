"""Garbage is collected less often within a block, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from riffle_spark.garbage import collect_garbage_rarely


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*usual)


def test_overlapping_blocks_leave_the_usual_thresholds() -> None:
    """Two drivers of one process run batches at the same time, and end them in the order in which they started them."""
    first = collect_garbage_rarely()
    second = collect_garbage_rarely()
    first.__enter__()
    assert gc.get_threshold() == (10_000, 100, 10)
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_higher_thresholds_and_none_are_kept() -> None:
    """A process that collects even less often, or never, is left alone."""
    for thresholds in ((50_000, 200, 10), (0, 200, 10)):
        gc.set_threshold(*thresholds)
        with collect_garbage_rarely():
            assert gc.get_threshold() == thresholds
        assert gc.get_threshold() == thresholds


def test_thresholds_that_a_block_sets_are_kept() -> None:
    """A user's function may set its own."""
    with collect_garbage_rarely():
        gc.set_threshold(900, 9, 9)
    assert gc.get_threshold() == (900, 9, 9)
