"""Where this process runs. Knows ``/proc``. Does not know Spark's API: Spark hands Python workers no executor id."""

from __future__ import annotations

import functools
import os
from pathlib import Path

__all__ = ["LOCAL_EXECUTOR", "executor_id"]

LOCAL_EXECUTOR = "driver"
"""What Spark calls the one executor of local mode; also the answer where ``/proc`` does not tell."""
_STEPS_UP = 6
_FLAG = b"--executor-id"


def executor_id() -> str:
    """Return the id of the executor whose Python worker this process is, from the JVM's command line above it."""
    return _executor_id(os.getpid())


@functools.lru_cache(maxsize=4)
def _executor_id(pid: int) -> str:
    for _ in range(_STEPS_UP):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if _FLAG in words:
            return words[words.index(_FLAG) + 1].decode()
    return LOCAL_EXECUTOR
