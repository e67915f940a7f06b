"""The interface to object storage. Every store implements it in a module of its own.

To add a store: implement ``ObjectStore``, open it in ``open``, and add it to ``tests/state/objects``.
"""

import base64
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from riffle_spark.errors import ConfigError

PIECE_BYTES: Final = 256 << 10
"""The size of the pieces of ``copy_to``. The allocator reuses memory of this size and returns larger pieces."""


class TaggedObject(NamedTuple):
    """An object that may be replaced, as read by ``get_if_changed``.

    ``tag`` identifies these bytes for a later compare-and-swap: an ETag, a generation or a digest. ``data`` is ``None``
    if the object still has the tag that the caller knows.
    """

    data: bytes | None
    tag: str


class ObjectStore(Protocol):
    """Named objects of bytes below a root. All are immutable, except those that ``replace_if_unchanged`` replaces.

    - **Names** are relative paths with ``/``, made only by ``state.log.paths``. No part is empty or starts with a dot.
      Every method checks its names.
    - **Missing objects** are not errors: ``None`` is returned, or they are skipped.
    - **Errors** name the endpoint. ``UnavailableError``: the store did not answer within bounded retries.
      ``RefusedError`` or ``ConfigError``: credentials, rights or the bucket are wrong.
    - **Threads** may share a store. A pickled store reaches the same objects and counts requests from zero.
    """

    @property
    def requests(self) -> dict[str, int]:
        """Requests sent so far by kind: ``put get head list delete``. Each retry counts, a bulk delete counts once."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object durably if the name is free. Return whether this call wrote it.

        Of several callers at most one gets ``True``. ``False`` means that an object has the name. After a retry it may
        hold this call's own bytes, so the caller reads it. After ``UnavailableError`` the object may exist, may be
        absent, or may still appear.
        """
        ...

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return ``length`` bytes from ``start``, or all to the end. ``None``: there is no such object.

        Ranges are like slices: beyond the end of the object they return fewer bytes, or none.
        """
        ...

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """Return the object's bytes and tag; without the bytes if its tag is still ``tag``; ``None`` if it is absent.

        Sends one GET, which transfers no bytes if the tag is unchanged and the store has conditional reads.
        """
        ...

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """Replace the object durably if it still has ``tag``.

        Return the new tag without the bytes, ``None`` if this call did not replace it. The tag is empty if the store
        does not return it. Of several callers with the same tag at most one gets a tag. As with ``put_if_absent``,
        ``None`` after a retry may mean that an earlier attempt of this call succeeded, and after ``UnavailableError``
        the object may have either content. So the caller reads it. Create the object with ``put_if_absent``.
        """
        ...

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """Pass the bytes that ``get`` would return to ``write``, in order and in pieces of at most ``PIECE_BYTES``.

        Return their number, or ``None`` if there is no such object. Errors of ``write`` propagate. Use it for objects
        that are too large for memory.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return whether the object exists, with one request."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted. Each page of a long listing is one request."""
        ...

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``: the first parts of names, sorted, each once and without slash.

        ``prefix`` is empty or ends with a slash. The folders are names below ``prefix``, not from the root on. The
        objects in the folders are not listed, so that a page of 1,000 folders is one request.
        """
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist. One request deletes up to 1,000 names if the store supports it."""
        ...


@runtime_checkable
class DatedStore(Protocol):
    """A store that keeps the time of each object."""

    def modified(self, name: str) -> float | None:
        """Return when the object was written, as seconds since 1970 by the store's clock. ``None``: no such object."""
        ...


@runtime_checkable
class CopyingStore(Protocol):
    """A store that copies objects from another store of its service without reading their bytes."""

    def can_copy_from(self, source: ObjectStore) -> bool:
        """Return whether objects of ``source`` can be copied in this way. Sends no request."""
        ...

    def copy_from(self, source: ObjectStore, name: str) -> bool:
        """Copy an object of ``source`` under the same name, also if this store has one. It appears whole or not at all,
        except in Azure, where a copy may be incomplete for a while after an interruption.

        Return whether ``source`` has the object. Call it only after ``can_copy_from``.
        """
        ...


class RequestCounts(dict[str, int]):
    """Thread-safe counts of requests by kind. A pickled object starts from zero."""

    def __init__(self) -> None:
        super().__init__(put=0, get=0, head=0, list=0, delete=0)
        self._lock = threading.Lock()

    def __reduce__(self) -> "tuple[type[RequestCounts], tuple[()]]":
        return RequestCounts, ()

    def add(self, kind: str) -> None:
        """Count one request."""
        with self._lock:
            self[kind] += 1


def sent_since(earlier: Mapping[str, int], later: Mapping[str, int]) -> dict[str, int]:
    """Return the number of requests between two counts by kind, without kinds that had none."""
    return {kind: count - earlier.get(kind, 0) for kind, count in later.items() if count != earlier.get(kind, 0)}


def write_all(data: bytes | None, write: Callable[[bytes], object]) -> int | None:
    """Implement ``copy_to`` for bytes that are in memory."""
    if data:
        write(data)
    return None if data is None else len(data)


def check_name(name: str) -> str:
    """Return ``name`` if it can name an object, else raise ``ConfigError``."""
    if any(not part or part.startswith(".") for part in name.split("/")) or not name.isprintable():
        raise ConfigError(
            f"{name!r} is not a valid object name.",
            remedy="If your code calls the object store, use a relative name of printable characters, with no empty "
            "part and no part that starts with a dot. Otherwise report a bug with this name.",
            where="object name",
            id="RIFFLE-0454",
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if names can start with it, else raise ``ConfigError``."""
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_name(folder)
    return prefix


def check_range(start: int, length: int | None) -> None:
    """Raise ``ConfigError`` if a range has a negative start or length."""
    if start < 0 or (length is not None and length < 0):
        raise ConfigError(
            f"Invalid range: start {start}, length {length}.", remedy="Use numbers from 0 up.", id="RIFFLE-0455"
        )


def content_md5(body: bytes) -> str:
    """Return a body's ``Content-MD5``, the checksum that every server knows and that needs no trailer."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def content_tag(data: bytes) -> str:
    """Return the tag of an object's bytes in stores that have no tags of their own."""
    return hashlib.sha256(data).hexdigest()


def tag_content(data: bytes | None, tag: str) -> TaggedObject | None:
    """Return an object's bytes with their ``content_tag``, without the bytes if that is ``tag``; ``None`` for none."""
    if data is None:
        return None
    new_tag = content_tag(data)
    return TaggedObject(None if new_tag == tag else data, new_tag)


def check_endpoint(text: str, where: str = "s3_endpoint") -> None:
    """Raise ``ConfigError`` if an endpoint, or a text that quotes one, contains credentials or a query.

    All errors name the endpoint, so it must not hold secrets.
    """
    if "@" in text or "?" in text:
        raise ConfigError(
            "The endpoint contains credentials or a query.",
            remedy="Write http://host:port or https://host, and give credentials outside of the URL.",
            where=where,
            id="RIFFLE-0456",
        )


def overwrite_error(store: ObjectStore, where: str) -> ConfigError:
    """Return the error for a store that overwrote an existing object."""
    return ConfigError(
        f"The store overwrites objects: {store!r} accepted a second put of an existing record.",
        remedy="Use a store with conditional puts (`If-None-Match: *`, in GCS `ifGenerationMatch=0`), and no proxy "
        "that removes the condition. Without it two drivers overwrite each other's state.",
        where=where,
        id="RIFFLE-0459",
    )
