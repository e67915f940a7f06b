"""Run work ahead of its consumer, within a budget of time and bytes."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from riffle_spark.state.copies.mapped_bytes import threads_within_limit

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_BYTES_AHEAD = 32 << 20
_THREADS = 8
_GRANT_BYTES_MIN = 64 * 1024
"""A grant is never smaller, so that the end of a budget does not become many small requests."""


def run_ahead(
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    size_bytes: Callable[[_Item], int],
    bytes_ahead: int = _BYTES_AHEAD,
    max_threads: int = _THREADS,
) -> Generator[tuple[_Item, Future[_Result]], None, None]:
    """Run ``work`` for items in threads, ahead of the consumer. Yield each item, in order, with its future result.

    Uses up to ``max_threads`` threads, fewer if addresses are limited. Without room for a thread the caller's thread
    does the work. An item starts while the started items that were not yet yielded have fewer than ``bytes_ahead``
    bytes. The caller's thread takes it from ``items`` at this time. Close the iterator to cancel items that have not
    started.
    """
    started: deque[tuple[_Item, Future[_Result]]] = deque()
    started_bytes = 0
    source = iter(items)
    threads = threads_within_limit(max_threads)
    pool = ThreadPoolExecutor(max(1, threads))  # starts no thread before the first item is submitted
    try:
        while True:
            while not started or started_bytes < bytes_ahead:
                try:
                    item = next(source)
                except StopIteration:
                    break
                started.append((item, pool.submit(work, item) if threads else _run_here(work, item)))
                started_bytes += size_bytes(item)
            if not started:
                return
            yield started[0]
            started_bytes -= size_bytes(started.popleft()[0])
    finally:
        pool.shutdown(cancel_futures=True)


def _run_here(work: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
    """Run ``work`` in this thread, and return its result or error as a finished future."""
    future = Future[_Result]()
    try:
        future.set_result(work(item))
    except Exception as error:  # noqa: BLE001 - raised by future.result()
        future.set_exception(error)
    return future


class Budget:
    """The limits of one piece of upkeep: seconds in which work may start (one item in any case), and bytes to fetch."""

    def __init__(self, seconds: float, fetch_bytes: int | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + seconds
        self._bytes_left = fetch_bytes
        self._has_started = False

    def start_item(self) -> bool:
        """Return whether another item may start: the first always, later ones until the deadline."""
        allowed = not self._has_started or self._clock() < self._deadline
        self._has_started = True
        return allowed

    def grant(self, length: int, *, part: bool = False) -> int:
        """Return how many of ``length`` bytes may be fetched now, and take them from the budget.

        Grants all bytes or none; with ``part`` it may grant some of them.

        The last grant may exceed the budget, by one GET of a delta or up to the smallest useful request.
        """
        if not length or self._bytes_left is None:
            return length if self.start_item() else 0
        if self._bytes_left <= 0 or not self.start_item():
            return 0
        granted = min(length, max(self._bytes_left, _GRANT_BYTES_MIN)) if part else length
        self._bytes_left -= granted
        return granted
