"""Work beside the batches: due snapshots and sweeping. Knows when and for whom. Does not know threads or Spark.

Nothing here can fail a batch: what does not get done is done later. A snapshot counts only once a commit lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ports import Background, Cluster
from riffle_spark.protocol.retention import Retention
from riffle_spark.protocol.scan import Scanned, scan
from riffle_spark.protocol.snapshots import Policy, due, listed
from riffle_spark.settings import Settings
from riffle_spark.state import paths
from riffle_spark.state.log import Log
from riffle_spark.state.manifest import Address, Entry, Manifest, Snapshot
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.record import Record
from riffle_spark.worker.order import Home
from riffle_spark.worker.snapshot import SnapshotOrder, SnapshotReceipt

__all__ = ["Upkeep"]

_SNAPSHOTS_PER_EXECUTOR = 16
_OVERDUE = 2
"""A chain of so many times the measure at which its snapshot is due has been left behind by drivers of one batch."""
_SWEEP_EVERY = 16
_SCAN_AGAIN_MS = 60_000
"""How long after a scan that did not come to its end the next one begins."""


class Upkeep:
    """What one driver still has to tidy up."""

    def __init__(self, settings: Settings, objects: ObjectStore, background: Background) -> None:
        versions = max(2, settings.retained_versions)
        self._policy = Policy(settings.snapshot_chain_share, settings.snapshot_chain_links, versions)
        self._overdue = self._policy.times(_OVERDUE)
        self._caught_up = False
        self._kept = (versions, int(settings.retained_for * 1000))
        self._retention = Retention(*self._kept)
        self._orphan_scan_ms = int(settings.orphan_scan_interval * 1000)
        self._objects = objects
        self._background = background
        self._next_scan_ms = 0
        self._next_sweep = 0
        self._epoch = 0
        self._taken: list[tuple[Address, Snapshot]] = []
        self._requests: Counter[str] = Counter()
        self._sent_before: Counter[str] = Counter(objects.requests)
        self._warnings: list[str] = []

    def start(self, first: int, tail: Record, manifest: Manifest, now_ms: int) -> None:
        """Begin with the log as a claim found it. What was taken under an earlier epoch is forgotten."""
        self._retention.start(first, tail, manifest, now_ms)
        self._epoch = tail.epoch
        self._taken.clear()
        self._next_scan_ms = 0
        self._next_sweep = tail.sequence + _SWEEP_EVERY
        self._caught_up = False

    def catch_up(
        self, log: Log, operators: Sequence[Operator], home: Home, owners: Mapping[int, str], cluster: Cluster
    ) -> None:
        """Before the first batch after a start, take at once what is long overdue, to be listed with its commit.

        What is taken after a commit is listed by the next one, which a driver of one batch never makes.
        """
        if self._caught_up or self._background.busy():
            return
        self._caught_up = True
        assert log.tail is not None, "a batch is run after a claim"
        orders = self._due(self._overdue, log.tail, log.manifest, operators, home, owners)
        try:
            for receipt in cluster.snapshot(orders) if orders else []:
                self._take(receipt)
        except Exception as error:  # noqa: BLE001 - upkeep never fails a batch
            self._warnings.append(f"upkeep failed and is tried again later: {error}")

    def snapshots(self, manifest: Manifest) -> dict[Address, Entry]:
        """Return the entries that list the snapshots which were taken since the last commit."""
        self._gather()
        changes, _ = listed(manifest, self._taken)
        return changes

    def committed(self, record: Record, before: Manifest, changes: dict[Address, Entry]) -> None:
        """Note a commit: what it replaced may go later."""
        self._retention.committed(record, before, changes)
        known = {(address, entry.snapshot) for address, entry in changes.items()}
        unused = [paths.snapshot(*a, s.id) for a, s in self._taken if (a, s) not in known]
        self._retention.unlisted(record.sequence, unused)
        self._taken.clear()

    def plan(
        self, record: Record, log: Log, operators: Sequence[Operator], home: Home,
        owners: Mapping[int, str], cluster: Cluster,
    ) -> None:  # fmt: skip
        """Submit what is due after a commit, unless earlier work still runs."""
        if self._background.busy():
            return
        orders = self._due(self._policy, record, log.manifest, operators, home, owners)
        if orders:
            self._background.submit(lambda: cluster.snapshot(orders))
        if record.sequence >= self._next_sweep:
            self._next_sweep = record.sequence + _SWEEP_EVERY
            self._submit_deletes(self._retention.take_free(record.written_ms))
        if record.written_ms >= self._next_scan_ms:
            self._next_scan_ms = record.written_ms + min(_SCAN_AGAIN_MS, self._orphan_scan_ms)
            self._background.submit(lambda: scan(self._objects, record, *self._kept))

    def _due(
        self, policy: Policy, record: Record, manifest: Manifest, operators: Sequence[Operator], home: Home,
        owners: Mapping[int, str],
    ) -> dict[str, list[SnapshotOrder]]:  # fmt: skip
        schemas = {operator.store: operator.schema for operator in operators}
        wanted: dict[str, list[Address]] = {}
        for (store, key_group), entry in sorted(manifest.entries.items()):
            if store in schemas and key_group in owners and due(policy, (store, key_group), entry, record.version):
                wanted.setdefault(owners[key_group], []).append((store, key_group))
        return {
            executor: [
                SnapshotOrder(home, schemas[store], key_group, manifest.entry(store, key_group), record.epoch)
                for store, key_group in _in_turn(mine, record.sequence)
            ]
            for executor, mine in wanted.items()
        }

    def _submit_deletes(self, names: list[str]) -> None:
        if names:
            self._background.submit(lambda: self._objects.delete(names))

    def _gather(self) -> None:
        for result in self._background.collect():
            if isinstance(result, BaseException):
                self._warnings.append(f"upkeep failed and is tried again later: {result}")
            elif isinstance(result, Scanned):
                self._retention.swept(result.oldest, result.kept_from)
                if result.whole and result.epoch == self._epoch:
                    self._next_scan_ms = result.at_ms + self._orphan_scan_ms
            elif isinstance(result, list):
                for receipt in result:
                    self._take(receipt)

    def _take(self, receipt: SnapshotReceipt) -> None:
        # One of an earlier epoch may come late, when a scan may already be deleting it.
        self._taken += [((store, kg), taken) for store, kg, taken in receipt.taken if taken.epoch == self._epoch]
        self._requests.update(receipt.requests)
        if receipt.error:
            self._warnings.append(f"a snapshot failed and is tried again later: {receipt.error}")

    def take_facts(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return requests and warnings since the last call, for the report."""
        sent = Counter(self._objects.requests)
        requests = self._requests + sent - self._sent_before
        self._sent_before = sent
        warnings = tuple(self._warnings)
        self._requests.clear()
        self._warnings.clear()
        return dict(requests), warnings


def _in_turn(addresses: Sequence[Address], sequence: int) -> list[Address]:
    """Return as many as one executor takes at once, from another one on with every record: none waits for ever."""
    start = sequence % len(addresses)
    return [*addresses[start:], *addresses[:start]][:_SNAPSHOTS_PER_EXECUTOR]
