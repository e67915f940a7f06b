"""The end of a process is detected on its machine, and its folder is free before the driver reports the loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from riffle_spark.state.copies.abandoned import has_process_ended, process_name
from riffle_spark.state.copies.folder import claim_folder


def test_a_killed_process_counts_as_ended_before_its_parent_reaps_it() -> None:
    """A running or stopped process counts as alive, and a killed process as ended even before its parent reaps it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    name = process_name(process.pid)
    assert name
    assert not has_process_ended(name)
    process.send_signal(signal.SIGSTOP)
    assert not has_process_ended(name)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_process_ended(name)
    process.wait()
    assert has_process_ended(name)


def test_a_process_that_cannot_be_checked_counts_as_alive() -> None:
    """A process of another PID namespace or without a valid name counts as alive, and a reused process id as ended."""
    pid, started, space = process_name(os.getpid()).split()
    assert not has_process_ended(f"{pid} {started} pid:[1]")
    assert not has_process_ended("")
    assert not has_process_ended("somebody")
    assert not has_process_ended(f"{pid}\ufffd {started} {space}")
    assert has_process_ended(f"{pid} {int(started) - 1} {space}")


def test_an_executor_takes_the_folder_of_an_ended_process_listed_as_live(tmp_path: Path) -> None:
    """A new executor takes over the folder of an ended process, even if the driver still lists its owner as live."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    live = ["app/1", "app/2"]
    first = claim_folder(tmp_path, "app/1", live, process_name(process.pid))
    assert claim_folder(tmp_path, "app/2", live, process_name(os.getpid())).path != first.path
    process.kill()
    process.wait()
    claimed_folder = claim_folder(tmp_path, "app/3", live, process_name(os.getpid()))
    assert claimed_folder.path == first.path
    assert not first.belongs_to_owner()


def test_a_damaged_claim_file_counts_as_having_no_owner(tmp_path: Path) -> None:
    """A claim file with undecodable bytes counts as having no owner, and each executor still gets its own folder."""
    live = ["app/1", "app/2"]
    for name in ("owner", "process"):
        first_folder = claim_folder(tmp_path, "app/1", live, process_name(os.getpid()))
        (first_folder.path / name).write_bytes(b"\xff\xfe \xff \xff")
        assert first_folder.belongs_to_owner() == (name == "process")
        other = claim_folder(tmp_path, "app/2", live, process_name(os.getpid()))
        second_folder = claim_folder(tmp_path, "app/1", live, process_name(os.getpid()))
        assert second_folder.path != other.path
        assert (second_folder.belongs_to_owner(), other.belongs_to_owner()) == (True, True)
        with second_folder.hold(), other.hold():
            pass
