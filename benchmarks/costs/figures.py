"""Compute the figures of a load from counted bytes and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.protocol.request_prices import price_of

__all__ = ["DOLLARS_PER_GB_MONTH", "SECONDS_A_BATCH", "MeasuredBatches", "Space", "figures_of"]

DOLLARS_PER_GB_MONTH = 0.023
"""The list price of S3 Standard in us-east-1 for the first 50 TB."""
SECONDS_A_BATCH = 10
"""The seconds between two batches of the query whose bill is computed."""
BATCHES_A_MONTH = 30 * 24 * 3600 // SECONDS_A_BATCH
BILLED_GB = 100
"""The live state of the query whose bill is computed, in GB."""


KINDS = ("delta", "merged", "snapshot", "log")
"""The kinds of objects whose bytes have a figure of their own."""


@dataclass(frozen=True, slots=True)
class MeasuredBatches:
    """The bytes and requests of the measured batches.

    ``changed_bytes`` are those of the keys and values that the batches changed. ``put_bytes`` are by kind of object,
    ``requests`` by kind of request. ``local_bytes`` were written to the disks of all ``copies`` of a key-group.
    """

    batches: int
    changed_bytes: int
    put_bytes: Mapping[str, int]
    read_bytes: int
    local_bytes: int
    requests: Mapping[str, int]
    copies: int


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes after a batch.

    ``live_bytes`` are the keys and values of the state. ``stored_bytes`` are all objects, ``retained_bytes`` those that
    only older retained records list, ``disk_bytes`` the files of all ``copies`` together.
    """

    live_bytes: int
    stored_bytes: int
    retained_bytes: int
    disk_bytes: int
    copies: int


def figures_of(measured: MeasuredBatches, spaces: Sequence[Space]) -> dict[str, float]:
    """Return the figures by name: ratios to changed or live bytes, requests, and the monthly bill in US dollars.

    Figures of space are the largest of ``spaces``.
    """
    changed = measured.changed_bytes
    requests_a_batch = {kind: number / measured.batches for kind, number in measured.requests.items()}
    return {
        "put_ratio": sum(measured.put_bytes.values()) / changed,
        **{f"put_ratio_{kind}": measured.put_bytes.get(kind, 0) / changed for kind in KINDS},
        "read_ratio": measured.read_bytes / changed,
        "local_ratio": measured.local_bytes / changed / measured.copies,
        "requests_a_batch": sum(requests_a_batch.values()),
        "requests_a_changed_million": sum(measured.requests.values()) / changed * 1e6,
        "space_ratio": max((space.stored_bytes - space.retained_bytes) / space.live_bytes for space in spaces),
        "retained_ratio": max(space.retained_bytes / space.live_bytes for space in spaces),
        "disk_ratio": max(space.disk_bytes / space.live_bytes / space.copies for space in spaces),
        "requests_usd": sum(price_of({kind: 1}) * number for kind, number in requests_a_batch.items())
        * BATCHES_A_MONTH,
        "storage_usd": max(space.stored_bytes / space.live_bytes for space in spaces)
        * BILLED_GB
        * DOLLARS_PER_GB_MONTH,
    }
