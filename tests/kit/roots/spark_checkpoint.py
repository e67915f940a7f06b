"""Write the files of Spark's checkpoint that commands read, for a simulated query."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["commit_batch", "written_checkpoint"]


def written_checkpoint(
    folder: Path, batches: int = 0, query_id: str = "query", *, first: int = 0, watermark_ms: int = 0
) -> Path:
    """Write a checkpoint with ``batches`` committed batches, and return its folder.

    Entries before batch ``first`` are missing, as after a purge by Spark.
    """
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for version in range(first, batches):
        commit_batch(folder, version, watermark_ms=watermark_ms)
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    return folder


def commit_batch(folder: Path, version: int, offsets: str = "", watermark_ms: int = 0) -> None:
    """Write the entries of a committed batch. Without ``offsets`` they have the offsets that a ``World`` uses."""
    (folder / "offsets" / str(version)).write_text(offsets or f"offsets-{version}")
    (folder / "commits" / str(version)).write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')
