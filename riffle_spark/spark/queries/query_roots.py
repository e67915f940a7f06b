"""Choose the root of a wrapped query below the root that was passed to ``riffle_spark.on``.

Several queries may share that root: each has its own root below it, named by ``queryName`` or else by its checkpoint.

1. The query id in the checkpoint decides first. A query continues the root whose log has its id, even if the query was
   renamed or its checkpoint was moved. That may be the shared root itself.
2. A query without such a log has the root with its name.
3. A new query without a name may also be an earlier query with a new checkpoint, which must not lose its state
   silently. If another query with the same stores exists, and was not started by this process, the new query gets that
   query's root. Its first batch is refused there, with the steps that move the state to a new checkpoint.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.messages.slot_orders import Home
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import add_query, has_query, query_names, root_of, safe_name, stores_of
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import normalised, open_store

_started: Final = set[str]()
"""The roots of the queries that this process has started. Queries that were refused do not count."""


@dataclass(frozen=True, slots=True)
class NewQuery:
    """The known properties of a query before its start.

    ``query_id`` is the id in its checkpoint, ``None`` for a new one. ``checkpoint`` is a full path, or ``None`` if the
    checkpoint is temporary.
    """

    query_id: str | None
    name: str | None
    checkpoint: str | None
    stores: Sequence[str]

    @property
    def root_name(self) -> str:
        """Return the name of the query's root below a shared root."""
        if self.checkpoint is None:
            return f"temporary-{uuid.uuid4().hex[:8]}"
        if self.name:
            return safe_name(self.name)
        return safe_name(self.checkpoint.rpartition("/")[2], unique=self.checkpoint)


@dataclass(frozen=True, slots=True)
class OpenedRoot:
    """A query's root and the newest record of its log, ``None`` if it has none."""

    root: str
    tail: Record | None


def exact_root(home: Home) -> OpenedRoot:
    """Return the root of ``home`` itself, opened for a query. No other query may share it."""
    return _open(home, home.root)


def choose_root(home: Home, query: NewQuery) -> OpenedRoot:
    """Return the root of a query below the shared root of ``home``, and store the name of a new query there."""
    shared = open_store(home.root, home.options)
    name = query.root_name
    opened = next(_roots_of_query_id(home, name, query.query_id), None) or _open(home, root_of(home.root, name))
    if opened.tail is None and not has_query(shared, name):
        earlier = None if query.checkpoint is None else next(_roots_of_same_stores(home, query), None)
        if earlier is None:
            add_query(shared, name, query.stores)
        opened = earlier or opened
    return opened


def mark_started(root: str) -> None:
    """Record that this process starts the query of a root. A later query with the same stores is then another query."""
    _started.add(normalised(root))


def _roots_of_query_id(home: Home, name: str, query_id: str | None) -> Iterator[OpenedRoot]:
    """Yield the root whose log has this query id, nothing if there is none.

    It is the shared root, the root with the query's ``name``, or another one below the shared root.
    """
    if query_id is None:
        return
    shared = open_store(home.root, home.options)
    if shared.list(paths.LOG):
        yield from _matching_root(query_id, _open(home, home.root))
    yield from _matching_root(query_id, _open(home, root_of(home.root, name)))
    for other in query_names(shared):
        yield from _matching_root(query_id, _open(home, root_of(home.root, other)))


def _matching_root(query_id: str, opened: OpenedRoot) -> Iterator[OpenedRoot]:
    """Yield the opened root if its log belongs to the query with this id."""
    if opened.tail is not None and opened.tail.query_id == query_id:
        yield opened


def _roots_of_same_stores(home: Home, query: NewQuery) -> Iterator[OpenedRoot]:
    """Yield the roots of queries of other processes that may be this query with another checkpoint.

    They have the same stores. Below a shared root the names of two queries distinguish them, too.
    """
    shared = open_store(home.root, home.options)
    stores = set(query.stores)
    if shared.list(paths.LOG) and normalised(home.root) not in _started:
        opened = _open(home, home.root)
        if opened.tail is not None and stores <= opened.tail.schemas.keys():
            yield opened
    for name in [] if query.name else query_names(shared):
        root = root_of(home.root, name)
        if root not in _started and set(stores_of(shared, name)) == stores:
            yield from (opened for opened in [_open(home, root)] if opened.tail is not None)


def _open(home: Home, root: str) -> OpenedRoot:
    """Open the log of a root, and return the root with the newest record, ``None`` if it has no log yet."""
    log = Log(open_store(root, home.options), root)
    return OpenedRoot(root, log.tail if log.is_started() else None)
