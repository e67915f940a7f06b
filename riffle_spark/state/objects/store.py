"""The seam to object storage. Knows what every store must promise. Does not know any store, or any object's name."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings

__all__ = [
    "PIECE_BYTES",
    "ObjectStore",
    "RequestCounts",
    "StoreOptions",
    "check_endpoint",
    "check_name",
    "check_prefix",
    "check_range",
    "overwriting",
    "sent_since",
    "written",
]

PIECE_BYTES: Final = 256 << 10
"""Memory of this size is used again and again; for a larger piece it is taken from the system, which costs more than
the bytes.
"""


class ObjectStore(Protocol):
    """A flat space of named, immutable byte objects below one root.

    Names are relative, ``/``-separated, made by ``state.log.paths`` alone; no part of one is empty or begins with a
    dot, which is checked. A missing object is ``None`` or skipped, never an error; an unreachable store raises
    ``UnavailableError`` after bounded retries, wrong credentials or a missing bucket ``ConfigError``; both name the
    endpoint. Every method is safe to call from several threads. A store can be pickled: the other side reaches the same
    objects and counts from zero.
    """

    @property
    def requests(self) -> dict[str, int]:
        """Requests sent so far by kind: ``put get head list delete``. A bulk delete is one request, a retry another."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if there is none of that name; return whether this call wrote it, as far as known.

        ``False`` means that an object of that name was there already (which, after a retried request, may hold this
        call's own bytes: the caller reads it to know). After ``UnavailableError`` the object may be there, may be
        absent for good, or may still arrive. Durable when it returns. Of several callers at most one is told ``True``.
        """
        ...

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return the bytes from ``start``, ``length`` of them or all to the end; ``None`` if there is no such object.

        As with slices, a range that reaches beyond the end gives what is there, and one that begins there ``b""``.
        """
        ...

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """Give the bytes that ``get`` would return to ``write``, in order and in pieces of ``PIECE_BYTES`` at most;
        return how many they were. For what is too large to be held: no piece is kept. What ``write`` raises comes out.
        """
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


class RequestCounts(dict[str, int]):
    """Counts by kind of request, safe to add to from several threads. A pickled one starts again from zero."""

    def __init__(self) -> None:
        super().__init__(put=0, get=0, head=0, list=0, delete=0)
        self._lock = threading.Lock()

    def __reduce__(self) -> "tuple[type[RequestCounts], tuple[()]]":
        return RequestCounts, ()

    def add(self, kind: str) -> None:
        """Count one more request."""
        with self._lock:
            self[kind] += 1


def sent_since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return how many requests of each kind came between two looks at the counts, kinds without any left out."""
    return {kind: count - before.get(kind, 0) for kind, count in now.items() if count != before.get(kind, 0)}


def written(data: bytes | None, write: Callable[[bytes], object]) -> int | None:
    """Give bytes that are held anyway to ``write``, as ``copy_to`` would; return how many they were."""
    if data:
        write(data)
    return None if data is None else len(data)


def check_name(name: str) -> str:
    """Return ``name`` if it can name an object, else raise ``ConfigError``."""
    if any(not part or part.startswith(".") for part in name.split("/")) or not name.isprintable():
        raise ConfigError(
            f"{name!r} cannot name an object",
            remedy="names are relative; no part is empty or begins with a dot, and all characters are printable",
            where="object name",
            id="RIFFLE-0454",
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if names can begin with it, else raise ``ConfigError``."""
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_name(folder)
    return prefix


def check_range(start: int, length: int | None) -> None:
    """Raise ``ConfigError`` if a range has a negative start or length."""
    if start < 0 or (length is not None and length < 0):
        raise ConfigError(
            f"no range begins at {start} and is {length} bytes long", remedy="use numbers from 0 up", id="RIFFLE-0455"
        )


def check_endpoint(said: str, where: str = "s3_endpoint") -> None:
    """Raise ``ConfigError`` if an endpoint, or what is said of one, has credentials in it, or a query that may be some:
    every error names it.
    """
    if "@" in said or "?" in said:
        problem = "the endpoint holds credentials, or a query as `?token=`"
        remedy = "write http://host:port or https://host; give credentials by boto3's default chain"
        raise ConfigError(problem, remedy=remedy, where=where, id="RIFFLE-0456")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a store. S3 stores with equal options share one client in each process."""

    root_file_mode: str | None = Settings.root_file_mode
    """Octal mode of files below a ``file://`` root. ``None``: the umask decides."""
    s3_endpoint: str | None = Settings.s3_endpoint
    """Base URL of an S3-compatible server; buckets then go in the path. ``None``: AWS, or as its tools are told."""
    s3_region: str | None = Settings.s3_region
    """``None``: what AWS's own environment variables and files say."""
    s3_kms_key: str | None = Settings.s3_kms_key
    """The key that the server is to encrypt what is put with, ``aws/s3`` for the account's own."""
    s3_server_side_encryption: str | None = Settings.s3_server_side_encryption
    """The algorithm that every put names, ``AES256`` or ``aws:kms``. ``None``: that of ``s3_kms_key``, or none."""
    s3_requester_pays: bool = Settings.s3_requester_pays
    """Whether every request says that the requester pays."""
    s3_connect_timeout_seconds: float = 5.0
    s3_read_timeout_seconds: float = 20.0
    s3_max_attempts: int = 4
    """How often one call is sent in all, the first time included."""
    s3_patience_seconds: float = Settings.s3_patience
    """How long one call is sent again in any case, where that may help."""
    s3_max_connections: int = 16
    """Connections kept open, a process; more threads than that wait for each other."""

    def __post_init__(self) -> None:
        if self.s3_kms_key is not None and self.s3_server_side_encryption not in {None, "aws:kms"}:
            raise ConfigError(
                f"s3_server_side_encryption = {self.s3_server_side_encryption!r} uses no key, but s3_kms_key is set",
                remedy="unset `s3_kms_key`, or set `s3_server_side_encryption` to aws:kms",
                where="s3_server_side_encryption",
                id="RIFFLE-0457",
            )
        for name in ("s3_endpoint", "s3_kms_key"):
            value = getattr(self, name)
            if value is not None and not (value.strip() and value.isprintable()):
                # Of a variable that is not set, or a file with a line's end: neither AWS nor the bucket's key is meant.
                problem = f"{name} is empty, or has unprintable characters in it"
                raise ConfigError(problem, remedy="set it, or leave it out", where=name, id="RIFFLE-0458")


def overwriting(store: ObjectStore, where: str) -> ConfigError:
    """Return the error for a store that took a second put of an object that is there."""
    problem = f"the store overwrites objects: {store!r} took a second put of a record that is there"
    remedy = "use a store with conditional puts (`If-None-Match: *`), or a newer version of this one, and no proxy "
    remedy += "before it that drops the header: else two drivers overwrite each other's state"
    return ConfigError(problem, remedy=remedy, where=where, id="RIFFLE-0459")
