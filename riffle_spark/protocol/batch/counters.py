"""Add up figures over the batches of a driver. ``protocol.facts.DriverFacts`` describes the counters."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from riffle_spark.errors import FencedError
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.request_prices import price_of

_WARNING_ID = re.compile(r"\[(RIFFLE-\d{4})\]")
_EXECUTOR_SECONDS: Final = "executor_seconds"
_OF_STORES: Final = {
    "rows": "rows",
    "keys": "keys",
    "output_rows": "output_rows",
    "late_rows": "late_rows",
    "dead_rows": "dead_rows",
    "timers_fired": "fired_timers",
    "expired": "expired_elements",
}
"""The counters per store, by field of ``StoreFigures``."""
_OF_BATCHES: Final = {
    "runs": "batch_runs",
    "misplaced_runs": "misplaced_runs",
    "slots": "slots",
    "misses": "misplaced_slots",
    "plan_fallbacks": "lost_plans",
    "probes_run": "probing_rebalances",
    "probes_skipped": "skipped_probing_rebalances",
    "sealed_bytes": "sealed_bytes",
    "snapshots": "snapshots",
    "upkeep_failures": "upkeep_failures",
    "fetched_bytes": "fetched_bytes/batch",
    "upkeep_fetched_bytes": "fetched_bytes/upkeep",
    "fetched_snapshot_bytes": "fetched_snapshot_bytes/batch",
    "upkeep_snapshot_bytes": "fetched_snapshot_bytes/upkeep",
    "hits": "copy_uses/hit",
    "catch_ups": "copy_uses/warm",
    "restore_seconds": "restore_seconds/cold",
    "catch_up_seconds": "restore_seconds/warm",
    "restores": "copy_uses/cold",
    "upkeep_restores": "upkeep_restores",
    "folds": "folds/batch",
    "upkeep_folds": "folds/upkeep",
}
"""The counters per batch, by field of ``BatchReport``."""


class Counters:
    """The counters of a driver. They start at zero with the driver's process.

    The counters of an executor are dropped when it is no longer a member, so that their number is bounded.
    """

    def __init__(self, *, has_price: bool = True) -> None:
        """Create counters. ``has_price`` is whether the store charges for requests."""
        self._has_price = has_price
        self._counts: Counter[str] = Counter()
        self._requests: deque[tuple[str, Mapping[str, int]]] = deque()

    def add_report(self, report: BatchReport) -> None:
        """Add the figures of a batch."""
        counts: Counter[str] = Counter({f"batches/{report.decision}": 1, "batch_retries": max(0, report.runs - 1)})
        for store, figures in report.by_store.items():
            counts.update({f"{counter}/{store}": getattr(figures, name) for name, counter in _OF_STORES.items()})
        for sender, requests in (("batch", report.requests), ("upkeep", report.upkeep_requests)):
            counts.update({f"requests/{sender}/{kind}": count for kind, count in requests.items()})
            self._add_price(requests)
        counts.update(f"moves/{move['role']}/{move['goal']}" for move in report.moves)
        counts.update(f"warnings/{match[1]}" for match in map(_WARNING_ID.match, report.warnings) if match)
        for name, counter in _OF_BATCHES.items():
            self._add(counter, getattr(report, name))
        for phase, seconds in report.seconds.items():
            self._add("batch_seconds" if phase == "total" else f"batch_phase_seconds/{phase}", seconds)
        self._keep_executors(report.members.values())
        for executor, steps in report.executor_steps.items():
            for step, seconds in steps.items():
                self._add(f"{_EXECUTOR_SECONDS}/{step}/{executor}", seconds)
        self._counts.update(counts)

    def add_failure(self, error: BaseException) -> None:
        """Count a batch that ended with ``error``."""
        self._counts["failed_batches"] += 1
        if isinstance(error, FencedError):
            self.add_fencing()

    def add_fencing(self) -> None:
        """Count a takeover by a newer driver."""
        self._counts["fencings"] += 1

    def add_requests(self, sender: str, requests: Mapping[str, int]) -> None:
        """Add requests by kind that ``sender`` sent outside of batches and upkeep. May be called from any thread."""
        self._requests.append((sender, requests))

    def values(self) -> Mapping[str, int | float]:
        """Return a copy of the counters by name. A counter that was never increased may be missing."""
        while self._requests:
            sender, requests = self._requests.popleft()
            self._counts.update({f"requests/{sender}/{kind}": count for kind, count in requests.items()})
            self._add_price(requests)
        return MappingProxyType(dict(self._counts))

    def _add_price(self, requests: Mapping[str, int]) -> None:
        """Add the price of requests, given as counts by kind."""
        if self._has_price:
            self._add("requests_price_dollars", price_of(requests))

    def _add(self, name: str, amount: float) -> None:
        """Add an amount, which may be a fraction, to a counter."""
        self._counts[name] += amount  # type: ignore[assignment]

    def _keep_executors(self, executors: Iterable[str]) -> None:
        """Drop the counters of all executors that are not in ``executors``."""
        members = set(executors)
        for name in [name for name in self._counts if name.startswith(f"{_EXECUTOR_SECONDS}/")]:
            if name.split("/", 2)[2] not in members:
                del self._counts[name]
