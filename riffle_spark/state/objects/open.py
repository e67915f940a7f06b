"""From a root's URL to its store. Knows which URLs there are. Does not know how any store works."""

import hashlib
import re
from pathlib import Path

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.store import ObjectStore, StoreOptions

__all__ = ["StoreOptions", "masked", "normalised", "open_store", "root_id"]

_ALLOWED = "set `root` to s3://bucket/prefix or file:///path"
_S3_OF_HADOOP = re.compile(r"s3[an]://(?=[^/@]+(?:/[^@?]*)?\Z)")
_PATH = re.compile(r"/(?!/)")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_PARTS = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?)(.*)", re.DOTALL)
_A_PORT = re.compile(r":[0-9]*\Z")
_HADOOPS = re.compile(r"file:/(?!/)")
_SCHEMES = ("s3", "file", "memory")
_DEFAULTS = StoreOptions()


def open_store(url: str, options: StoreOptions = _DEFAULTS) -> ObjectStore:
    """Return the store below ``url``: ``s3://bucket/prefix``, ``file:///path`` or ``memory://name``. Sends no request.
    ``file:/path``, as Hadoop writes it, is the same as ``file:///path``.

    Raises ``ConfigError`` for any other URL.
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
    """Return ``url`` as it is written in one way only: without empty parts and without a slash at its end."""
    scheme, parts = _split(url)
    return f"{scheme}://{'/' if scheme == 'file' else ''}{'/'.join(parts)}"


def root_id(url: str) -> str:
    """Return 16 hexadecimal digits that stand for the root in folder names, the same on every machine."""
    return hashlib.sha256(normalised(url).encode()).hexdigest()[:16]


def masked(url: str) -> str:
    """Return a URL as it may be shown, in a log too: without user, password and query. A path is left as it is.

    >>> masked("hdfs://user:secret@host/path?token=secret")
    'hdfs://***@host/path?***'
    """
    prefix, rest = _PARTS.match(url).groups()  # type: ignore[union-attr]
    if not prefix:
        return url
    is_local = len(prefix) == 2 or prefix.startswith("file:")  # "//", or a letter
    path, query = (rest, "") if is_local else re.match(r"([^?#]*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    named = path if is_local else path.lstrip("/")  # with a slash too many, or one missing, it begins with slashes
    prefix += path[: len(path) - len(named)]
    is_host = named == path
    host, _, below = named.partition("/")
    if is_host and not is_local and "@" in named and not prefix.endswith("//"):  # a user, not a scheme
        prefix, named = "", "***@" + named.rpartition("@")[2]
    elif "@" in host and (is_host or ":" in host):
        is_odd = "@" in below and (":" in host or prefix.startswith("s3"))
        named = "***@" + (named.rpartition("@")[2] if is_odd else named[host.rindex("@") + 1 :])
    elif ":" in host and not is_local and not (is_host and _A_PORT.search(host)):
        if "@" in below:  # a secret key may have a slash in it
            named = "***@" + named.rpartition("@")[2]
        elif is_host or prefix.startswith("s3"):  # others have paths without a host
            named = f"***/{below}"
    return f"{prefix}{named}{query[:1]}{'***' if query else ''}"


def _split(url: str) -> tuple[str, list[str]]:
    """Return the scheme and the path's parts."""
    if not isinstance(url, str):
        raise ConfigError(f"{url!r} is not a URL", remedy=_ALLOWED, where="root", id="RIFFLE-0441")
    scheme, mark, rest = url.partition("://")
    if _HADOOPS.match(url):
        scheme, mark, rest = url.partition(":")
    parts = [part for part in rest.split("/") if part]
    if scheme not in _SCHEMES or not mark or not parts or rest.startswith("/") != (scheme == "file"):
        raise _refused(url, "is not the URL of a place for state")
    if {".", ".."} & set(parts) or not url.isprintable() or url != url.strip():
        raise _refused(url, "has parts '.' or '..', blanks around it or unprintable characters")
    if scheme == "s3" and "?" in rest:
        raise _refused(url, "has a query, as `?token=`, which would be part of all names")
    if scheme == "s3" and not _BUCKET.match(parts[0]):
        raise _refused(url, "does not begin with the name of a bucket")
    return scheme, parts


def _refused(url: str, why: str) -> ConfigError:
    # A URL with a user and password in it must not end up in a log.
    return ConfigError(f"{masked(url)!r} {why}", remedy=_remedy(url), where="root", id="RIFFLE-0442")


def _remedy(url: str) -> str:
    """Return how to write a root, with the URL that was most likely meant."""
    if _PATH.match(url):
        return f"{_ALLOWED}; for this folder: file://{url}"
    if _S3_OF_HADOOP.match(url):
        return f"{_ALLOWED}; for this bucket: {_S3_OF_HADOOP.sub('s3://', url)}"
    return _ALLOWED
