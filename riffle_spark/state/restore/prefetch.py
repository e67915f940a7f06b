"""Work that runs ahead of whoever takes its results, and how much of it may begin. Knows threads, a time and a number
of bytes. Does not know what is done.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from riffle_spark.state.copies.mapped_bytes import threads_within_limit

__all__ = ["Budget", "prefetched"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_BYTES_AHEAD = 32 << 20
_AT_ONCE = 8
_GRANT_BYTES_MIN = 64 * 1024
"""Less is not asked for, lest the last bytes of a budget become many small requests."""


def prefetched(
    work: Callable[[_Item], _Result], items: Iterable[_Item], size_bytes: Callable[[_Item], int],
    bytes_ahead: int = _BYTES_AHEAD, at_once: int = _AT_ONCE,
) -> Generator[tuple[_Item, Future[_Result]], None, None]:  # fmt: skip
    """Yield each item, in order, with the future result of ``work`` for it.

    Up to ``at_once`` items are processed at a time, fewer if addresses are limited. Without room for a thread the
    caller's thread does the work. Work on an item starts while the items that are started and not yet taken have fewer
    than ``bytes_ahead`` bytes; that is when the item is taken from ``items``, in the caller's thread. Close the
    iterator to give up items whose work has not started.
    """
    begun: deque[tuple[_Item, Future[_Result]]] = deque()
    source, held = iter(items), 0
    threads = threads_within_limit(at_once)
    pool = ThreadPoolExecutor(max(1, threads))  # starts no thread before the first item is submitted
    try:
        while True:
            while not begun or held < bytes_ahead:
                try:
                    item = next(source)
                except StopIteration:
                    break
                begun.append((item, pool.submit(work, item) if threads else _in_this_thread(work, item)))
                held += size_bytes(item)
            if not begun:
                return
            yield begun[0]
            held -= size_bytes(begun.popleft()[0])
    finally:
        pool.shutdown(cancel_futures=True)


def _in_this_thread(work: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
    """Return the finished result of ``work``."""
    future = Future[_Result]()
    try:
        future.set_result(work(item))
    except Exception as error:  # noqa: BLE001 - raised again where the result is taken, as of a thread
        future.set_exception(error)
    return future


class Budget:
    """A piece's bounds: it begins things for so many seconds, but one in any case, and fetches so many bytes."""

    def __init__(self, seconds: float, fetch_bytes: int | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._bytes_left = fetch_bytes
        self._begun = False

    def allows(self) -> bool:
        """Tell whether one more thing may begin, and take it as begun."""
        allowed = not self._begun or self._clock() < self._until
        self._begun = True
        return allowed

    def grant(self, length: int, *, part: bool = False) -> int:
        """Return how many of ``length`` bytes may be fetched now: all or none, or with ``part`` some.

        The last grant may go beyond the budget: by one run of a delta, or to the least that is worth a request.
        """
        if not length or self._bytes_left is None:
            return length if self.allows() else 0
        if self._bytes_left <= 0 or not self.allows():
            return 0
        granted = min(length, max(self._bytes_left, _GRANT_BYTES_MIN)) if part else length
        self._bytes_left -= granted
        return granted
