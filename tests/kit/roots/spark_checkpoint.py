"""Spark's checkpoint of a simulated query, as far as commands read it."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["commit_batch", "written_checkpoint"]


def written_checkpoint(
    folder: Path, batches: int = 0, query_id: str = "query", *, first: int = 0, watermark_ms: int = 0
) -> Path:
    """Write the checkpoint of a query, a world's own, and return its folder.

    It has ``batches`` batches. Spark has purged the entries before batch ``first``.
    """
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for version in range(first, batches):
        commit_batch(folder, version, watermark_ms=watermark_ms)
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    return folder


def commit_batch(folder: Path, version: int, offsets: str = "", watermark_ms: int = 0) -> None:
    """Write the entries of a committed batch. Its offsets are those of a world unless they are set."""
    (folder / "offsets" / str(version)).write_text(offsets or f"offsets-{version}")
    (folder / "commits" / str(version)).write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')
