"""Work that runs ahead of whoever takes its results. Knows threads and a bound of bytes. Does not know what is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    work: Callable[[_Item], _Result], items: Iterable[_Item], size_bytes: Callable[[_Item], int], bytes_ahead: int,
    at_once: int,
) -> Generator[tuple[_Item, Future[_Result]], None, None]:  # fmt: skip
    """Yield each item, in order, with what ``work`` makes of it: ``result()`` waits for it, or raises what it raised.

    ``at_once`` are at work at a time, and begun while those begun and not yet done with are of fewer than
    ``bytes_ahead`` bytes. An item is taken from ``items``, in this thread, when its work begins. Close the iterator to
    give up what has not begun.
    """
    begun: deque[tuple[_Item, Future[_Result]]] = deque()
    source, held = iter(items), 0
    pool = ThreadPoolExecutor(at_once)
    try:
        while True:
            while not begun or held < bytes_ahead:
                try:
                    item = next(source)
                except StopIteration:
                    break
                begun.append((item, pool.submit(work, item)))
                held += size_bytes(item)
            if not begun:
                return
            yield begun[0]
            held -= size_bytes(begun.popleft()[0])
    finally:
        pool.shutdown(cancel_futures=True)
