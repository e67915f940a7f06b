"""This process's store and folder for a root, kept between batches. Knows how to get them, not what they hold."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.settings import Settings
from riffle_spark.state.folder import Folder, claim
from riffle_spark.state.localdisk import default_local_dir
from riffle_spark.state.log import Log
from riffle_spark.state.manifest import Manifest
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.root import StoreOptions, open_store, root_id
from riffle_spark.worker.order import Home
from riffle_spark.worker.place import executor_environment, executor_process

__all__ = ["folder_of", "manifest_at", "options_of", "store_of", "use_store"]

_STORES_KEPT = 16
_folders: dict[tuple[Path, str], Folder] = {}
_manifests: dict[tuple[str, str, int], Manifest] = {}
_stores: dict[tuple[str, StoreOptions], ObjectStore] = {}


def folder_of(home: Home, executor: str) -> Folder:
    """Return this executor's folder for the root, claiming one if it has none yet."""
    base = (
        Path(home.local_dir or default_local_dir(executor_environment())) / f"{root_id(home.root)}-{home.log_id[:12]}"
    )
    owner = f"{home.application}/{executor}"
    folder = _folders.get((base, owner))
    if folder is None or not folder.is_of_owner():
        folder = _folders[base, owner] = claim(base, owner, home.live, executor_process())
    return folder


def store_of(home: Home) -> ObjectStore:
    """Return the store of the root, one a process: its connections are kept between batches."""
    store = _stores.get((home.root, home.options))
    return use_store(home, open_store(home.root, home.options)) if store is None else store


def use_store(home: Home, store: ObjectStore) -> ObjectStore:
    """Make ``store`` this process's store of the root: for simulations, whose stores fail on purpose."""
    if len(_stores) >= _STORES_KEPT:
        _stores.pop(next(iter(_stores)))
    _stores[home.root, home.options] = store
    return store


def options_of(settings: Settings) -> StoreOptions:
    """Return the settings that a store is opened with."""
    return StoreOptions(
        s3_endpoint=settings.s3_endpoint, s3_region=settings.s3_region,
        s3_connect_timeout_seconds=settings.s3_connect_timeout, s3_read_timeout_seconds=settings.s3_read_timeout,
        s3_max_attempts=settings.s3_max_attempts, s3_max_connections=settings.s3_max_connections,
    )  # fmt: skip


def manifest_at(home: Home, sequence: int) -> Manifest:
    """Return what the log's record ``sequence`` says of all key-groups. The last one read is kept."""
    name = (home.root, home.log_id, sequence)
    if name not in _manifests:
        log = Log(store_of(home), home.root)
        _manifests.clear()
        _manifests[name] = log.manifest_of(log.read(sequence))
    return _manifests[name]
