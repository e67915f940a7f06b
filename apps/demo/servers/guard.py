"""Run a command, and remove all its processes at the end.

    guard.py GRACE_SECONDS COMMAND...

The guard ends when the command ends, on SIGTERM, or at the end of standard input: that shows that the parent process
has died. Then the command gets SIGTERM and has GRACE_SECONDS to end. All remaining processes get SIGKILL. Orphans are
found because this process is their subreaper. The guard imports only the standard library, so that it starts fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05
SWEEP_ROUNDS = 100


def descendants(of_pid: int) -> list[int]:
    """Return the live descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _live_parent(entry)
            children.setdefault(parent, []).append(int(entry.name))
    pids = list(children.get(of_pid, []))
    for pid in pids:
        pids.extend(children.get(pid, []))
    return pids


def _live_parent(process: Path) -> int:
    try:
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return -1
    return -1 if state in "ZX" else int(parent)


def kill(pids: list[int]) -> None:
    """Send SIGKILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _sweep() -> None:
    """Kill until this process has no descendants. This ends, because a killed process starts no other."""
    for _ in range(SWEEP_ROUNDS):
        remaining = descendants(os.getpid())
        if not remaining:
            return
        kill(remaining)
        time.sleep(POLL_SECONDS)


def _run(grace_seconds: float, command: list[str]) -> int:
    stop_requests: list[bool] = []  # an Event could deadlock in a signal handler
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_tell_at_end_of_input, args=(stop_requests,), daemon=True).start()
    while child.poll() is None and not stop_requests:
        time.sleep(POLL_SECONDS)
    if child.poll() is None:
        child.terminate()
        _wait(child, grace_seconds)
    _sweep()
    return child.wait()


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _tell_at_end_of_input(stop_requests: list[bool]) -> None:
    while os.read(0, 4096):
        pass
    stop_requests.append(True)


def _main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = _run(float(sys.argv[1]), sys.argv[2:])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_main())
