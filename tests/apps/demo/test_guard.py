"""A guarded child process ends when its owner stops or dies, together with every process that it started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps.demo.servers import Child, Launch
from riffle_spark.errors import UnavailableError

# A shell that ignores SIGTERM and starts a grandchild in another session.
STUBBORN = ["bash", "-c", "trap '' TERM; setsid sleep 1000 & echo started; while true; do sleep 0.1; done"]
OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it, and be inherited from
from pathlib import Path
from apps.demo.servers import Child, Launch
child = Child(Launch("child", ["bash", "-c", "setsid sleep 1000 & echo started; wait"], Path(sys.argv[1])))
child.wait_until(lambda: "started" in child.log_tail(), 20)
while len(child.pids()) < 2: time.sleep(0.01)
print(*child.pids(), flush=True)
time.sleep(1000)
"""


def test_stop_ends_a_process_tree_that_ignores_sigterm(tmp_path: Path) -> None:
    """`stop` ends the whole process tree, although the child ignores SIGTERM."""
    child = _started(tmp_path, STUBBORN)
    pids = child.pids()
    child.stop()
    assert len(pids) >= 2
    assert not any(map(_is_alive, pids))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.sample(step=3)
def test_a_child_dies_with_its_owner(tmp_path: Path, sent: signal.Signals) -> None:
    """If the owner is killed, terminated or interrupted, its child and grandchild end too."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    owner.send_signal(sent)
    owner.communicate(timeout=60)
    assert len(pids) >= 2
    assert _all_end_within(60, pids)


def test_a_failed_start_shows_the_log(tmp_path: Path) -> None:
    """If a child ends before it is ready, the error shows its output and its exit code."""
    child = Child(Launch("the thing", ["sh", "-c", "echo no such luck; exit 3"], tmp_path / "log"))
    with pytest.raises(UnavailableError, match=r"the thing ended with code 3(.|\n)*no such luck"):
        child.wait_until(lambda: False, 20)
    child.stop()


def _started(folder: Path, command: list[str]) -> Child:
    child = Child(Launch("child", command, folder / "log", grace_seconds=0.3))
    child.wait_until(lambda: "started" in child.log_tail() and len(child.pids()) >= 2, 20)
    return child


def _all_end_within(seconds: float, pids: list[int]) -> bool:
    give_up = time.monotonic() + seconds
    while any(map(_is_alive, pids)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return not any(map(_is_alive, pids))


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process ended before or during the read
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"
