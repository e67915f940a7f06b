"""The roots of the wrapped queries in this process. A root belongs to one query."""

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
    """A starting query. ``query_id`` is the id in its checkpoint, or ``None`` for a new checkpoint."""

    root: str
    query_id: str | None


_lock = Lock()
"""Guards ``_starting`` and ``_started``, so that the check and the reservation of a root are one step."""
_starting: set[_Start] = set()
_started: dict[str, StreamQuery] = {}
"""The last started wrapped query by root."""


@contextmanager
def reserved_root(root: str, query_id: str | None) -> Iterator[Callable[[StreamQuery], None]]:
    """Reserve a root for the query that starts in the block. The block calls the yielded function with that query.

    ``query_id`` is the id in the query's checkpoint, or ``None`` for a new checkpoint. The reservation ends with the
    block. Raises ``ConflictError`` if another query of this process runs or starts with its state in ``root``.
    """
    start = _Start(normalised(root), query_id)
    with _lock:
        _check_is_free(start)
        _starting.add(start)

    def note(query: StreamQuery) -> None:
        with _lock:
            for ended_root in [ended for ended, started in _started.items() if not started.isActive]:
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
        raise _shared(start.root, f"query {running.id} already runs")
    for starting in _starting:
        is_same = starting.query_id is not None and starting.query_id == start.query_id
        if starting.root == start.root and not is_same:
            raise _shared(start.root, "another query is starting")


def _shared(root: str, conflict: str) -> ConflictError:
    return ConflictError(
        f"The root {root} is in use, because {conflict} on it.",
        remedy="Give each query its own root with riffle_spark.on(frame, root=...). Stop the running query first if "
        "this one replaces it.",
        where=root,
        id="RIFFLE-0342",
    )
