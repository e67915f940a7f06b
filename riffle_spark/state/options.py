"""How to reach a store: what its URL does not say. Knows the settings' meaning. Does not know any store."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreOptions"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of the S3 client; other stores have none. Stores with equal options share one client a process."""

    s3_endpoint: str | None = None
    """Base URL of an S3-compatible server; buckets then go in the path. ``None``: AWS, or as its tools are told."""
    s3_region: str | None = None
    """``None``: what AWS's own environment variables and files say."""
    s3_connect_timeout_seconds: float = 5.0
    s3_read_timeout_seconds: float = 20.0
    s3_max_attempts: int = 4
    """How often one call is sent in all, the first time included."""
    s3_max_connections: int = 16
    """Connections kept open, a process; more threads than that wait for each other."""
