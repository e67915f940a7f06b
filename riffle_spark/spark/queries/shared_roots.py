"""Which wrapped queries of this process have which root: a root belongs to one query."""

from threading import Lock

from riffle_spark.errors import ConflictError
from riffle_spark.spark.queries.stream_query import StreamQuery
from riffle_spark.state.objects.open import normalised

__all__ = ["check_root_is_free", "note_root"]

_lock = Lock()
_started: dict[str, StreamQuery] = {}
"""The wrapped query that this process started last, by root."""


def check_root_is_free(root: str, query_id: str | None) -> None:
    """Raise ``ConflictError`` if another query of this process runs with its state in ``root``.

    ``query_id`` is the id in the checkpoint of the query that is about to start, ``None`` if the checkpoint is new.
    """
    other = _started.get(normalised(root))
    if other is not None and other.id != query_id and other.isActive:
        raise ConflictError(
            f"two queries share the root {root}: query {other.id} runs with its state there",
            remedy="give each query its own root: riffle_spark.on(frame, root=...). Stop the running query first if "
            "this one replaces it",
            where=root,
        )


def note_root(root: str, query: StreamQuery) -> None:
    """Note that a query was started with its state in ``root``."""
    with _lock:
        for ended_root in [each for each, started in _started.items() if not started.isActive]:
            del _started[ended_root]
        _started[normalised(root)] = query
