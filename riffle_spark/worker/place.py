"""Where this process runs. Knows ``/proc``. Does not know Spark's API: Spark hands Python workers no executor id."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from riffle_spark.state.alive import named

__all__ = ["LOCAL_EXECUTOR", "executor_environment", "executor_id", "executor_process"]

LOCAL_EXECUTOR = "driver"
"""What Spark calls the one executor of local mode; also the answer where ``/proc`` does not tell."""
_STEPS_UP = 6
_FLAG = b"--executor-id"


def executor_id() -> str:
    """Return the id of the executor whose Python worker this process is, from the JVM's command line above it."""
    return _executor_id(os.getpid())


def executor_process() -> str:
    """Return what names the executor's process on this machine, for ``state.alive``; empty where it is not found."""
    found = _executor(os.getpid())
    return named(found[1]) if found else ""


def executor_environment() -> Mapping[str, str]:
    """Return the environment that the executor was started with; where it is not found, this process's own."""
    found = _executor(os.getpid())
    try:
        pairs = Path(f"/proc/{found[1]}/environ").read_bytes().split(b"\0") if found else []
    except OSError:
        pairs = []
    named = (pair.decode(errors="replace").partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in named} or os.environ


def _executor_id(pid: int) -> str:
    found = _executor(pid)
    return found[0] if found else LOCAL_EXECUTOR


@functools.lru_cache(maxsize=4)
def _executor(pid: int) -> tuple[str, int] | None:
    """Return the executor's id and process id, from the command lines of the processes above."""
    for _ in range(_STEPS_UP):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            above = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if _FLAG in words:
            return words[words.index(_FLAG) + 1].decode(), pid
        pid = above
    return None
