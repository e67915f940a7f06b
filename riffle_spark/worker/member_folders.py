"""The Python worker's executor, and its store, folder, keys and manifest for a root, kept between batches.

Spark passes no executor id to Python workers, so it is read from ``/proc``.
"""

import functools
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from riffle_spark.errors import OutOfDate
from riffle_spark.messages.slot_orders import Home
from riffle_spark.private_folders import is_private
from riffle_spark.settings import Settings
from riffle_spark.state.copies.abandoned import process_name, remove_folders
from riffle_spark.state.copies.disk import default_local_dir
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry, Head, Manifest
from riffle_spark.state.objects.encryption import HEADER_BYTES_MAX, Keys, parse_keys, read_key_source
from riffle_spark.state.objects.open import open_store, root_id
from riffle_spark.state.objects.options import AzureOptions, FileOptions, GcsOptions, S3Options, StoreOptions
from riffle_spark.state.objects.store import ObjectStore

_STORES_KEPT = 16
_folders: dict[tuple[Path, str], Folder] = {}
_manifests: dict[tuple[str, str, int], Manifest] = {}
_keys: dict[str, tuple[str, Keys]] = {}
_cleaned_for: dict[Path, frozenset[tuple[str, bytes]]] = {}
"""The list of keys by folder, as of the last removal of unreadable files."""
_stores: dict[tuple[str, StoreOptions], ObjectStore] = {}
LOCAL_EXECUTOR = "driver"
"""Spark's id of the executor in local mode. It is also used if ``/proc`` cannot be read."""
_PARENTS_READ = 6
_FLAG = b"--executor-id"


def folder_of(home: Home, executor: str) -> Folder:
    """Return this executor's folder for the root. Claim a folder if it has none yet.

    After a purge of keys, remove the older folders on this disk, because their files may still have these keys.
    """
    local_dir = Path(home.local_dir or default_local_dir(executor_environment()))
    base = local_dir / _base_name(home)
    owner = f"{home.application}/{executor}"
    folder = _folders.get((base, owner))
    if folder is None or not folder.belongs_to_owner():
        folder = _folders[base, owner] = claim_folder(base, owner, home.live, executor_process())
        if home.purged:
            remove_copies(local_dir, home.root, keep=base)
    return folder


def _base_name(home: Home) -> str:
    """Return the name of the folder below ``local_dir`` for the folders of all members. Each purge changes it."""
    name = f"{root_id(home.root)}-{home.log_id[:12]}"
    return f"{name}-{home.purged}" if home.purged else name


def remove_copies(local_dir: Path, root: str, keep: Path | None = None) -> list[Path]:
    """Remove all local copies of a root below ``local_dir`` except the folder ``keep``.

    Return the folders that could not be removed, because a process uses them or the disk refuses.
    """
    remaining: list[Path] = []
    for base in sorted(path for path in local_dir.glob(f"{root_id(root)}-*") if path != keep and is_private(path)):
        with suppress(OSError):
            remove_folders(base, (), math.inf)
            if not list(base.glob("m*")):
                shutil.rmtree(base)
        if base.exists():
            remaining.append(base)
    return remaining


def store_of(home: Home) -> ObjectStore:
    """Return this process's store of the root. Its connections are kept between batches."""
    store = _stores.get((home.root, home.options))
    return use_store(home, open_store(home.root, home.options)) if store is None else store


def use_store(home: Home, store: ObjectStore) -> ObjectStore:
    """Make ``store`` this process's store of the root. Simulations use it for stores with faults."""
    if len(_stores) >= _STORES_KEPT:
        _stores.pop(next(iter(_stores)))
    _stores[home.root, home.options] = store
    return store


def keys_of(home: Home) -> Keys | None:
    """Return the encryption keys of the state, ``None`` without encryption.

    They are parsed again when their text has changed. Raises ``ConfigError`` if the keys, or the key to write with, are
    missing.
    """
    keys = keys_in(home.encryption_keys or None, home.options.s3.region)
    return keys.with_write_key(home.key) if keys is not None and home.key else keys


def keys_in(source: str | None, region: str | None) -> Keys | None:
    """Return the encryption keys in the source that ``encryption_keys`` names, ``None`` for ``None``.

    Empty text is refused. They are parsed again when their text has changed. ``region`` is the region of a key service.
    """
    if source is None:
        return None
    text = read_key_source(source)
    cached = _keys.get(source)
    if cached is None or cached[0] != text:
        cached = _keys[source] = text, parse_keys(text, source, lambda wrapped: _unwrap(wrapped, region))
    return cached[1]


def drop_unreadable(folder: Folder, keys: Keys | None, *, anew: bool = False) -> list[Address]:
    """Remove local files whose key (or ``plain``) is no longer listed. Return the copies that used them.

    Checks all files once, again if the list of keys has changed, and always with ``anew``.
    """
    if keys is None or (not anew and _cleaned_for.get(folder.path) == keys.fingerprint):
        return []
    dropped = folder.remove_undecryptable(keys.can_decrypt, HEADER_BYTES_MAX)
    if dropped is not None:
        _cleaned_for[folder.path] = keys.fingerprint
    return dropped or []


def _unwrap(wrapped: bytes, region: str | None) -> bytes:
    """Return a key that a key service has encrypted, decrypted by the service in ``region``."""
    from riffle_spark.state.objects.s3_client import unwrapped_key

    return unwrapped_key(wrapped, region)


def home_with_keys(home: Home, settings: Settings) -> Home:
    """Return the home with the source of the keys and the id of the key to write with. Raises as ``keys_of``."""
    home = replace(home, encryption_keys=settings.encryption_keys or "", key="")
    keys = keys_of(home)
    return home if keys is None else replace(home, key=keys.write_key)


def options_of(settings: Settings) -> StoreOptions:
    """Return the options for opening the object store that the settings set."""
    return StoreOptions(
        file=FileOptions(mode=settings.root_file_mode),
        s3=S3Options(
            endpoint=settings.s3_endpoint,
            region=settings.s3_region,
            kms_key=settings.s3_kms_key,
            server_side_encryption=settings.s3_server_side_encryption,
            requester_pays=settings.s3_requester_pays,
        ),
        gcs=GcsOptions(endpoint=settings.gcs_endpoint),
        azure=AzureOptions(endpoint=settings.azure_endpoint),
        patience_seconds=settings.s3_patience,
    )


def manifest_at(home: Home, sequence: int) -> Manifest:
    """Return the manifest of the log's record ``sequence``. The last manifest is cached."""
    name = (home.root, home.log_id, sequence)
    if name not in _manifests:
        log = Log(store_of(home), home.root)
        _manifests.clear()
        _manifests[name] = log.manifest_of(log.read(sequence))
    return _manifests[name]


def entry_at(home: Home, sequence: int, address: Address, head: Head) -> Entry:
    """Return a key-group's entry in the log's record ``sequence``.

    ``head`` is the head that it must have. If the cached manifest has another one, it is read again: a root that was
    restored from a backup reuses numbers under the same log id. Raises ``OutOfDate`` if the record has another one too.
    """
    entry = manifest_at(home, sequence).entry(*address)
    if entry.head != head:
        _manifests.clear()
        entry = manifest_at(home, sequence).entry(*address)
    if entry.head != head:
        # Cause: The root was restored from a backup while this driver ran, and a newer driver wrote the record.
        raise OutOfDate(
            f"Record {sequence} has another state of store {address[0]!r}, key-group {address[1]}, than the driver's.",
            remedy="Stop this query if another driver runs on its root. Otherwise do nothing, because the batch runs "
            "again.",
            where=paths.record_name(sequence),
            id="RIFFLE-1790",
        )
    return entry


def executor_id() -> str:
    """Return the id of this Python worker's executor, from the command line of its JVM."""
    return _executor_id(os.getpid())


def executor_process() -> str:
    """Return the name of the executor's process on this machine (``process_name``), empty if it is not found."""
    executor = _executor(os.getpid())
    return process_name(executor[1]) if executor else ""


def executor_environment() -> Mapping[str, str]:
    """Return the environment that the executor was started with, or this process's own if it is not found."""
    executor = _executor(os.getpid())
    try:
        pairs = Path(f"/proc/{executor[1]}/environ").read_bytes().split(b"\0") if executor else []
    except OSError:
        pairs = []
    variables = (pair.decode(errors="replace").partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in variables} or os.environ


def _executor_id(pid: int) -> str:
    """Return the executor's id, given the process id of a Python worker."""
    executor = _executor(pid)
    return executor[0] if executor else LOCAL_EXECUTOR


@functools.lru_cache(maxsize=4)
def _executor(pid: int) -> tuple[str, int] | None:
    """Return the executor's id and process id, from the command lines of the parent processes."""
    for _ in range(_PARENTS_READ):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if _FLAG in words:
            return words[words.index(_FLAG) + 1].decode(), pid
        pid = parent
    return None
