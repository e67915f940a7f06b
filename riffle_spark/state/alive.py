"""Whether a process of this machine still runs. Knows ``/proc``. Does not know what the process is for.

A process is named by its id, the moment it began and the namespace that its id counts in: ids are used again, and
mean nothing elsewhere.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_dead", "named"]

_STARTED = 19
"""The place of a process's start time in its ``stat``, after the name."""


def named(pid: int) -> str:
    """Return the name of a process that runs, or an empty text if it cannot be told."""
    started, space = _started(pid), _namespace()
    return f"{pid} {started} {space}" if started and space else ""


def is_dead(name: str) -> bool:
    """Tell whether the process of that name is known to have ended; ``False`` for any that cannot be judged."""
    words = name.split()
    return len(words) == 3 and words[2] == _namespace() and _started(int(words[0])) != words[1]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process began, in clock ticks since the boot; empty if there is none any more."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if words[0] in "ZX" else words[_STARTED]
