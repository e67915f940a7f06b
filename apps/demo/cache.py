"""Keep downloads between runs in a locked folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "one_at_a_time"]


def cache_folder() -> Path:
    """Return the folder in RIFFLE_CACHE, or else a folder of this project in the user's cache folder."""
    folder = os.environ.get("RIFFLE_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "riffle-spark"


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Create the folder and lock it for the block. Other processes wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
