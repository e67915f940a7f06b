"""Opens the object store that a root's URL names."""

import hashlib
import re
from pathlib import Path
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["StoreOptions", "masked", "normalised", "open_store", "root_id"]

_URLS: Final = "s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix"
_REMEDY: Final = f"Set `root` to {_URLS} or file:///path."
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]{0,62}\Z")
_AZURE: Final = re.compile(
    r"(?P<container>[a-z0-9$][a-z0-9-]{0,62})@(?P<host>[a-z0-9]{3,24}\.(?:dfs|blob)(?:\.[a-z0-9-]+){2,6})\Z"
)
"""The place of an ``abfss://`` URL: a container and the host of its account."""
_HADOOP_FILE: Final = re.compile(r"file:/(?!/)")
_LOCAL: Final = re.compile(r"/|file:/(?!/[^/])")
_URL: Final = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]*:/+)?)([^?#]*)([?#]?)")
_PORT: Final = re.compile(r":[0-9]*\Z")
_SCHEMES: Final = ("s3", "gs", "abfss", "az", "file", "memory")
_GCS_PACKAGES: Final = "Run pip install 'google-auth>=2.29' 'requests>=2.31'"
_AZURE_PACKAGES: Final = "Run pip install 'azure-identity>=1.16' 'requests>=2.31'"
_SYNONYMS: Final = {"s3a": "s3"}
_HINTS: Final = (
    (
        ("hdfs", "viewfs", "webhdfs", "swebhdfs", "maprfs"),
        f"riffle_spark cannot create files exclusively there. Set `root` to {_URLS}, or to a mounted file system with "
        "hard links that all executors share (file:///path).",
    ),
    (
        ("dbfs", "/dbfs", "/Volumes", "file:/dbfs", "file:///dbfs"),
        "DBFS and volumes do not guarantee exclusive creation. Set `root` to the cloud store itself: "
        "s3://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix or gs://bucket/prefix.",
    ),
    (
        ("abfs", "wasb", "wasbs", "adl", "https", "http"),
        "Set `root` to abfss://container@account.dfs.core.windows.net/prefix for Azure, to s3://bucket/prefix or to "
        "gs://bucket/prefix. A server's address belongs into `s3_endpoint`, `gcs_endpoint` or `azure_endpoint`.",
    ),
    (("gcs",), "Set `root` to gs://bucket/prefix."),
    (
        ("s3n", "oss", "cos", "cosn", "obs", "oci", "swift", "ks3", "tos"),
        "Set `root` to s3://bucket/prefix, and `s3_endpoint` to an S3-compatible endpoint with conditional puts.",
    ),
)
"""Roots that are refused, by the start of the URL, and what to use instead."""
_DEFAULTS: Final = StoreOptions()


def open_store(url: str, options: StoreOptions = _DEFAULTS) -> ObjectStore:
    """Return the store below ``url``: ``s3://bucket/prefix``, ``gs://bucket/prefix``,
    ``abfss://container@account.dfs.core.windows.net/prefix``, ``az://container/prefix``, ``file:///path`` or
    ``memory://name``.

    ``s3a://`` is the same as ``s3://``, and ``file:/path`` as ``file:///path``, as Hadoop writes them. Sends no
    request. Raises ``ConfigError`` for any other URL, and if a package of the store is not installed.
    """
    scheme, parts = _split(url)
    if scheme == "memory":
        from riffle_spark.state.objects.memory import MemoryStore

        return MemoryStore("/".join(parts))
    if scheme == "file":
        from riffle_spark.state.objects.directory import DirectoryStore

        mode = options.file.mode
        return DirectoryStore(Path("/", *parts), None if mode is None else int(mode, 8))
    prefix = "/".join(parts[1:])
    if scheme == "gs":
        _check_packages("A root in GCS", _GCS_PACKAGES, "requests", "google.auth")
        from riffle_spark.state.objects.gcs import GcsStore

        return GcsStore(parts[0], prefix, options)
    if scheme in ("abfss", "az"):
        _check_packages("A root in Azure", _AZURE_PACKAGES, "requests")
        from riffle_spark.state.objects.azure import AzureStore

        container, _, host = parts[0].partition("@")
        return AzureStore(host, container, prefix, options)
    from riffle_spark.state.objects.s3 import S3Store

    return S3Store(parts[0], prefix, options)


def _check_packages(user: str, install: str, *modules: str) -> None:
    for module in modules:
        check_importable(module, user, f"{install} on the driver and the executors.", where="root")


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
    if prefix == "abfss://" and _AZURE.match(path.partition("/")[0]):
        return f"{prefix}{path}{query_mark}{'***' if query_mark else ''}"
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
    scheme = _SYNONYMS.get(scheme, scheme)
    parts = [part for part in rest.split("/") if part]
    hint = next((hint for starts, hint in _HINTS if any(_begins(url, start) for start in starts)), None)
    if hint or scheme not in _SCHEMES or not separator or not parts or rest.startswith("/") != (scheme == "file"):
        raise _refused(url, "is not a supported URL", hint or _folder_remedy(url))
    if {".", ".."} & set(parts) or not url.isprintable() or url != url.strip():
        raise _refused(url, "contains '.' or '..' parts, surrounding blanks or unprintable characters")
    if scheme not in ("file", "memory") and "?" in rest:
        raise _refused(url, "contains a query")
    if scheme in ("s3", "gs") and not _BUCKET.match(parts[0]):
        raise _refused(url, "does not start with a bucket name")
    if scheme == "abfss" and not _AZURE.match(parts[0]):
        raise _refused(url, "does not start with container@account.dfs.core.windows.net")
    if scheme == "az" and not _CONTAINER.match(parts[0]):
        raise _refused(url, "does not start with a container name")
    return scheme, parts


def _begins(url: str, start: str) -> bool:
    """Return whether a URL has this scheme, or is in this folder."""
    following = url[len(start) : len(start) + 1]
    return url.startswith(start) and (following in ("/", "") if "/" in start else following == ":")


def _folder_remedy(url: str) -> str:
    """Return the remedy for a root without a known scheme. A plain path is written as a URL."""
    if not re.match(r"/[^/]", url):
        return _REMEDY
    return f"Set `root` to file://{url} if all executors share this folder, or to {_URLS} or another file:///path."


def _refused(url: str, problem: str, remedy: str = _REMEDY) -> ConfigError:
    return ConfigError(f"Root {masked(url)!r} {problem}.", remedy=remedy, where="root", id="RIFFLE-0442")
