"""`collect_garbage_rarely` raises the thresholds of garbage collection within a block and restores them."""

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
    """If two drivers of one process overlap, the usual thresholds are restored when both have ended."""
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
    """Thresholds that are already higher, or zero, are not changed."""
    for thresholds in ((50_000, 200, 10), (0, 200, 10)):
        gc.set_threshold(*thresholds)
        with collect_garbage_rarely():
            assert gc.get_threshold() == thresholds
        assert gc.get_threshold() == thresholds


def test_thresholds_that_a_block_sets_are_kept() -> None:
    """Thresholds that a user function sets within the block are kept."""
    with collect_garbage_rarely():
        gc.set_threshold(900, 9, 9)
    assert gc.get_threshold() == (900, 9, 9)
