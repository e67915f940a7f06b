"""The seam to object storage. Knows what every store must promise. Does not know any store, or any object's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["ObjectStore"]


class ObjectStore(Protocol):
    """A flat space of named, immutable byte objects below one root.

    Names are relative, ``/``-separated, made by ``state.paths`` alone. A missing object is ``None`` or skipped, never an
    error; an unreachable store raises ``UnavailableError`` after bounded retries, wrong credentials or a missing bucket
    ``ConfigError``; both name the endpoint. Every method is safe to call from several threads.
    """

    requests: dict[str, int]
    """Requests sent so far by kind: ``put get head list delete``. A bulk delete is one request."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if there is none of that name; return whether it was written *by this call*, as far as known.

        ``False`` means that an object of that name was there already (which, after a retried request, may hold this
        call's own bytes: the caller reads it to know). Durable when it returns.
        """
        ...

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return the bytes from ``start``, ``length`` of them or all to the end; ``None`` if there is no such object."""
        ...

    def exists(self, name: str) -> bool:
        """Tell whether an object of that name is there, with one request."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the names that begin with ``prefix``, sorted. Several pages are several requests."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects; missing ones are no error. One request for up to 1,000 names where the store can."""
        ...
