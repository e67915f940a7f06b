"""Copies by hand: heads, rows as bytes, and what a copy holds."""

from __future__ import annotations

from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.schemas.copy_rows import CopyRows
from tests.kit.state.drawn_records import attempt

__all__ = ["at", "contents", "rows"]


def at(version: int) -> Head:
    """Return the head of a version."""
    return Head(version, attempt(version))


def rows(**pairs: bytes | None) -> CopyRows:
    """Return rows: ``rows(a=b"1", b=None)`` puts one and deletes one."""
    return CopyRows([key.encode() for key in pairs], list(pairs.values()))


def contents(copy: Copy) -> dict[bytes, bytes]:
    """Return what a copy holds."""
    return dict(copy.scan()[1])
