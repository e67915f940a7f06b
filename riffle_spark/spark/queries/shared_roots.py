"""Which wrapped queries of this process have which root: a root belongs to one query."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from riffle_spark.errors import ConflictError
from riffle_spark.spark.queries.stream_query import StreamQuery
from riffle_spark.state.objects.open import normalised

__all__ = ["reserved_root"]


@dataclass(frozen=True, eq=False)
class _Start:
    """A query that is starting on a root; ``query_id`` is the id in its checkpoint, ``None`` if that is new."""

    root: str
    query_id: str | None


_lock = Lock()
"""Guards the two below, so that a check of a root and its reservation are one step."""
_starting: set[_Start] = set()
_started: dict[str, StreamQuery] = {}
"""The wrapped query that this process started last, by root."""


@contextmanager
def reserved_root(root: str, query_id: str | None) -> Iterator[Callable[[StreamQuery], None]]:
    """Reserve ``root`` for a query that starts in the block, which calls what it is given with the started query.

    ``query_id`` is the id in the checkpoint of the query that is about to start, ``None`` if the checkpoint is new.
    The reservation ends with the block. Raises ``ConflictError`` if another query of this process runs, or is starting,
    with its state in ``root``.
    """
    start = _Start(normalised(root), query_id)
    with _lock:
        _check_is_free(start)
        _starting.add(start)

    def note(query: StreamQuery) -> None:
        with _lock:
            for ended_root in [each for each, started in _started.items() if not started.isActive]:
                del _started[ended_root]
            _started[start.root] = query

    try:
        yield note
    finally:
        with _lock:
            _starting.discard(start)


def _check_is_free(start: _Start) -> None:
    running = _started.get(start.root)
    if running is not None and running.id != start.query_id and running.isActive:
        raise _shared(start.root, f"query {running.id} runs with its state there")
    for other in _starting:
        is_same = other.query_id is not None and other.query_id == start.query_id
        if other.root == start.root and not is_same:
            raise _shared(start.root, "another query is starting with its state there")


def _shared(root: str, conflict: str) -> ConflictError:
    return ConflictError(
        f"two queries share the root {root}: {conflict}",
        remedy="give each query its own root: riffle_spark.on(frame, root=...). Stop the running query first if this "
        "one replaces it",
        where=root,
        id="RIFFLE-0342",
    )
