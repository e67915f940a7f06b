"""Measure the objects in the store and the files on the disks, without the query's own counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import boto3

from benchmarks.elastic.query import STORE, Query
from riffle_spark.protocol.upkeep.merges import MergePolicy
from riffle_spark.protocol.upkeep.snapshots import SnapshotPolicy, needs_snapshot
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Manifest
from riffle_spark.state.objects.open import open_store
from riffle_spark.worker.member_folders import options_of

__all__ = ["Audit", "StoreView", "missing_bytes"]


@dataclass(frozen=True, slots=True)
class StoreView:
    """The sizes of a root's objects by name in the bucket, and the number and manifest of the newest record."""

    objects: Mapping[str, int]
    sequence: int
    manifest: Manifest


class Audit:
    """Reads a query's root with a separate client."""

    def __init__(self, query: Query) -> None:
        self._query = query
        settings = query.settings
        assert settings.root is not None
        self._log = Log(open_store(settings.root, options_of(settings)), settings.root)
        self.prefix = settings.root.split("/", 3)[3] + "/"
        links = settings.snapshot_chain_links
        versions = max(2, settings.retained_versions)
        are_merged = MergePolicy.of_chains(links, versions).fan_in > 0
        self._policy = SnapshotPolicy.of_chains(links, versions, are_merged=are_merged)

    def look(self) -> StoreView:
        """Return the present objects and the newest record."""
        record = self._log.open()
        assert record is not None, "no batch was committed"
        return StoreView(self.objects(), record.sequence, self._log.manifest)

    def objects(self) -> dict[str, int]:
        """Return the size of every object below the root, by its name in the bucket."""
        store = self._query.stage.store
        with closing(boto3.client("s3", **store.client_arguments)) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=self.prefix)
            return {stored["Key"]: stored["Size"] for page in pages for stored in page.get("Contents", ())}

    def rewritten_bytes(self, store_view: StoreView, after: StoreView, later: StoreView, sealed_bytes: int) -> int:
        """Return the bytes of state that were put between two views without need.

        Deltas that the batches sealed, and snapshots that were due by the snapshot policy, do not count.

        ``later`` is a view some batches later, when the log lists all objects that were put before ``after``.
        """
        new = {
            name.removeprefix(self.prefix): size
            for name, size in after.objects.items()
            if name not in store_view.objects
        }
        deltas = sum(size for name, size in new.items() if name.startswith("delta/"))
        regular = self._due_snapshots(store_view, later)
        snapshots = sum(size for name, size in new.items() if "/snapshot/" in name and name not in regular)
        return deltas - sealed_bytes + snapshots

    def _due_snapshots(self, store_view: StoreView, after: StoreView) -> set[str]:
        """Return the names of the newly listed snapshots whose key-groups were due for a snapshot."""
        names_found: set[str] = set()
        entries = dict(store_view.manifest.entries)
        for sequence in range(store_view.sequence + 1, after.sequence + 1):
            record = self._log.read(sequence)
            manifest = self._log.manifest_of(record)
            for address, entry in manifest.entries.items():
                earlier = entries.get(address, EMPTY)
                snapshot = entry.snapshot
                if snapshot is not None and snapshot != earlier.snapshot and self._was_due(address, earlier):
                    names_found.add(paths.snapshot_name(*address, snapshot.id))
            entries = dict(manifest.entries)
        return names_found

    def _was_due(self, address: Address, entry: Entry) -> bool:
        version = entry.head.version
        return needs_snapshot(self._policy, address, entry, version) or needs_snapshot(
            self._policy, address, entry, version + 1
        )


def missing_bytes(folders: Iterable[Path], manifest: Manifest) -> int:
    """Return the number of bytes that the copies in members' folders lack to be at the log's heads.

    Deltas that a member sealed itself are in its folder, so they do not count. No process may use a copy during this
    call.
    """
    return sum(_missing_in(folder, manifest) for folder in folders)


def _missing_in(member: Path, manifest: Manifest) -> int:
    sealed = {path.name.split("-", 1)[1] for path in (member / "sealed").glob("*")}
    missing = 0
    stacks = Folder(member, "").stacks(STORE)
    for key_group in stacks.key_groups():
        entry = manifest.entry(STORE, key_group)
        stack = stacks.read(key_group)
        missing_links = None if stack is None else entry.links_after(stack.head)
        if missing_links is None:
            missing += (entry.snapshot.length if entry.snapshot else 0) + entry.chain_bytes
        else:
            missing += sum(part.length for part in missing_links if part.head.attempt not in sealed)
    return missing
