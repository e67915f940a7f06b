"""Work runs ahead of its consumer: in order, in parallel, within a bound, and only while the consumer continues."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.state.restore.prefetch import Budget, run_ahead


def results(items: list[tuple[int, Future[int]]]) -> list[int]:
    """Return the results of the items."""
    return [future.result() for _, future in items]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60), st.integers(1, 4))
def test_items_are_returned_once_in_order_and_within_the_bound(sizes: list[int], bound: int, at_once: int) -> None:
    """Items are returned once and in order, and work that was started but not consumed exceeds the bound by at most one
    item.
    """
    consumed: list[int] = []
    started: list[int] = []

    def source():  # type: ignore[no-untyped-def]
        for size in sizes:
            started.append(size)
            assert sum(started) - sum(consumed) - size < bound or len(started) == len(consumed) + 1
            yield size

    items = []
    for item, future in run_ahead(lambda size: -size, source(), lambda size: size, bound, at_once):
        items.append((item, future))
        future.result()
        consumed.append(item)
    assert [item for item, _ in items] == sizes
    assert results(items) == [-size for size in sizes]


def test_an_error_is_raised_only_for_its_own_item() -> None:
    """An error is raised only by the future of its own item."""
    for item, future in run_ahead(lambda n: 1 // n, [1, 0, 1], lambda _: 1, 10, 2):
        if item:
            assert future.result() == 1
        else:
            with pytest.raises(ZeroDivisionError):
                future.result()


def test_running_work_ends_if_the_consumer_stops() -> None:
    """If the consumer stops, running work ends, no other work starts, and no thread is left."""
    done: list[int] = []
    threads = {*threading.enumerate()}

    def work(item: int) -> None:
        time.sleep(0.01)
        done.append(item)

    running = run_ahead(work, range(1000), lambda _: 1, 1000, 2)
    next(running)
    running.close()
    assert len(done) < 500
    assert {*threading.enumerate()} <= threads


def test_a_budget_allows_one_item_and_more_while_time_is_left() -> None:
    """A budget allows one item and then further ones while time is left, and counts bytes only for fetches."""
    now = [0.0]
    budget = Budget(1.0, 100_000, lambda: now[0])
    now[0] = 5.0
    assert budget.start_item()
    assert not budget.start_item()
    budget = Budget(10.0, 100_000, lambda: now[0])
    assert budget.grant(70_000) == 70_000
    assert budget.grant(1_000_000, part=True) == 64 * 1024
    assert (budget.grant(1), budget.grant(1, part=True), budget.start_item()) == (0, 0, True)
    assert Budget(10.0, None, lambda: now[0]).grant(2**40) == 2**40
    assert Budget(10.0, 0, lambda: now[0]).grant(1, part=True) == 0
