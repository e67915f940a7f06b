"""When a driver scans its root. Knows times, what a scan found, and what makes one worth while. Does not know how it is
done.

Theory of operation. A scan is due after a driver's first commit and then every interval; sooner where one did not come
to its end, and where many snapshots were put whose answer was lost. A driver that fails in its first batch commits
nothing, and neither does the one that is started in its place: where the record before the claim is a claim itself, the
scan begins beside the first batch, so that starts that fail leave no more than one of them did.

A scan that was given up because LIST did not show the record it began with begins with the same one the next time: by
then LIST has had time to show it, where the newest one would never be old enough.
"""

from __future__ import annotations

from riffle_spark.protocol.ports import Background
from riffle_spark.protocol.retention import Retention
from riffle_spark.protocol.scan import Scanned, scan
from riffle_spark.protocol.told import Told
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.record import Record

__all__ = ["Scans"]

_AGAIN_SECONDS = 60.0
"""How long after a scan that did not come to its end the next one begins."""
_LOST_SECONDS = 600.0
"""How long after a scan the next one begins where ``_LOST_MOST`` snapshots were lost since."""
_LOST_MOST = 16
_BEHIND_MOST = 1_000
"""So many records after the one that a scan was given up with, the next one begins with the newest."""


class Scans:
    """Submits one driver's scans. Times are seconds of a clock that never goes back."""

    def __init__(self, objects: ObjectStore, background: Background, told: Told) -> None:
        self._objects = objects
        self._background = background
        self._told = told
        self._epoch = 0
        self._next = 0.0
        self._began = 0.0
        self._lost_before = 0
        self._after_claims = False
        self._given_up: Record | None = None

    def start(self, tail: Record, *, after_claims: bool) -> None:
        """Begin anew after a claim; ``after_claims``: the driver before committed nothing."""
        self._epoch = tail.epoch
        self._next = 0.0
        self._after_claims = after_claims
        self._given_up = None

    def before_first_batch(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        """Scan beside the first batch, if the driver before did not come to a scan."""
        if self._after_claims:
            self._after_claims = False
            self._begin(tail, retention, now, interval)

    def after_commit(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        """Scan if that is due."""
        lost = self._told.lost - self._lost_before >= _LOST_MOST and now >= self._began + _LOST_SECONDS
        if now >= self._next or lost:
            self._begin(tail, retention, now, interval)

    def _begin(self, tail: Record, retention: Retention, now: float, interval: float) -> None:
        self._began, self._next, self._lost_before = now, now + min(_AGAIN_SECONDS, interval), self._told.lost
        if self._given_up is not None and tail.sequence - self._given_up.sequence <= _BEHIND_MOST:
            tail = self._given_up
        self._given_up = tail
        versions, for_ms = retention.kept
        first, named = retention.first, self._told.named
        self._background.submit(lambda: scan(self._objects, tail, versions, for_ms, first=first, named=named))

    def came(self, scanned: Scanned, retention: Retention, interval: float) -> None:
        """Take what a scan found."""
        self._given_up = None
        retention.swept(scanned.oldest, scanned.kept_from)
        if scanned.whole and scanned.epoch == self._epoch:
            self._next = self._began + interval
