"""The roots of the wrapped queries that share a root.

    query=<name>/...    the root of one query, with its own log
    queries/<name>      the names of the query's stores, a line each, written at its first start

A root of a ``Stateful`` job, and of an earlier version, has its log directly below it.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import normalised, open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME: Final = 64
_DIGEST_DIGITS: Final = 8
_DEFAULTS: Final = StoreOptions()


def safe_name(text: str, unique: str = "") -> str:
    """Return a text as a part of object names. It ends with a digest of ``unique``, or of the text if that changes.

    >>> safe_name("page-counts"), safe_name("counts", unique="s3://bucket/checkpoints/counts")
    ('page-counts', 'counts-998cdde3')
    """
    safe = _UNSAFE.sub("_", text)[:_LONGEST_NAME]
    if safe == text and not unique:
        return safe
    return f"{safe}-{hashlib.sha256((unique or text).encode()).hexdigest()[:_DIGEST_DIGITS]}"


def root_of(root: str, name: str) -> str:
    """Return the root of a query below a shared root."""
    return f"{normalised(root)}/{paths.QUERY}{name}"


def query_names(objects: ObjectStore) -> list[str]:
    """Return the names of the queries below a shared root, with one LIST."""
    return [name.removeprefix(paths.QUERIES) for name in objects.list(paths.QUERIES)]


def add_query(objects: ObjectStore, name: str, stores: Sequence[str]) -> None:
    """Store a query's name and the names of its stores, unless the name is stored already."""
    objects.put_if_absent(f"{paths.QUERIES}{name}", "\n".join(sorted(stores)).encode())


def has_query(objects: ObjectStore, name: str) -> bool:
    """Return whether a query with this name was started below a shared root."""
    return objects.exists(f"{paths.QUERIES}{name}")


def stores_of(objects: ObjectStore, name: str) -> list[str]:
    """Return the names of the stores that a query had at its first start. Empty if the query was removed."""
    data = objects.get(f"{paths.QUERIES}{name}")
    return [] if data is None else data.decode(errors="replace").splitlines()


def only_root(root: str, options: StoreOptions = _DEFAULTS) -> str:
    """Return the root with the log that ``root`` names: ``root`` itself, or the root of the only query below it.

    A query that ended before its first batch has no log, and does not count.

    Raises ``ConfigError`` if several queries have their roots below it.
    """
    objects = open_store(root, options)
    names = query_names(objects)
    if not names or objects.list(paths.LOG):
        return root
    if len(names) > 1:
        names = [name for name in names if objects.list(f"{paths.QUERY}{name}/{paths.LOG}")] or names
    if len(names) == 1:
        return root_of(root, names[0])
    # Cause: riffle_spark.on was given this root for several queries, and each has its own root below it.
    raise ConfigError(
        f"{root} holds the state of {len(names)} queries, each in its own root.",
        remedy=f"Name the root of one of them: {', '.join(root_of(root, name) for name in names)}.",
        where=root,
        id="RIFFLE-1121",
    )
