"""Opens the object store that a root's URL names."""

import hashlib
import re
from pathlib import Path
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.store import ObjectStore, StoreOptions

__all__ = ["StoreOptions", "masked", "normalised", "open_store", "root_id"]

_REMEDY: Final = "Set `root` to s3://bucket/prefix or file:///path."
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_HADOOP_FILE: Final = re.compile(r"file:/(?!/)")
_LOCAL: Final = re.compile(r"/|file:/(?!/[^/])")
_URL: Final = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:/+)?)([^?#]*)([?#]?)")
_PORT: Final = re.compile(r":[0-9]*\Z")
_SCHEMES: Final = ("s3", "file", "memory")
_DEFAULTS: Final = StoreOptions()


def open_store(url: str, options: StoreOptions = _DEFAULTS) -> ObjectStore:
    """Return the store below ``url``: ``s3://bucket/prefix``, ``file:///path`` or ``memory://name``.

    ``file:/path``, as Hadoop writes it, is the same as ``file:///path``. Sends no request. Raises ``ConfigError`` for
    any other URL.
    """
    scheme, parts = _split(url)
    if scheme == "memory":
        from riffle_spark.state.objects.memory import MemoryStore

        return MemoryStore("/".join(parts))
    if scheme == "file":
        from riffle_spark.state.objects.directory import DirectoryStore

        mode = options.root_file_mode
        return DirectoryStore(Path("/", *parts), None if mode is None else int(mode, 8))
    from riffle_spark.state.objects.s3 import S3Store

    return S3Store(parts[0], "/".join(parts[1:]), options)


def normalised(url: str) -> str:
    """Return ``url`` in its only spelling: without empty parts and without a slash at its end."""
    scheme, parts = _split(url)
    return f"{scheme}://{'/' if scheme == 'file' else ''}{'/'.join(parts)}"


def root_id(url: str) -> str:
    """Return 16 hexadecimal digits that identify the root in folder names, equal on every machine."""
    return hashlib.sha256(normalised(url).encode()).hexdigest()[:16]


def masked(url: str) -> str:
    """Return a URL without user, password and query, to show it in errors and logs. Local paths are unchanged.

    Everything before the last ``@`` counts as user and password, because a secret key may contain a slash.

    >>> masked("hdfs://user:secret@host/path?token=secret")
    'hdfs://***@host/path?***'
    """
    if _LOCAL.match(url):
        return url
    match = _URL.match(url)
    assert match is not None
    prefix, path, query_mark = match.groups()
    _, at_sign, place = path.rpartition("@")
    host, slash, below = path.partition("/")
    if at_sign:
        path = f"***@{place}"
    elif ":" in host and not _PORT.search(host):
        path = f"***{slash}{below}"
    return f"{prefix}{path}{query_mark}{'***' if query_mark else ''}"


def _split(url: str) -> tuple[str, list[str]]:
    """Return the scheme and the parts of the path."""
    if not isinstance(url, str):
        raise ConfigError(f"{url!r} is not a URL.", remedy=_REMEDY, where="root", id="RIFFLE-0441")
    scheme, separator, rest = url.partition("://")
    if _HADOOP_FILE.match(url):
        scheme, separator, rest = url.partition(":")
    parts = [part for part in rest.split("/") if part]
    if scheme not in _SCHEMES or not separator or not parts or rest.startswith("/") != (scheme == "file"):
        raise _refused(url, "is not a supported URL")
    if {".", ".."} & set(parts) or not url.isprintable() or url != url.strip():
        raise _refused(url, "contains '.' or '..' parts, surrounding blanks or unprintable characters")
    if scheme == "s3" and "?" in rest:
        raise _refused(url, "contains a query")
    if scheme == "s3" and not _BUCKET.match(parts[0]):
        raise _refused(url, "does not start with a bucket name")
    return scheme, parts


def _refused(url: str, problem: str) -> ConfigError:
    return ConfigError(f"Root {masked(url)!r} {problem}.", remedy=_REMEDY, where="root", id="RIFFLE-0442")
